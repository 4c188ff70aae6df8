"""Send every script to every API, whole and streamed, and compare the answers with the scripts (`plumbline compare`).

First it finds out which APIs the server has and which markup each of them parses. A server without parsers must
return the text with its tags; a server with parsers must return the message that the script declares. Even if the
script declares no message, the stream must equal the whole answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from plumbline_conformance.client.first_model import with_model
from plumbline_conformance.client.http import exchange_of, sender
from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.exact.answer import ReceivedAnswer, Surface, answer_of
from plumbline_conformance.exact.demand import Miss, Reads, cut_short, demanded, misses, stopped, unlike
from plumbline_conformance.exact.requests import Requester, no_message
from plumbline_conformance.exact.scripts import Script, ScriptSet, load
from plumbline_conformance.recording.redaction import concealed, redacted_url, secrets_of
from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import Request, Target

__all__ = ["ExactOutcome", "ask", "run_exact"]

_LIMITS: dict[Surface, str] = {
    "chat": "max_tokens",
    "responses": "max_output_tokens",
    "completions": "max_tokens",
}
_REFUSED = frozenset({400, 422})
"""A server may refuse stop sequences, or some of them; then nothing is compared."""
_SHOWN = 5
"""Examples of one facet that are printed."""


class ExactOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run; `--json` writes it."""

    reads: dict[Surface, Reads]
    """The APIs that answer, and the markup that each parses."""
    checked: int
    """Answers that were compared with the expected message."""
    compared: int
    """Streams that were compared with the whole answer."""
    misses: list[Miss]


async def ask(
    target: Target, found: ScriptSet, *, concurrency: int = 4, patience: float = 60.0
) -> ExactOutcome | None:
    """Send every script to every API; return None if the server cannot be reached or does not have any of the APIs."""
    async with sender(target, patience) as send:
        requester = Requester(target.model, found, send, asyncio.Semaphore(concurrency))
        has = await requester.surfaces()
        if not has.reached or not (has.surfaces or has.misses):
            return None
        reads = {surface: await requester.reads(surface) for surface in has.surfaces}
        seen = await asyncio.gather(
            *(
                _Comparison(requester, found, surface, each).one(script)
                for surface, each in reads.items()
                for script in found.scripts
            )
        )
    return ExactOutcome(
        reads=reads,
        checked=sum(each.checked for each in seen),
        compared=sum(each.compared for each in seen),
        misses=[
            _concealed(miss, target) for miss in (*has.misses, *(one for each in seen for one in each.misses))
        ],
    )


def _concealed(miss: Miss, target: Target) -> Miss:
    """Redact the API key, which a server may repeat; the comparison itself used the original answers."""
    secrets = secrets_of(exchange_of(target, Request(path="/")), [target.api_key] if target.api_key else [])
    return msgspec.structs.replace(
        miss, wanted=concealed(miss.wanted, secrets), got=concealed(miss.got, secrets)
    )


class _Seen(msgspec.Struct):
    """The results of one script on one API."""

    checked: int = 0
    compared: int = 0
    misses: list[Miss] = msgspec.field(default_factory=list)


class _Comparison:
    """Compare the answers of one API with the scripts."""

    def __init__(self, requester: Requester, found: ScriptSet, surface: Surface, reads: Reads) -> None:
        self._requester = requester
        self._found = found
        self._surface = surface
        self._reads = reads

    async def one(self, script: Script) -> _Seen:
        """Compare the answers to one script: the whole one, and those cut by stop sequences and a token limit."""
        seen = _Seen()
        surface = self._surface
        wanted = demanded(self._found, script, surface, self._reads)
        exact = wanted is not None and wanted.content == script.output

        def compare(how: str, answer: ReceivedAnswer) -> Iterator[Miss]:
            if wanted is not None:
                seen.checked += 1
                yield from misses(script, surface, how, wanted, answer, exact=exact)

        await self._pair(seen, script, "whole", {}, compare, exact=exact)
        if script.stop and exact and surface != "responses":

            def compare_stopped(how: str, answer: ReceivedAnswer) -> Iterator[Miss]:
                assert wanted is not None
                seen.checked += 1
                shorter = stopped(wanted, script.stop)
                yield from misses(script, surface, "stopped", shorter, answer, exact=True)

            await self._pair(seen, script, "stopped", {"stop": [*script.stop]}, compare_stopped, exact=True)
        if script.max_tokens is not None:

            def compare_cut(how: str, answer: ReceivedAnswer) -> Iterator[Miss]:
                if not self._found.is_open(script):
                    seen.checked += 1
                    yield from cut_short(script, surface, wanted, answer, exact=exact)

            limit = {_LIMITS[surface]: script.max_tokens}
            await self._pair(seen, script, "cut", limit, compare_cut, exact=exact)
        return seen

    async def _pair(
        self,
        seen: _Seen,
        script: Script,
        how: str,
        more: dict[str, Any],
        compare: Callable[[str, ReceivedAnswer], Iterator[Miss]],
        *,
        exact: bool,
    ) -> None:
        """Send one request whole and streamed; compare each with the script, and one with the other."""
        answers: list[ReceivedAnswer] = []
        for stream in (False, True):
            name = "streamed" if stream and how == "whole" else how
            exchange = await self._requester.ask(self._surface, script, stream=stream, **more)
            if how == "stopped" and exchange.status in _REFUSED:
                continue
            answer = answer_of(self._surface, exchange)
            if answer is None:
                seen.misses.append(no_message(script, self._surface, name, exchange))
                continue
            answers.append(answer)
            seen.misses += compare(name, answer)
        if len(answers) == 2:
            seen.compared += 1
            seen.misses += unlike(script, self._surface, how, *answers, exact=exact)


def run_exact(
    target: Target,
    path: Path,
    *,
    out: Console,
    concurrency: int = 4,
    patience: float = 60.0,
    json_file: Path | None = None,
) -> int:
    """Compare a server with a script set, print and write the result.

    Returns:
        The exit status: 0 without differences, 1 with some.

    Raises:
        UnusableInput: the scripts cannot be read, or nothing could be compared.
    """
    found = load(path)
    target = with_model(target)
    outcome = asyncio.run(ask(target, found, concurrency=concurrency, patience=patience))
    if outcome is None:
        prompt = found.scripts[0].prompt
        raise UnusableInput(f"URL {redacted_url(target.base_url)} has no answer to {prompt!r}")
    out.print(f"APIs: {', '.join(outcome.reads) or 'none'}. {_parsed_markup(outcome.reads)}")
    within = [surface for surface, reads in outcome.reads.items() if reads.from_within]
    if within:
        out.print(
            f"The server's parser starts every answer ({', '.join(within)}) inside reasoning: answers without "
            "reasoning are not compared with their script."
        )
    for rule, group in groupby(sorted(outcome.misses, key=lambda m: (m.rule, m.facet)), lambda m: m.rule):
        _print_rule(out, rule, list(group))
    wrong = len({(miss.script, miss.surface) for miss in outcome.misses})
    out.print(
        f"{len(found.scripts)} scripts: {outcome.checked} answers compared with their message, {outcome.compared} "
        f"streams with the whole answer; {len(outcome.misses)} differences in {wrong} scripts and APIs"
    )
    if json_file is not None:
        json_file.write_text(json.dumps(msgspec.to_builtins(outcome), indent=1) + "\n", "utf-8")
    return 1 if outcome.misses else 0


def _parsed_markup(reads: dict[Surface, Reads]) -> str:
    """Describe the parsed markup in one sentence, or in one for each API if they differ."""
    by_markup: dict[str, list[str]] = {}
    for surface, each in reads.items():
        if surface != "completions":
            names = [name for name, yes in (("thinking", each.thinking), ("calls", each.calls)) if yes]
            by_markup.setdefault(", ".join(names) or "nothing, tags are text", []).append(surface)
    if len(by_markup) <= 1:
        return f"Parsed markup: {next(iter(by_markup), 'nothing, tags are text')}."
    return " ".join(f"Parsed markup of {' and '.join(apis)}: {markup}." for markup, apis in by_markup.items())


def _print_rule(out: Console, rule: str, found: list[Miss]) -> None:
    out.print(f"[bold]{rule}[/] {escape(rules()[rule]['sentence'])}")
    for facet, group in groupby(found, lambda miss: miss.facet):
        kind = list(group)
        out.print(f"    {facet}: {len(kind)}")
        for miss in kind[:_SHOWN]:
            out.print(f"        {escape(printable(miss.script))}, {miss.surface}, {miss.how}")
            names = ("whole   ", "streamed") if facet == "streamed" else ("wanted", "got   ")
            for name, value in zip(names, (miss.wanted, miss.got), strict=True):
                out.print(f"            {name} {escape(printable(value))}")
        if len(kind) > _SHOWN:
            out.print(f"        and {len(kind) - _SHOWN} more")
