"""Runs scenarios against a target, and judges transcripts. The only module here that opens sockets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Literal

import httpx
import msgspec

from plumbline_conformance.case import (
    CAPABILITIES,
    CHECKS,
    Broken,
    Check,
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Scenario,
    Target,
    Untestable,
)
from plumbline_conformance.crashes import said_once
from plumbline_conformance.transcript import Exchange, Transcript

__all__ = ["Finding", "Verdict", "exchange_of", "judge", "judge_one", "record", "sender"]

Verdict = Literal["pass", "fail", "warn", "rejected", "untestable", "inconclusive", "skipped", "error"]
"""`rejected`: the server refused the request, so there is nothing to hold the rule against. `untestable`: it accepted
a request and did not deliver what the rule is about. `inconclusive`: the wire, a busy server or a free choice of the
model came between. `skipped`: the target has not got the capability. `error`: the suite itself is at fault."""

_MAX_BODY = 32 * 1024 * 1024
"""A server that never stops talking is cut off here."""
_MAX_PROBLEMS = 50
"""A check does not say more often than this what is wrong with one transcript."""
_MAX_TOTAL = 256 * 1024 * 1024
"""Of all bodies together: beyond it nothing is kept."""
_PATIENCE_WITH_LATENESS = 12
"""After so many answers that did not end in time, the rest is not asked for."""
_PATIENCE_WITH_SILENCE = 4
"""After so many requests without any answer, and none with one, the rest is not sent."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check says of one transcript."""

    check: str
    verdict: Verdict
    problems: list[Problem] = msgspec.field(default_factory=list)
    reason: str | None = None
    crash: bool = False
    """The server failed, so that whatever the rule says could not be seen."""


async def record(
    scenarios: Sequence[Scenario],
    target: Target,
    *,
    concurrency: int = 4,
    patience: float = 60.0,
    ended: Callable[[Transcript], None] | None = None,
) -> list[Transcript]:
    """Send the requests of all scenarios; transcripts come in the order of the scenarios.

    Args:
        scenarios: what to send.
        target: to whom.
        concurrency: how many scenarios run side by side.
        patience: seconds for one exchange.
        ended: called with each transcript as soon as its scenario has ended, in any order.
    """
    gate = asyncio.Semaphore(concurrency)
    async with sender(target, patience) as send:

        async def converse(
            steps: Generator[Request, Exchange, str | None],
        ) -> tuple[list[Exchange], str | None]:
            async with gate:
                exchanges: list[Exchange] = []
                try:
                    request = next(steps)
                    while True:
                        exchanges.append(await send(request))
                        request = steps.send(exchanges[-1])
                except StopIteration as stop:
                    return exchanges, stop.value

        names = sorted({name for wanted in scenarios for name in wanted.needs})
        probed = await asyncio.gather(*(converse(CAPABILITIES[name].probe(target)) for name in names))
        found = dict(zip(names, probed, strict=True))

        async def run(wanted: Scenario) -> Transcript:
            seen = await transcript(wanted)
            if ended is not None:
                ended(seen)
            return seen

        async def transcript(wanted: Scenario) -> Transcript:
            for name in wanted.needs:
                shown, lack = found[name]
                if lack is not None:
                    return Transcript(scenario=wanted.id, exchanges=shown, skipped=lack)
            exchanges, _ = await converse(wanted.steps(target))
            return Transcript(scenario=wanted.id, exchanges=exchanges)

        return list(await asyncio.gather(*(run(wanted) for wanted in scenarios)))


@asynccontextmanager
async def sender(
    target: Target, patience: float
) -> AsyncGenerator[Callable[[Request], Awaitable[Exchange]], None]:
    """A function that sends a request to this target, and gives up after so many seconds. It never raises."""
    headers = {"user-agent": "plumbline-conformance"}
    if target.api_key is not None:
        headers["authorization"] = f"Bearer {target.api_key}"
    # A connection for each request: what a server does to one after a crash must not be taken for its next answer.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=patience, headers=headers, limits=limits) as client:
        yield _Wire(client, target, patience).send


def judge(transcript: Transcript) -> list[Finding]:
    """Apply every check of the transcript's scenario. Never raises."""
    prefix = f"{transcript.scenario}/"
    if transcript.skipped is not None:
        return [
            Finding(check=name, verdict="skipped", reason=transcript.skipped)
            for name in CHECKS
            if name.startswith(prefix)
        ]
    findings: list[Finding] = []
    stumbled: list[Finding] = []
    for found in CHECKS.values():
        if found.id.startswith(prefix):
            finding = _apply(found, transcript)
            findings.append(finding)
            if finding.verdict == "error":
                stumbled.append(finding)
    findings = said_once(findings)
    if any(finding.verdict == "fail" for finding in findings):
        # The answer is not of the documented shape, and the check of its shape says where. The others stumble over it.
        findings = [_forgiven(finding) if finding in stumbled else finding for finding in findings]
    return findings


def judge_one(found: Check, transcript: Transcript) -> Finding:
    """Apply one check to a transcript, of whatever scenario. Never raises."""
    return _apply(found, transcript)


def _forgiven(finding: Finding) -> Finding:
    return Finding(
        check=finding.check, verdict="inconclusive", reason=f"an answer of another shape: {finding.reason}"
    )


def _apply(found: Check, transcript: Transcript) -> Finding:
    try:
        problems = list(islice(found.judge(transcript), _MAX_PROBLEMS))
    except Inconclusive as reason:
        return Finding(check=found.id, verdict="inconclusive", reason=str(reason))
    except Rejected as reason:
        return Finding(check=found.id, verdict="rejected", reason=str(reason))
    except Untestable as reason:
        return Finding(check=found.id, verdict="untestable", reason=str(reason))
    except Broken as broken:
        verdict: Verdict = "fail" if found.level == "MUST" else "warn"
        return Finding(check=found.id, verdict=verdict, problems=[broken.problem], crash=True)
    except Exception as error:  # An answer that the check did not foresee, or a fault of the check.
        return Finding(check=found.id, verdict="error", reason=f"{type(error).__name__}: {error}")
    if not problems:
        return Finding(check=found.id, verdict="pass")
    return Finding(check=found.id, verdict="fail" if found.level == "MUST" else "warn", problems=problems)


def exchange_of(target: Target, request: Request) -> Exchange:
    """The exchange that a request begins: what is sent, and no answer yet."""
    body = request.content if request.content is not None else json.dumps(request.json).encode()
    headers = dict(request.headers)
    if request.method == "GET":
        body = b""
    elif request.content is None:
        headers["content-type"] = "application/json"
    return Exchange(
        method=request.method,
        url=target.base_url.rstrip("/") + request.path,
        request_headers=headers,
        request_body=body,
    )


class _Wire:
    """Sends requests and keeps everything that comes back."""

    def __init__(self, client: httpx.AsyncClient, target: Target, patience: float) -> None:
        self._client = client
        self._target = target
        self._patience = patience
        self._heard = False
        self._silences = 0
        self._late = 0
        self._total = 0

    async def send(self, request: Request) -> Exchange:
        """One exchange; what goes wrong is noted in it, not raised."""
        exchange = exchange_of(self._target, request)
        if not self._heard and self._silences >= _PATIENCE_WITH_SILENCE:
            exchange.error = "not sent: the server has answered nothing so far"
            return exchange
        if self._late >= _PATIENCE_WITH_LATENESS:
            exchange.error = f"not sent: {self._late} answers did not end in time"
            return exchange
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._patience):
                await self._exchange(exchange, started)
        except (TimeoutError, httpx.TimeoutException) as error:
            self._late += 1
            exchange.error = f"{type(error).__name__}: no end after {self._patience:g} seconds"
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
            exchange.error = f"{type(error).__name__}: {error}".rstrip(": ")
        self._heard = self._heard or exchange.status != 0
        self._silences += exchange.status == 0
        return exchange

    async def _exchange(self, exchange: Exchange, started: float) -> None:
        async with self._client.stream(
            exchange.method, exchange.url, content=exchange.request_body, headers=exchange.request_headers
        ) as answer:
            exchange.status = answer.status_code
            exchange.headers = list(answer.headers.multi_items())
            size = 0
            async for part in answer.aiter_bytes():
                room = min(_MAX_BODY - size, _MAX_TOTAL - self._total)
                # A few bytes of gzip may have become a great many at once.
                exchange.frames.append((time.monotonic() - started, part[:room]))
                size += len(part[:room])
                self._total += len(part[:room])
                if len(part) > room:
                    which = f"the body is longer than {_MAX_BODY}"
                    if size < _MAX_BODY:
                        which = f"all bodies together are longer than {_MAX_TOTAL}"
                    exchange.error = f"{which} bytes"
                    break
