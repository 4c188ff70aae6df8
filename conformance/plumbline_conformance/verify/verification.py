"""Send the rows to a server, compare its answers with the baseline, and find the causes of differences."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from plumbline_conformance.client.first_model import named
from plumbline_conformance.client.http import sender
from plumbline_conformance.client.options import fields_of
from plumbline_conformance.console.command import OptionGroup
from plumbline_conformance.console.options import AtLeastOne, Describe, UnusableInput
from plumbline_conformance.recording.redaction import redacted_exchange, redacted_url
from plumbline_conformance.reports.conclude import File
from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.suite.scenario import Request, Target
from plumbline_conformance.transcript.answer_fold import fold
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.verify.causes import (
    Cause,
    Probes,
    Read,
    Readers,
    Send,
    limit_cause,
    template_cause,
)
from plumbline_conformance.verify.formats import html, junit, lines
from plumbline_conformance.verify.report import Asked, Findings, findings_of
from plumbline_conformance.verify.samples import (
    AnswerFacts,
    Row,
    line_of,
    read_results,
    read_samples,
    result_of,
)

__all__ = ["VerifiedRows", "run_verify", "verify"]


_rows = partial(Describe, "against rows")


class VerifiedRows(OptionGroup, frozen=True, kw_only=True):
    """What is asked of each row, and what the answers are compared with."""

    baselines: Annotated[
        tuple[Path, ...],
        _rows(
            "results of the server to compare with, in its format; repeatable, for several runs",
            "RESULTS.JSONL",
            name="baseline",
            reads=True,
        ),
    ] = ()
    rows: Annotated[tuple[AtLeastOne, ...], _rows("only this line; repeatable", "N", name="row")] = ()
    repeats: Annotated[
        AtLeastOne, _rows("answers to each row; with one, only the number of calls can be tested", "N")
    ] = 3
    body: Annotated[
        str,
        _rows("further fields of every request, such as '{\"temperature\": 0.6}'", "JSON", default="none"),
    ] = "{}"
    tool_parser: Annotated[
        str,
        _rows(
            "the dialect of the model's calls, to read raw texts",
            "NAME",
            default="by the template that the server shows",
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str, _rows("the dialect of the model's thinking", "NAME", default="likewise")
    ] = "auto"
    results: Annotated[
        File, _rows("write the answers; the file can be a baseline later", "FILE", writes=True)
    ] = None
    junit: Annotated[File, _rows("write JUnit XML", "FILE", writes=True)] = None
    html: Annotated[File, _rows("write one self-contained page", "FILE", writes=True)] = None

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of every request."""
        return fields_of(self.body)


def _redacted(target: Target, send: Send) -> Send:
    """Redact the credentials that servers repeat in their answers, because answers are written to files."""
    secrets = [target.api_key] if target.api_key else []

    async def sent(request: Request) -> Exchange:
        return redacted_exchange(await send(request), secrets)

    return sent


class _Asking:
    """Send rows, and keep what the answers show."""

    def __init__(
        self, target: Target, fields: Mapping[str, Any], file: TextIO | None, concurrency: int
    ) -> None:
        self._target = target
        self._fields = fields
        self._file = file
        self._turn = asyncio.Semaphore(concurrency)

    async def ask(self, row: Row, send: Any) -> AnswerFacts:
        """Send a row once."""
        body = {**row.body, **self._fields, "model": self._target.model}
        if body.get("stream") is True and isinstance(body.get("stream_options", {}), dict):
            # Its last chunk has the tokens of the prompt.
            body["stream_options"] = {**body.get("stream_options", {}), "include_usage": True}
        async with self._turn:
            began = time.monotonic()
            exchange: Exchange = await send(Request(path="/chat/completions", json=body))
            seconds = time.monotonic() - began
        result = _result(row, exchange)
        if self._file is not None:
            self._file.write(line_of(row, _response(exchange), result, seconds) + "\n")
        return result


def _result(row: Row, exchange: Exchange) -> AnswerFacts:
    if exchange.error is not None:
        return AnswerFacts(row=row.number, error=exchange.error[:500])
    if exchange.status != 200:
        error = exchange.json.get("error") if isinstance(exchange.json, dict) else None
        message = error.get("message") if isinstance(error, dict) else ""
        return AnswerFacts(row=row.number, error=f"status {exchange.status}: {message}"[:500])
    return result_of(row, fold("chat", exchange))


def _response(exchange: Exchange) -> Any:
    """Return the answer as a whole chat completion, for a results file."""
    if exchange.status != 200 or not exchange.chunks:
        return exchange.json
    answer = fold("chat", exchange)
    return {
        "object": "chat.completion",
        "choices": [
            {
                "index": number,
                "message": {
                    "role": "assistant",
                    "content": choice.content,
                    "tool_calls": [
                        {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                        for call in choice.calls
                    ],
                },
                "finish_reason": choice.finish_reason,
            }
            for number, choice in enumerate(answer.choices)
        ],
        "usage": answer.usage,
    }


async def verify(
    target: Target,
    samples: Path,
    wanted: VerifiedRows,
    readers: Readers | None,
    shown: Progress | None = None,
    *,
    concurrency: int = 4,
    patience: float = 600.0,
) -> Findings:
    """Ask a server, and judge its answers.

    Args:
        target: the server.
        samples: the rows.
        wanted: what is asked of them.
        readers: makes what reads raw text; without it no parser is found to be the cause.
        shown: shows the progress.
        concurrency: requests at a time.
        patience: seconds to wait for an answer.

    Raises:
        UnusableInput: a file cannot be read, or no dialect has the name of a parser.
        OSError: the results cannot be written.
    """
    if readers is not None:
        try:  # A wrong name would else be found after all rows were asked.
            readers(wanted.tool_parser, wanted.reasoning_parser, "")
        except ValueError as error:
            raise UnusableInput(str(error)) from None
    fields = wanted.fields
    rows = {row.number: row for row in read_samples(samples)}
    baseline: dict[int, list[AnswerFacts]] = {number: [] for number in rows}
    for path in wanted.baselines:
        for result in read_results(path, rows):
            baseline[result.row].append(result)
    target = await named(target)
    chosen = [row for number, row in rows.items() if not wanted.rows or number in wanted.rows]
    async with AsyncExitStack() as stack:
        send = _redacted(target, await stack.enter_async_context(sender(target, patience)))
        beside = msgspec.structs.replace(target, base_url=_without_version(target.base_url))
        send_beside = _redacted(beside, await stack.enter_async_context(sender(beside, patience)))
        file = (
            None
            if wanted.results is None
            else stack.enter_context(wanted.results.open("w", encoding="utf-8"))
        )
        asking = _Asking(target, fields, file, concurrency)
        task = None if shown is None else shown.add_task("", total=len(chosen) * wanted.repeats)

        async def one(row: Row) -> AnswerFacts:
            result = await asking.ask(row, send)
            if shown is not None and task is not None:
                shown.advance(task)
            return result

        answers = await asyncio.gather(*(one(row) for _ in range(wanted.repeats) for row in chosen))
        server: dict[int, list[AnswerFacts]] = {row.number: [] for row in chosen}
        for result in answers:
            server[result.row].append(result)
        asked = [
            Asked(row, baseline[row.number], server[row.number], _command(target, samples, wanted, row))
            for row in chosen
        ]
        name = redacted_url(target.base_url)
        probes = Probes(send, send_beside, target.model, partial(_read, wanted, readers), fields)
        return findings_of(asked, await _causes(asked, probes, name), name)


def _read(wanted: VerifiedRows, readers: Readers | None, template: str) -> Read | None:
    if readers is None or (wanted.tool_parser == "auto" and not template):
        return None
    return readers(wanted.tool_parser, wanted.reasoning_parser, template)


async def _causes(asked: Sequence[Asked], probes: Probes, server: str) -> list[Cause]:
    """Find the causes of what is worse; weights are one only if no other is found."""
    found = findings_of(asked, (), server)
    worse = [figure for figure in found.figures if figure.verdict == "worse" and figure.name != "answered"]
    by_row = {one.row.number: one for one in asked}
    causes = [
        template_cause({number: (one.baseline, one.server) for number, one in by_row.items()}),
        limit_cause({number: (one.row, one.server) for number, one in by_row.items()}),
        await probes.sampling([one.row for one in asked if any(not each.error for each in one.server)]),
    ]
    with_tools = [by_row[failure.row].row for failure in found.failures if by_row[failure.row].row.tools]
    if worse and with_tools:
        causes.append(await probes.parser(with_tools))
    known = [cause for cause in causes if cause is not None]
    if worse and not any(cause.kind != "unknown" for cause in known):
        names = ", ".join(figure.name for figure in worse)
        known.append(
            Cause(
                kind="weights",
                says=f"Nothing else explains what is worse ({names}): the weights, their precision or their "
                "quantisation differ, or it is another model.",
            )
        )
    return known


def _without_version(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _command(target: Target, samples: Path, wanted: VerifiedRows, row: Row) -> str:
    parts = ["plumbline", "compare", redacted_url(target.base_url), str(samples)]
    parts += ["--row", str(row.number), "--model", target.model]
    for path in wanted.baselines:
        parts += ["--baseline", str(path)]
    if wanted.fields:
        parts += ["--body", wanted.body]
    return shlex.join(parts)


def run_verify(
    target: Target,
    samples: Path,
    wanted: VerifiedRows,
    readers: Readers | None,
    *,
    out: Console,
    concurrency: int,
    patience: float,
    json_file: Path | None = None,
) -> int:
    """Verify a server, print and write what was found, and return the exit status.

    Raises:
        UnusableInput: a file cannot be read.
    """
    columns = (TextColumn("asking"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as shown:
        found = asyncio.run(
            verify(target, samples, wanted, readers, shown, concurrency=concurrency, patience=patience)
        )
    for path, text in (
        (json_file, msgspec.json.format(msgspec.json.encode(found)).decode() + "\n"),
        (wanted.junit, junit(found)),
        (wanted.html, html(found)),
    ):
        if path is not None:
            path.write_text(text, "utf-8")
    for line in lines(found):
        out.print(escape(printable(line)), highlight=False, soft_wrap=True)
    return found.status
