"""`plumbline exact`: ask for every script, on every API, whole and streamed, and hold the answers against the script.

Two things are found out first: which APIs the server has, and what it reads of the markup. A server without parsers
owes the text, tags and all; one with parsers owes the message that the text means, as the script declares it. Where
the script declares none, a stream still has to say what the whole answer says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from plumbline_conformance.case import Request, Target
from plumbline_conformance.contract import rules
from plumbline_conformance.exact.demand import Miss, Reads, cut_short, demanded, misses, stopped, unlike
from plumbline_conformance.exact.reading import Reading, Surface, reading_of
from plumbline_conformance.exact.scripts import Script, ScriptSet, UnreadableScriptsError, read_scripts
from plumbline_conformance.judge import sender
from plumbline_conformance.reports.text import printable
from plumbline_conformance.transcript import Exchange

__all__ = ["Outcome", "ask", "run_exact"]

_PATHS: dict[Surface, str] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "completions": "/completions",
}
_LIMITS: dict[Surface, str] = {
    "chat": "max_tokens",
    "responses": "max_output_tokens",
    "completions": "max_tokens",
}
_TURN = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
"""What the chat template of a scripted checkpoint makes of a prompt; plain completions have none (CMP-10)."""
_SHOWN = 5
"""Examples of one facet that are printed."""

Send = Callable[[Request], Awaitable[Exchange]]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    reads: Reads
    surfaces: list[Surface]
    held: int
    """Answers of which the message is known, and was held against it."""
    compared: int
    """Streams that were held against the whole answer."""
    misses: list[Miss]


async def ask(
    target: Target, found: ScriptSet, *, concurrency: int = 4, patience: float = 60.0
) -> Outcome | None:
    """Ask for everything; None if the server has no answer to the first script."""
    async with sender(target, patience) as send:
        asking = _Asking(target.model, found, send, asyncio.Semaphore(concurrency))
        surfaces = await asking.surfaces()
        if not surfaces:
            return None
        reads = await asking.reads() if "chat" in surfaces else Reads(thinking=False, calls=False)
        seen = await asyncio.gather(
            *(asking.one(script, surface, reads) for surface in surfaces for script in found.scripts)
        )
    return Outcome(
        reads=reads,
        surfaces=surfaces,
        held=sum(each.held for each in seen),
        compared=sum(each.compared for each in seen),
        misses=[miss for each in seen for miss in each.misses],
    )


class _Seen(msgspec.Struct):
    """What one script showed on one API."""

    held: int = 0
    compared: int = 0
    misses: list[Miss] = msgspec.field(default_factory=list)


class _Asking:
    """Sends the requests of a run."""

    def __init__(self, model: str, found: ScriptSet, send: Send, slots: asyncio.Semaphore) -> None:
        self._model = model
        self._found = found
        self._send = send
        self._slots = slots
        self._tools = _tools(found)

    async def surfaces(self) -> list[Surface]:
        """The APIs that answer."""
        first = self._found.scripts[0]
        has = {surface: (await self._ask(surface, first)).status for surface in _PATHS}
        return [surface for surface, status in has.items() if status == 200]

    async def reads(self) -> Reads:
        """What the server reads: a thought that ends is not in the text, and a call is a call."""
        thought = next((s for s in self._found.scripts if s.message and s.message.reasoning), None)
        called = next((s for s in self._found.scripts if s.message and s.message.tool_calls), None)
        plain = next((s for s in self._found.scripts if self._found.is_plain(s) and s.output.strip()), None)
        thinking = calls = from_within = False
        if plain is not None:
            reading = reading_of("chat", await self._ask("chat", plain))
            from_within = reading is not None and bool(reading.reasoning) and not reading.content
        if thought is not None:
            reading = reading_of("chat", await self._ask("chat", thought))
            thinking = reading is not None and bool(reading.reasoning)
        if called is not None:
            exchange = await self._ask("chat", called)
            reading = reading_of("chat", exchange)
            calls = reading is not None and bool(reading.calls)
            if exchange.status == 400:  # A server without a parser may refuse tools.
                self._tools = []
        return Reads(thinking=thinking, calls=calls, from_within=from_within)

    async def one(self, script: Script, surface: Surface, reads: Reads) -> _Seen:
        """Everything about a script on one API."""
        seen = _Seen()
        wanted = demanded(self._found, script, surface, reads)
        exact = wanted is not None and wanted.content == script.output

        def hold(how: str, reading: Reading) -> Iterator[Miss]:
            if wanted is not None:
                seen.held += 1
                yield from misses(script, surface, how, wanted, reading, exact=exact)

        await self._pair(seen, script, surface, "whole", {}, hold)
        if script.stop and exact and surface != "responses":

            def hold_stopped(how: str, reading: Reading) -> Iterator[Miss]:
                assert wanted is not None
                seen.held += 1
                shorter = stopped(wanted, script.stop)
                yield from misses(script, surface, "stopped", shorter, reading, exact=True)

            await self._pair(seen, script, surface, "stopped", {"stop": [*script.stop]}, hold_stopped)
        if script.max_tokens is not None:

            def hold_cut(how: str, reading: Reading) -> Iterator[Miss]:
                seen.held += 1
                yield from cut_short(script, surface, wanted, reading)

            await self._pair(seen, script, surface, "cut", {_LIMITS[surface]: script.max_tokens}, hold_cut)
        return seen

    async def _pair(
        self,
        seen: _Seen,
        script: Script,
        surface: Surface,
        how: str,
        more: dict[str, Any],
        hold: Callable[[str, Reading], Iterator[Miss]],
    ) -> None:
        """One request in both modes: each against the script, and the one against the other."""
        readings: list[Reading] = []
        for stream in (False, True):
            name = "streamed" if stream and how == "whole" else how
            exchange = await self._ask(surface, script, stream=stream, **more)
            reading = reading_of(surface, exchange)
            if reading is None:
                seen.misses.append(_no_message(script, surface, name, exchange))
                continue
            readings.append(reading)
            seen.misses += hold(name, reading)
        if len(readings) == 2:
            seen.compared += 1
            seen.misses += unlike(script, surface, how, *readings)

    async def _ask(self, surface: Surface, script: Script, **more: Any) -> Exchange:
        body: dict[str, Any] = {"model": self._model, "temperature": 0}
        match surface:
            case "chat":
                body["messages"] = [{"role": "user", "content": script.prompt}]
            case "responses":
                body["input"] = script.prompt
                body["store"] = False
            case "completions":
                body["prompt"] = _TURN.format(prompt=script.prompt)
                body["max_tokens"] = (
                    len(script.output.encode()) + 1
                )  # No token is less than a byte, but for the end.
        if self._tools and surface != "completions" and not self._found.is_plain(script):
            shape = {"type": "function"}
            tools = [
                {**shape, "function": tool} if surface == "chat" else {**shape, **tool}
                for tool in self._tools
            ]
            body["tools"] = tools
        async with self._slots:
            return await self._send(Request(path=_PATHS[surface], json={**body, **more}))


def _tools(found: ScriptSet) -> list[dict[str, Any]]:
    """The tools that the scripts call, each with the types of the arguments that it is ever given."""
    known: dict[str, dict[str, set[str]]] = {}
    for call in (call for script in found.scripts if script.message for call in script.message.tool_calls):
        given = known.setdefault(call.name, {})
        for name, value in call.arguments.items():
            given.setdefault(name, set()).add(_type_of(value))
    return [
        {
            "name": name,
            "description": f"A tool that scripts call: {name}.",
            "parameters": {
                "type": "object",
                "properties": {
                    key: {"type": next(iter(types))} if len(types) == 1 else {}
                    for key, types in given.items()
                },
            },
        }
        for name, given in known.items()
    ]


def _type_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _no_message(script: Script, surface: Surface, how: str, exchange: Exchange) -> Miss:
    said = exchange.error or f"status {exchange.status}: {exchange.body[:200].decode(errors='replace')}"
    return Miss(
        rule="ERR-02",
        facet="answer",
        script=script.title,
        surface=surface,
        how=how,
        wanted="a message",
        got=said,
    )


def run_exact(
    target: Target,
    path: Path,
    *,
    out: Console,
    concurrency: int = 4,
    patience: float = 60.0,
    json_file: Path | None = None,
) -> int:
    """Hold a server to a script set, print, write. 0 exact, 1 not, 2 nothing could be asked."""
    try:
        found = read_scripts(path)
    except UnreadableScriptsError as error:
        out.print(escape(printable(str(error))))
        return 2
    outcome = asyncio.run(ask(target, found, concurrency=concurrency, patience=patience))
    if outcome is None:
        out.print(f"{escape(target.base_url)} has no answer to {escape(repr(found.scripts[0].prompt))}.")
        return 2
    read = {"thinking": outcome.reads.thinking, "calls": outcome.reads.calls}
    out.print(
        f"APIs: {', '.join(outcome.surfaces)}. Read of the markup: "
        f"{', '.join(name for name, yes in read.items() if yes) or 'nothing, so that tags are text'}."
    )
    if outcome.reads.from_within:
        out.print(
            "It takes every answer to begin inside of a thought: of those that have none, nothing is demanded."
        )
    for rule, group in groupby(sorted(outcome.misses, key=lambda m: (m.rule, m.facet)), lambda m: m.rule):
        _print_rule(out, rule, list(group))
    wrong = len({(miss.script, miss.surface) for miss in outcome.misses})
    out.print(
        f"{len(found.scripts)} scripts: {outcome.held} answers held against their message, {outcome.compared} streams "
        f"against the whole answer; {len(outcome.misses)} differences in {wrong} scripts and APIs"
    )
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(msgspec.to_builtins(outcome), indent=1) + "\n", "utf-8")
        except OSError as error:
            out.print(f"The differences cannot be written: {escape(printable(str(error)))}")
            return 2
    return 1 if outcome.misses else 0


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
