"""The requests of `plumbline exact`, and what is found out by them before anything is held against a script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from plumbline_conformance.exact.answer import Surface, answer_of
from plumbline_conformance.exact.demand import Miss, Reads
from plumbline_conformance.exact.scripts import Script, ScriptSet
from plumbline_conformance.suite.model import Request
from plumbline_conformance.transcript.model import Exchange

__all__ = ["Found", "Requester", "Send", "no_message"]

_PATHS: dict[Surface, str] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "completions": "/completions",
}
_ABSENT = frozenset({404, 405, 501})
"""The statuses by which a server says that it does not have an API."""
_TURN = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
"""What the chat template of a scripted checkpoint makes of a prompt; plain completions have none (CMP-10)."""
_ROOM = 16
"""Tokens beyond one for each byte, for the end of the turn and whatever else a server counts."""

Send = Callable[[Request], Awaitable[Exchange]]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The APIs of a server."""

    surfaces: list[Surface]
    misses: list[Miss]
    """One for each API that the server seems to have, and that still has no answer to the first script."""
    reached: bool
    """Whether there was any response at all."""


class Requester:
    """Sends the requests of a run."""

    def __init__(self, model: str, found: ScriptSet, send: Send, slots: asyncio.Semaphore) -> None:
        self._model = model
        self._found = found
        self._send = send
        self._slots = slots
        tools = _tools(found)
        self._tools: dict[Surface, list[dict[str, Any]]] = {"chat": tools, "responses": tools}

    async def surfaces(self) -> Found:
        """The APIs that answer, asked without tools, which a server may refuse and still have the API."""
        first = self._found.scripts[0]
        seen = {surface: await self.ask(surface, first, tools=False) for surface in _PATHS}
        return Found(
            surfaces=[surface for surface, exchange in seen.items() if exchange.status == 200],
            misses=[
                no_message(first, surface, "whole", exchange)
                for surface, exchange in seen.items()
                if exchange.status not in (200, *_ABSENT)
            ],
            reached=any(exchange.status for exchange in seen.values()),
        )

    async def reads(self, surface: Surface) -> Reads:
        """What an API reads: a thought that ends is not in the text, and a call is a call.

        Each API is asked by itself, because servers have parsers on one of them and not on the other.
        """
        if surface == "completions":
            return Reads(thinking=False, calls=False)
        known = [script for script in self._found.scripts if not self._found.is_open(script)]
        plain = next((s for s in known if self._found.is_plain(s) and s.output.strip()), None)
        thought = next((s for s in known if s.message and s.message.reasoning), None)
        called = next((s for s in known if s.message and s.message.tool_calls), None)
        thinking = calls = from_within = False
        if plain is not None:
            answer = answer_of(surface, await self.ask(surface, plain, tools=False))
            from_within = answer is not None and bool(answer.reasoning) and not answer.content
        if thought is not None:
            answer = answer_of(surface, await self.ask(surface, thought, tools=False))
            thinking = answer is not None and bool(answer.reasoning)
        if called is not None:
            exchange = await self.ask(surface, called)
            if (
                exchange.status != 200
            ):  # A server without a parser may refuse tools, and says so in many ways.
                self._tools[surface] = []
                exchange = await self.ask(surface, called)
            answer = answer_of(surface, exchange)
            calls = answer is not None and bool(answer.calls)
        return Reads(thinking=thinking, calls=calls, from_within=from_within)

    async def ask(self, surface: Surface, script: Script, *, tools: bool = True, **more: Any) -> Exchange:
        """Ask an API for a script, with the tools if it has markup and the server takes them."""
        body: dict[str, Any] = {"model": self._model, "temperature": 0}
        match surface:
            case "chat":
                body["messages"] = [{"role": "user", "content": script.prompt}]
            case "responses":
                body["input"] = script.prompt
                body["store"] = False
            case "completions":
                body["prompt"] = _TURN.format(prompt=script.prompt)
                # The default is 16 tokens. None of the answer is less than a byte.
                body["max_tokens"] = len(script.output.encode()) + _ROOM
        if tools and self._tools.get(surface) and not self._found.is_plain(script):
            shape = {"type": "function"}
            body["tools"] = [
                {**shape, "function": tool} if surface == "chat" else {**shape, **tool}
                for tool in self._tools[surface]
            ]
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


def no_message(script: Script, surface: Surface, how: str, exchange: Exchange) -> Miss:
    """The miss of an exchange in which there is no message to be held against a script."""
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
