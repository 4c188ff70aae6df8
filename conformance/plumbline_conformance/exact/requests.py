"""Send the requests for scripts, and find out which APIs a server has and which markup each parses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from plumbline_conformance.exact.answer import ReceivedAnswer, Surface, answer_of
from plumbline_conformance.exact.demand import Miss, Reads
from plumbline_conformance.exact.scripts import Script, ScriptSet
from plumbline_conformance.suite.scenario import Request
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["Requester", "Send", "ServerApis", "no_message"]

_PATHS: dict[Surface, str] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "completions": "/completions",
}
_ABSENT = frozenset({404, 405, 501})
"""Statuses of an API that does not exist."""
_TURN = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
"""The rendered chat template of a scripted checkpoint; plain completions apply no template (CMP-10)."""
_EXTRA_TOKENS = 16
"""Tokens beyond one per byte of the output, for the end of the turn and whatever else a server counts."""

Send = Callable[[Request], Awaitable[Exchange]]


class ServerApis(msgspec.Struct, frozen=True, kw_only=True):
    """The APIs of a server."""

    surfaces: list[Surface]
    misses: list[Miss]
    """One difference for each API that exists and failed to answer the first script."""
    reached: bool
    """Whether the server sent any response."""


class Requester:
    """Send the requests of a run."""

    def __init__(self, model: str, found: ScriptSet, send: Send, slots: asyncio.Semaphore) -> None:
        self._model = model
        self._found = found
        self._send = send
        self._slots = slots
        tools = _tools(found)
        self._tools: dict[Surface, list[dict[str, Any]]] = {"chat": tools, "responses": tools}

    async def surfaces(self) -> ServerApis:
        """Find out which APIs answer, without tools, which a server may refuse."""
        first = self._found.scripts[0]
        seen = {surface: await self.ask(surface, first, tools=False) for surface in _PATHS}
        return ServerApis(
            surfaces=[surface for surface, exchange in seen.items() if exchange.status == 200],
            misses=[
                no_message(first, surface, "whole", exchange)
                for surface, exchange in seen.items()
                if exchange.status not in (200, *_ABSENT)
            ],
            reached=any(exchange.status for exchange in seen.values()),
        )

    async def reads(self, surface: Surface) -> Reads:
        """Find out which markup an API parses: thinking into reasoning, calls into tool calls.

        Each API is asked separately, because some servers parse on one of them only.
        """
        if surface == "completions":
            return Reads(thinking=False, calls=False)
        known = [script for script in self._found.scripts if not self._found.is_open(script)]
        plain = next((s for s in known if self._found.is_plain(s) and s.output.strip()), None)
        thought = next((s for s in known if s.message and s.message.reasoning), None)
        called = next((s for s in known if s.message and s.message.tool_calls), None)
        text = await self._answer_without_tools(surface, plain)
        thoughts = await self._answer_without_tools(surface, thought)
        return Reads(
            thinking=thoughts is not None and bool(thoughts.reasoning),
            calls=called is not None and await self._parses_calls(surface, called),
            from_within=text is not None and bool(text.reasoning) and not text.content,
        )

    async def _answer_without_tools(self, surface: Surface, script: Script | None) -> ReceivedAnswer | None:
        return None if script is None else answer_of(surface, await self.ask(surface, script, tools=False))

    async def _parses_calls(self, surface: Surface, called: Script) -> bool:
        exchange = await self.ask(surface, called)
        if exchange.status != 200:  # A server without a parser may refuse tools, with various statuses.
            self._tools[surface] = []
            exchange = await self.ask(surface, called)
        answer = answer_of(surface, exchange)
        return answer is not None and bool(answer.calls)

    async def ask(self, surface: Surface, script: Script, *, tools: bool = True, **more: Any) -> Exchange:
        """Send the prompt of a script, with tools if its output has markup and the server accepts tools."""
        body: dict[str, Any] = {"model": self._model, "temperature": 0}
        match surface:
            case "chat":
                body["messages"] = [{"role": "user", "content": script.prompt}]
            case "responses":
                body["input"] = script.prompt
                body["store"] = False
            case "completions":
                body["prompt"] = _TURN.format(prompt=script.prompt)
                # The default is 16 tokens. A token of the answer has at least one byte.
                body["max_tokens"] = len(script.output.encode()) + _EXTRA_TOKENS
        if tools and self._tools.get(surface) and not self._found.is_plain(script):
            shape = {"type": "function"}
            body["tools"] = [
                {**shape, "function": tool} if surface == "chat" else {**shape, **tool}
                for tool in self._tools[surface]
            ]
        async with self._slots:
            return await self._send(Request(path=_PATHS[surface], json={**body, **more}))


def _tools(found: ScriptSet) -> list[dict[str, Any]]:
    """Declare the tools that the scripts call, with the types of the arguments in the scripts."""
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
    """Report an exchange without a message to compare."""
    answer = exchange.error or f"status {exchange.status}: {exchange.body[:200].decode(errors='replace')}"
    return Miss(
        rule="ERR-02",
        facet="answer",
        script=script.title,
        surface=surface,
        how=how,
        wanted="a message",
        got=answer,
    )
