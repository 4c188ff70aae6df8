"""Find out why a server's answers differ from the baseline: its template, its parser, its sampling, or its weights.

Each cause has a probe of its own, so that weights are named only if nothing else explains the difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from plumbline_conformance.suite.scenario import Request
from plumbline_conformance.transcript.answer_fold import fold
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.verify.samples import AnswerFacts, Row, fits, result_of

__all__ = ["Cause", "Parsed", "Probes", "Read", "Readers", "Send", "failing", "limit_cause", "template_cause"]

Kind = Literal["template", "limit", "parser", "sampling", "weights", "unknown"]
Send = Callable[[Request], Awaitable[Exchange]]
Parsed = Sequence[tuple[str, str]]
Read = Callable[[str, Sequence[Any]], Parsed]
"""Returns the name and the arguments of each call in the raw text of a model, given the tools of its request."""
Readers = Callable[[str, str, str], Read | None]
"""Makes what reads, given the names of the dialects of calls and of thinking, and the template for `auto`."""
Json = dict[str, Any]

_ROWS_OF_PARSER = 8
_ROWS_OF_SAMPLING = 3
_TIMES = 4
"""Answers at each temperature."""
_SHORT = 48
"""Tokens of an answer that shows whether the temperature matters."""
_HOT = 2.0
_SHOWN = 400


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why rows differ."""

    kind: Kind
    says: str
    """What was found, in one sentence."""
    rows: tuple[int, ...] = ()
    """The rows that show it."""


def template_cause(rows: Mapping[int, tuple[Sequence[AnswerFacts], Sequence[AnswerFacts]]]) -> Cause | None:
    """Compare the tokens of prompts with the baseline's: they are those of the template and the tokenizer alone."""
    apart: list[tuple[int, int]] = []
    for number, (baseline, server) in rows.items():
        wanted, found = (
            {result.prompt_tokens for result in results if result.prompt_tokens is not None}
            for results in (baseline, server)
        )
        if wanted and found and wanted != found:
            apart.append((number, max(found) - max(wanted)))
    if not apart:
        return None
    number, more = max(apart, key=lambda each: abs(each[1]))
    return Cause(
        kind="template",
        says=f"The prompts of {len(apart)} rows have other numbers of tokens than the baseline's (row {number}: "
        f"{more:+d}): the chat template, its arguments, or the tokenizer is another one.",
        rows=tuple(number for number, _ in apart),
    )


def limit_cause(rows: Mapping[int, tuple[Row, Sequence[AnswerFacts]]]) -> Cause | None:
    """Look for answers that were cut before the limit that their request sets."""
    cut = [number for number, (row, server) in rows.items() if any(_is_cut(row, one) for one in server)]
    if not cut:
        return None
    return Cause(
        kind="limit",
        says=f"Answers to {len(cut)} rows end with `length` before the limit of their request: the server has a lower "
        "one of its own.",
        rows=tuple(cut),
    )


def _is_cut(row: Row, result: AnswerFacts) -> bool:
    limits = [row.body.get(name) for name in ("max_completion_tokens", "max_tokens")]
    limit = next((value for value in limits if type(value) is int), None)
    if result.finish != "length" or result.completion_tokens is None or limit is None:
        return False
    return result.completion_tokens < limit


class Probes:
    """Ask a server what shows a cause.

    Args:
        send: sends below the API's root.
        send_beside: sends beside the API's root, where servers have `/tokenize`.
        model: the name of the model.
        reader: makes what reads raw text, given the template that the server shows; None if nobody can.
        body: fields of every request.
    """

    def __init__(
        self,
        send: Send,
        send_beside: Send,
        model: str,
        reader: Callable[[str], Read | None],
        body: Mapping[str, Any],
    ) -> None:
        self._send = send
        self._send_beside = send_beside
        self._model = model
        self._reader = reader
        self._body = body

    async def parser(self, rows: Sequence[Row]) -> Cause | None:
        """Send some rows greedily as chats and as raw completions, and read the raw texts.

        Returns:
            The parser as the cause if it reads other calls than there are; an unknown cause if that cannot be found
            out; None if it reads what there is.
        """
        wrong: list[tuple[int, str]] = []
        why = ""
        read = self._reader(await self._template())
        for row in rows[:_ROWS_OF_PARSER]:
            raw, tokens, reason = await self._raw(row)
            if raw is None:
                why = why or reason
                continue
            if read is None:
                why = why or "nobody can read the raw text: give --tool-parser"
                continue
            there = list(read(raw, row.body.get("tools") or []))
            chat = await self._chat(row, {"temperature": 0, "stream": False})
            if chat is None or chat.finish == "length" or chat.prompt_tokens not in (None, tokens):
                continue  # It was cut, or had another prompt: its calls are not those of the raw text.
            if [*chat.calls] != there:
                wrong.append((row.number, f"the model wrote {raw.strip()[:_SHOWN]!r}"))
        if wrong:
            return Cause(
                kind="parser",
                says=f"The raw text of {len(wrong)} rows has other calls than their chat answers: the parser of calls "
                f"is wrong, or another model's. Row {wrong[0][0]}: {wrong[0][1]}.",
                rows=tuple(number for number, _ in wrong),
            )
        return (
            Cause(kind="unknown", says=f"Whether the parser is the cause is not known: {why}.")
            if why
            else None
        )

    async def sampling(self, rows: Sequence[Row]) -> Cause | None:
        """Ask some rows several times, cold and hot; return the cause if the temperature does not matter."""
        frozen, restless, seen = [], [], []
        for row in rows[:_ROWS_OF_SAMPLING]:
            cold = await self._several(row, 0.0)
            hot = await self._several(row, _HOT)
            if len(cold) < 2 or len(hot) < 2:
                continue
            seen.append(row.number)
            if len(set(hot)) == 1:
                frozen.append(row.number)
            if len(set(cold)) == len(cold):
                restless.append(row.number)
        if seen and frozen == seen:
            says = (
                f"{_TIMES} answers at temperature {_HOT:g} are all alike in {len(seen)} rows: it is ignored."
            )
            return Cause(kind="sampling", says=says, rows=tuple(frozen))
        if seen and restless == seen:
            says = f"{_TIMES} answers at temperature 0 all differ in {len(seen)} rows: it is ignored."
            return Cause(kind="sampling", says=says, rows=tuple(restless))
        return None

    async def _several(self, row: Row, temperature: float) -> list[tuple[Any, ...]]:
        changes = {"temperature": temperature, "stream": False, "seed": None, **_limit(row, _SHORT)}
        # Two ways in which servers restrict what is drawn, which would hide the temperature.
        changes |= {"top_p": 1, "top_k": None}
        found = await asyncio.gather(*(self._chat(row, changes) for _ in range(_TIMES)))
        return [(one.calls, one.content, one.finish) for one in found if one is not None]

    async def _chat(self, row: Row, changes: Json) -> AnswerFacts | None:
        exchange = await self._send(
            Request(path="/chat/completions", json=_body(row, self._model, {**self._body, **changes}))
        )
        if exchange.error is not None or exchange.status != 200:
            return None
        return result_of(row, fold("chat", exchange))

    async def _template(self) -> str:
        for send in (self._send_beside, self._send):
            exchange = await send(Request(path="/tokenizer_info", method="GET"))
            found = exchange.json.get("chat_template") if isinstance(exchange.json, dict) else None
            if isinstance(found, str):
                return found
        return ""

    async def _raw(self, row: Row) -> tuple[str | None, int, str]:
        """Return the text of a greedy completion of the row's prompt, with markup, or why there is none.

        Between them are the tokens of the prompt.
        """
        names = ("messages", "tools", "chat_template_kwargs")
        asked = {name: value for name in names if (value := {**row.body, **self._body}.get(name)) is not None}
        asked = {"model": self._model, "add_generation_prompt": True, **asked}
        ids: Any = None
        for send in (self._send_beside, self._send):
            exchange = await send(Request(path="/tokenize", json=asked))
            answer = exchange.json if exchange.status == 200 else None
            ids = answer.get("tokens") if isinstance(answer, dict) else None
            if isinstance(ids, list) and all(type(one) is int for one in ids):
                break
        else:
            return None, 0, "the server has no /tokenize that takes messages"
        body = {
            "model": self._model,
            "prompt": ids,
            "temperature": 0,
            "skip_special_tokens": False,
            **_limit(row, 1024),
        }
        body.pop("max_completion_tokens", None)
        exchange = await self._send(Request(path="/completions", json=body))
        if exchange.status != 200 or exchange.error is not None:
            return None, 0, "the server completes no list of tokens"
        answer = fold("completions", exchange)
        if not answer.choices:
            return None, 0, "a completion has no choice"
        return answer.choices[0].content, len(ids), ""


def _limit(row: Row, most: int) -> Json:
    """Return the token limit of a row, or this one if it is lower, under the names that the row has."""
    named = [name for name in ("max_completion_tokens", "max_tokens") if type(row.body.get(name)) is int]
    return {
        **{name: min(most, row.body[name]) for name in named},
        "max_tokens": min([most, *(row.body[name] for name in named)]),
    }


def _body(row: Row, model: str, changes: Mapping[str, Any]) -> Json:
    body = {**row.body, "model": model, **changes}
    return {name: value for name, value in body.items() if value is not None}


def failing(row: Row, baseline: Sequence[AnswerFacts], server: Sequence[AnswerFacts]) -> Iterator[str]:
    """Say what is wrong with the answers to a row."""
    for one in server:
        yield from _wrong(row, one)
    wanted = [one.triggers for one in baseline if not one.error]
    found = [one.triggers for one in server if not one.error]
    if wanted and found and len({*wanted}) == 1 and wanted[0] not in found:
        yield (
            "calls no tool, and the baseline does" if wanted[0] else "calls a tool, and the baseline does not"
        )
    if row.tools and any(one.finish == "tool_calls" and not one.calls for one in server):
        yield "ends with `tool_calls`, and has none"


def _wrong(row: Row, one: AnswerFacts) -> Iterator[str]:
    """Say what is wrong with one answer by itself."""
    if one.error:
        yield f"failed: {one.error}"
    elif not one.known:
        names = ", ".join(name for name, _ in one.calls if name not in row.tools)
        yield f"calls a tool that the request does not have: {names[:_SHOWN]}"
    elif not one.valid:
        wrong = next(text for name, text in one.calls if not fits(row.tools[name], text))
        yield f"the arguments do not match the schema: {wrong[:_SHOWN]}"
