"""Runs scenarios against a target, and judges transcripts. The only module here that opens sockets."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Literal

import httpx
import msgspec

from plumbline_conformance.case import CHECKS, Check, Inconclusive, Problem, Request, Scenario, Target
from plumbline_conformance.transcript import Exchange, Transcript

__all__ = ["Finding", "judge", "record"]

Verdict = Literal["pass", "fail", "warn", "inconclusive", "error"]

_MAX_BODY = 32 * 1024 * 1024
"""A server that never stops talking is cut off here."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check says of one transcript."""

    check: str
    verdict: Verdict
    problems: list[Problem] = msgspec.field(default_factory=list)
    reason: str | None = None


async def record(
    scenarios: list[Scenario], target: Target, *, concurrency: int = 4, patience: float = 60.0
) -> list[Transcript]:
    """Send the requests of all scenarios; transcripts come in the order of the scenarios."""
    gate = asyncio.Semaphore(concurrency)
    headers = {"user-agent": "plumbline-conformance"}
    if target.api_key is not None:
        headers["authorization"] = f"Bearer {target.api_key}"
    async with httpx.AsyncClient(timeout=patience, headers=headers) as client:

        async def run(wanted: Scenario) -> Transcript:
            async with gate:
                exchanges: list[Exchange] = []
                steps = wanted.steps(target)
                request = next(steps, None)
                while request is not None:
                    exchanges.append(await _send(client, target, request, patience))
                    try:
                        request = steps.send(exchanges[-1])
                    except StopIteration:
                        request = None
                return Transcript(scenario=wanted.id, exchanges=exchanges)

        return list(await asyncio.gather(*(run(wanted) for wanted in scenarios)))


def judge(transcript: Transcript) -> list[Finding]:
    """Apply every check of the transcript's scenario. Never raises."""
    prefix = f"{transcript.scenario}/"
    return [_apply(found, transcript) for name, found in CHECKS.items() if name.startswith(prefix)]


def _apply(found: Check, transcript: Transcript) -> Finding:
    silent = next((exchange for exchange in transcript.exchanges if exchange.status == 0), None)
    if silent is not None:
        return Finding(check=found.id, verdict="inconclusive", reason=silent.error)
    if any(exchange.status == 429 or exchange.status >= 500 for exchange in transcript.exchanges):
        if found.level == "MUST" and any(exchange.status >= 500 for exchange in transcript.exchanges):
            statuses = ", ".join(str(exchange.status) for exchange in transcript.exchanges)
            problem = Problem(expected="an answer", actual=f"statuses {statuses}", pointer="status")
            return Finding(check=found.id, verdict="fail", problems=[problem])
        return Finding(check=found.id, verdict="inconclusive", reason="the server was overloaded or failed")
    try:
        problems = list(found.judge(transcript))
    except Inconclusive as reason:
        return Finding(check=found.id, verdict="inconclusive", reason=str(reason))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        # The transcript has another shape than the check relies on; the check of its shape says which.
        problem = Problem(expected="the documented shape", actual=f"{type(error).__name__}: {error}")
        return Finding(
            check=found.id, verdict="fail" if found.level == "MUST" else "warn", problems=[problem]
        )
    if not problems:
        return Finding(check=found.id, verdict="pass")
    return Finding(check=found.id, verdict="fail" if found.level == "MUST" else "warn", problems=problems)


async def _send(client: httpx.AsyncClient, target: Target, request: Request, patience: float) -> Exchange:
    body = request.content if request.content is not None else json.dumps(request.json).encode()
    headers = dict(request.headers)
    if request.method == "GET":
        body = b""
    elif request.content is None:
        headers["content-type"] = "application/json"
    exchange = Exchange(
        method=request.method,
        url=target.base_url.rstrip("/") + request.path,
        request_headers=headers,
        request_body=body,
    )
    started = time.monotonic()
    try:
        async with (
            asyncio.timeout(patience),
            client.stream(request.method, exchange.url, content=body, headers=headers) as answer,
        ):
            exchange.status = answer.status_code
            exchange.headers = list(answer.headers.multi_items())
            size = 0
            async for part in answer.aiter_bytes():
                exchange.frames.append((time.monotonic() - started, part))
                size += len(part)
                if size > _MAX_BODY:
                    exchange.error = f"the body is longer than {_MAX_BODY} bytes"
                    break
    except (httpx.HTTPError, TimeoutError, OSError) as error:
        exchange.error = f"{type(error).__name__}: {error}"
        if not exchange.frames:
            exchange.status = 0
    return exchange
