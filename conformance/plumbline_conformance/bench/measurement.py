"""Measure one server, or two in turn, at several loads, and report (`plumbline bench`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, NamedTuple

import httpx2
import msgspec
from rich.console import Console

from plumbline_conformance.bench.dialects import APIS
from plumbline_conformance.bench.load import Load, LoadRun, apply
from plumbline_conformance.bench.page import page
from plumbline_conformance.bench.prompts import Lengths, lengths_of, prompts, read_prompts
from plumbline_conformance.bench.sample import Sender
from plumbline_conformance.bench.summary import Figures, Point, bounds_of, ratio, summarise
from plumbline_conformance.client.first_model import with_model
from plumbline_conformance.client.options import fields_of, key_or_variable
from plumbline_conformance.client.target_input import headers_of, joined, target_of
from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import (
    AtLeastOne,
    Count,
    Describe,
    OptionError,
    Positive,
    Texts,
    UnusableInput,
)
from plumbline_conformance.reports.conclude import File
from plumbline_conformance.suite.scenario import SEED, Target

__all__ = ["BenchCommand"]

_BUSY_CLIENT = 0.8
"""Part of a core from which on the client may be what limits the figures."""


_MOST_AT_A_TIME = 4096
_MOST_REQUESTS = 1_000_000
_MOST_TIMES = 50_000_000
"""Times of pieces that are kept: about 2 GB while they are sorted."""
_CONCURRENCY = (1, 8, 32)
_WORDS = "60"
_servers = partial(Describe, "servers")
_load = partial(Describe, "load")
_requests = partial(Describe, "requests")
_reports = partial(Describe, "reports")


class BenchCommand(Command, frozen=True, kw_only=True):
    """Measure the speed of a server under load, or compare two in turn."""

    example = "plumbline bench http://127.0.0.1:8000/v1 --concurrency 1 8 32 --html bench.html"

    urls: Annotated[
        Texts,
        _servers("the root of a server's API, or of two to compare in turn", "URL", positional=True),
    ]
    models: Annotated[
        Texts,
        _servers(
            "model name, once or for each server",
            "NAME",
            name="model",
            default="the first that the server lists",
        ),
    ] = ()
    api_key: Annotated[
        str | None,
        _servers("API key of all servers", "KEY", default="the variable OPENAI_API_KEY", secret=True),
    ] = None
    headers: Annotated[Texts, _servers("a further header; repeatable", "'NAME: VALUE'", name="header")] = ()
    api: Annotated[str, _servers("API to measure", choices=tuple(APIS))] = "chat"
    concurrency: Annotated[tuple[AtLeastOne, ...], _load("requests at a time", "N", spread=True)] = (
        _CONCURRENCY
    )
    rates: Annotated[
        tuple[Positive, ...],
        _load("requests per second instead, at random times", "N", name="rate", spread=True),
    ] = ()
    requests: Annotated[
        Count,
        _load("requests of each load and round", "N", default="four times the load, at least 16"),
    ] = 0
    rounds: Annotated[
        AtLeastOne | None, _load("repetitions of each load", "N", default="1, or 3 for two servers")
    ] = None
    prompts: Annotated[
        File,
        _requests("prompts, one a line: a text, or JSON with prompt or messages", "FILE", reads=True),
    ] = None
    prompt_words: Annotated[str, _requests("random words of a prompt, no two alike", "N[-M]")] = _WORDS
    output_tokens: Annotated[str, _requests("most tokens of an answer", "N[-M]")] = "64"
    body: Annotated[
        str,
        _requests(
            "further fields of every request, such as '{\"ignore_eos\": true}' for answers of full length",
            "JSON",
            default="none",
        ),
    ] = "{}"
    seed: Annotated[int, _requests("seed of prompts", "N")] = SEED
    timeout: Annotated[Positive, _requests("time limit of one request", "SECONDS")] = 600.0
    goodput: Annotated[
        Texts,
        _reports(
            "count the requests within bounds: ttft:500 (first token), tpot:50 (each other), e2el:5000 (answer)",
            "NAME:MS",
            spread=True,
        ),
    ] = ()
    json: Annotated[File, _reports("write the figures", "FILE", writes=True)] = None
    html: Annotated[File, _reports("write plots as one self-contained page", "FILE", writes=True)] = None

    def run(self, out: Console) -> int:
        """Measure, and print and write the figures; return 1 if a request failed."""
        plan = self._plan()
        points = asyncio.run(_measure(plan, out))
        for line in (*_table(points, len(plan.targets) == 2), "", *_notes(plan, points)):
            out.print(line, markup=False)
        report = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "api": self.api,
            "servers": [{"url": each.base_url, "model": each.model} for each in plan.targets],
            "seed": self.seed,
            "points": points,
        }
        if self.json is not None:
            self.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
        if self.html is not None:
            self.html.write_text(page(points, self.api), "utf-8")
        return 1 if any(point.failed for point in points) else 0

    def _plan(self) -> _Plan:
        """Read the options and files; the servers are asked for their models when all else is right."""
        targets, loads = self._targets(), self._loads()
        if self.prompts is not None and self.prompt_words != _WORDS:
            raise OptionError("--prompt-words", "cannot be used with --prompts: leave one of them out")
        rounds = self.rounds or (3 if len(targets) == 2 else 1)
        answers = lengths_of(self.output_tokens, "--output-tokens")
        self._limit(loads, rounds, answers)
        words = lengths_of(self.prompt_words, "--prompt-words")
        given = None if self.prompts is None else read_prompts(self.prompts)
        bounds, fields = bounds_of(self.goodput), fields_of(self.body)
        return _Plan(
            self, [with_model(each) for each in targets], loads, rounds, words, answers, given, bounds, fields
        )

    def _targets(self) -> list[Target]:
        if len(self.urls) > 2:
            raise OptionError("URL", f"is given {len(self.urls)} times: give one server, or two to compare")
        if len(self.models) > len(self.urls):
            raise OptionError("--model", "is given more often than there are servers: leave one out")
        names = self.models or ("",)
        names += names[-1:] * (len(self.urls) - len(names))
        key, headers = key_or_variable(self.api_key), headers_of(self.headers)
        return [
            msgspec.structs.replace(target_of(url, name, key), headers=headers)
            for url, name in zip(self.urls, names, strict=True)
        ]

    def _loads(self) -> list[Load]:
        if self.rates:
            if self.concurrency != _CONCURRENCY:
                raise OptionError("--rate", "cannot be used with --concurrency: leave one of them out")
            return [Load(rate=rate) for rate in self.rates]
        if max(self.concurrency) > _MOST_AT_A_TIME:
            raise OptionError("--concurrency", f"must be at most {_MOST_AT_A_TIME} requests at a time")
        return [Load(concurrency=number) for number in self.concurrency]

    def _limit(self, loads: list[Load], rounds: int, answers: Lengths) -> None:
        """Refuse loads whose times do not fit in memory."""
        for load in loads:
            requests = self.requests or load.requests
            if requests * rounds > _MOST_REQUESTS or requests * rounds * answers.most > _MOST_TIMES:
                raise UnusableInput(
                    f"{requests} requests of {load.label}, {rounds} times, with answers of up to {answers.most} "
                    "tokens: their times do not fit in memory. Lower --requests, --rounds or --output-tokens."
                )


class _Plan(NamedTuple):
    """What is measured, read from the options."""

    command: BenchCommand
    targets: list[Target]
    """One server, or two that are compared."""
    loads: list[Load]
    rounds: int
    words: Lengths
    answers: Lengths
    given: list[Any] | None
    """Prompts of a file, instead of random words."""
    bounds: Mapping[str, float]
    fields: Mapping[str, Any]
    """Further members of every body."""


async def _measure(plan: _Plan, out: Console) -> list[Point]:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(_client(plan, target)) for target in plan.targets]
        senders = [
            await _ready(client, plan, target) for client, target in zip(clients, plan.targets, strict=True)
        ]
        points = []
        for load in plan.loads:
            runs: list[list[LoadRun]] = [[] for _ in senders]
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


async def _round(plan: _Plan, load: Load, sender: Sender, number: int) -> LoadRun:
    # All servers get the same prompts in a round, and every round others.
    seed = plan.command.seed * 1_000_003 + number
    asked = prompts(seed, plan.words, plan.answers, plan.given)
    return await apply(load, sender.send, asked, plan.command.requests or load.requests, seed)


async def _ready(client: httpx2.AsyncClient, plan: _Plan, target: Target) -> Sender:
    """Make a sender, and send one request that is not measured: servers compile or load on their first one."""
    api = APIS[plan.command.api]
    fields = {"model": target.model, **plan.fields}
    sender = Sender(client, joined(target.base_url, api.path), api, fields, plan.command.timeout)
    sample = await sender.send(*next(prompts(plan.command.seed - 1, plan.words, plan.answers, plan.given)))
    if sample.error:
        base = "chat template" in sample.error and plan.command.api != "completions"
        hint = " Measure a base model with --api completions." if base else ""
        raise UnusableInput(f"{target.base_url} did not answer the first request: {sample.error}{hint}")
    if not sample.pieces:
        raise UnusableInput(f"{target.base_url} sent an answer without text, so nothing can be measured.")
    return sender


def _client(plan: _Plan, target: Target) -> httpx2.AsyncClient:
    """Return a client of one server, with its key and headers."""
    headers = dict(target.headers)
    if target.api_key:
        # The second is the name of Messages; other APIs ignore it.
        headers |= {"authorization": f"Bearer {target.api_key}", "x-api-key": target.api_key}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(limits=limits, timeout=plan.command.timeout, headers=headers, trust_env=False)


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


def _notes(plan: _Plan, points: Sequence[Point]) -> Iterator[str]:
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
