"""Measure one server, or two in turn, at several loads, and report."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
from rich.console import Console

from plumbline_conformance.bench.dialects import APIS
from plumbline_conformance.bench.load import Load, Run, apply
from plumbline_conformance.bench.page import page
from plumbline_conformance.bench.prompts import Lengths, prompts
from plumbline_conformance.bench.sample import Sender
from plumbline_conformance.bench.summary import Figures, Point, ratio, summarise
from plumbline_conformance.client.target_input import UnusableInput, joined
from plumbline_conformance.suite.model import Target

__all__ = ["Plan", "run_bench"]

_BUSY_CLIENT = 0.8
"""Part of a core from which on the client may be what limits the figures."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    targets: list[Target]
    """One server, or two that are compared."""
    api: str
    loads: list[Load]
    requests: int
    """Of each load and round; 0 for four times the concurrency, or four seconds of a rate, and at least 16."""
    rounds: int
    words: Lengths
    answers: Lengths
    given: list[Any] | None
    """Prompts of a file, instead of random words."""
    bounds: Mapping[str, float]
    fields: Mapping[str, Any]
    """Further members of every body."""
    seed: int
    timeout: float


def run_bench(plan: Plan, out: Console, json_file: Path | None, html_file: Path | None) -> int:
    """Measure and report; return 1 if a request failed.

    Raises:
        UnusableInput: a server does not answer the first request.
    """
    points = asyncio.run(_measure(plan, out))
    for line in (*_table(points, len(plan.targets) == 2), "", *_notes(plan, points)):
        out.print(line, markup=False)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "api": plan.api,
        "servers": [{"url": each.base_url, "model": each.model} for each in plan.targets],
        "seed": plan.seed,
        "points": points,
    }
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    if html_file is not None:
        html_file.write_text(page(points, plan.api), "utf-8")
    return 1 if any(point.failed for point in points) else 0


async def _measure(plan: Plan, out: Console) -> list[Point]:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(_client(plan, target)) for target in plan.targets]
        senders = [
            await _ready(client, plan, target) for client, target in zip(clients, plan.targets, strict=True)
        ]
        points = []
        for load in plan.loads:
            runs: list[list[Run]] = [[] for _ in senders]
            for number in range(plan.rounds):
                # In turn, A B A B …: both meet the same noise of the machine.
                for sender, found in zip(senders, runs, strict=True):
                    with out.status(f"{load.label}, round {number + 1} of {plan.rounds}"):
                        found.append(await _round(plan, load, sender, number))
            points += [
                summarise(name, load.label, found, plan.bounds)
                for name, found in zip(_names(plan.targets), runs, strict=True)
            ]
    return points


async def _round(plan: Plan, load: Load, sender: Sender, number: int) -> Run:
    # All servers get the same prompts in a round, and every round others.
    seed = plan.seed * 1_000_003 + number
    asked = prompts(seed, plan.words, plan.answers, plan.given)
    return await apply(load, sender.send, asked, plan.requests or load.requests, seed)


async def _ready(client: httpx.AsyncClient, plan: Plan, target: Target) -> Sender:
    """Make a sender, and send one request that is not measured: servers compile or load on their first one."""
    api = APIS[plan.api]
    fields = {"model": target.model, **plan.fields}
    sender = Sender(client, joined(target.base_url, api.path), api, fields, plan.timeout)
    sample = await sender.send(*next(prompts(plan.seed - 1, plan.words, plan.answers, plan.given)))
    if sample.error:
        raise UnusableInput(f"{target.base_url} did not answer the first request: {sample.error}")
    if not sample.pieces:
        raise UnusableInput(f"{target.base_url} sent an answer without text, so nothing can be measured.")
    return sender


def _client(plan: Plan, target: Target) -> httpx.AsyncClient:
    """Return a client of one server, with its key and headers."""
    headers = dict(target.headers)
    if target.api_key:
        # The second is the name of Messages; other APIs ignore it.
        headers |= {"authorization": f"Bearer {target.api_key}", "x-api-key": target.api_key}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(limits=limits, timeout=plan.timeout, headers=headers, trust_env=False)


def _names(targets: Sequence[Target]) -> list[str]:
    if len(targets) == 1:
        return [targets[0].base_url]
    return [f"{letter}: {target.base_url}" for letter, target in zip("AB", targets, strict=True)]


def _table(points: Sequence[Point], compared: bool) -> Iterator[str]:
    """Yield the lines of a table with aligned columns."""
    head = ["load", "requests/s", "tokens/s", "first token ms", "each token ms", "gap p99 ms", "answer ms"]
    rows = [head + (["goodput"] if points[0].goodput is not None else [])]
    for point in points:
        row = [
            f"{point.server[:2]} {point.load}" if compared else point.load,
            f"{point.requests_per_second:.2f}",
            f"{point.output_tokens_per_second:,.0f}",
            _milliseconds(point.time_to_first_token),
            _milliseconds(point.time_per_output_token),
            "–" if point.gap is None else f"{point.gap.p99:.1f}",
            _milliseconds(point.answer),
        ]
        rows.append(row + ([f"{point.goodput:.0%}"] if point.goodput is not None else []))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([first.ljust(widths[0]), *cells])


def _milliseconds(figures: Figures | None) -> str:
    """Return median and 99th percentile."""
    if figures is None:
        return "–"
    digits = 1 if figures.p99 < 100 else 0
    return f"{figures.p50:.{digits}f} / {figures.p99:.{digits}f}"


def _notes(plan: Plan, points: Sequence[Point]) -> Iterator[str]:
    yield "Times are the median and the 99th percentile of all requests."
    if len(plan.targets) == 2:
        yield from _names(plan.targets)
        for first, second in zip(points[::2], points[1::2], strict=True):
            found = ratio(first, second)
            if found is not None:
                middle, least, most = found
                yield f"{first.load}: A has {middle:.2f} times the tokens per second of B ({least:.2f} to {most:.2f})."
    for point in points:
        if point.failed:
            yield f"{point.server}, {point.load}: {point.failed} of {point.requests} requests failed: {point.error}"
        if point.client_cpu > _BUSY_CLIENT:
            yield (
                f"{point.server}, {point.load}: this client used {point.client_cpu:.0%} of a core, so the server "
                "may be faster than this."
            )
