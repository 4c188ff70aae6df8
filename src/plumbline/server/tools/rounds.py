"""Answer a turn in rounds: generate, call the tools of remote servers that the answer asks for, generate again.

All rounds are one answer: one sequence of events that ends with one `Finish`, whose usage is their sum. A call is made
when its arguments are whole, and its result is written before anything else, so that items never overlap.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

import msgspec

from plumbline.answer.events import (
    ApprovalNeeded,
    Finish,
    MessageEnd,
    OutputEvent,
    RemoteCallEnd,
    RemoteCallStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolsListed,
    ToolsListing,
    Usage,
)
from plumbline.answer.remote_tools import (
    ApprovedCall,
    Offered,
    RemoteError,
    RemoteResult,
    RemoteServer,
    RemoteTool,
    RemoteTools,
    offered_tools,
    result_text,
    shown_name,
)
from plumbline.answer.turn import (
    ChatPrompt,
    Tool,
    ToolCall,
    ToolChoice,
    Turn,
    choice_among,
    with_remote_tools,
)
from plumbline.server.tools.port import RemoteCaller, RemoteFailureError, RemoteSessions
from plumbline.server.tools.round_messages import RoundMessages

__all__ = ["MAX_CALLS", "NoRoomError", "Rounds"]

MAX_CALLS = 128
"""Calls of one answer. Afterwards the model answers without these tools."""
MAX_CHARS = 8 * 1024 * 1024
"""Characters of the results of one answer. Afterwards calls fail."""

_INVALID_PARAMS = -32602

_LIMIT_REACHED = RemoteError("protocol", "The limit of calls in one answer was reached.", _INVALID_PARAMS)
_TOO_LONG = RemoteError(
    "protocol", "The results of this answer are too long for another call.", _INVALID_PARAMS
)
_BROKE_OFF = RemoteError("protocol", "The arguments of the call broke off.", _INVALID_PARAMS)
_NO_OBJECT = RemoteError("protocol", "The arguments of the call are not a JSON object.", _INVALID_PARAMS)
_NOT_FINITE = RemoteError(
    "protocol", "A number of the arguments of the call is not finite as a double.", _INVALID_PARAMS
)

Generate = Callable[[Turn], Awaitable[AsyncGenerator[OutputEvent, None]]]


class NoRoomError(Exception):
    """The prompt of a round does not fit the context; the cause is the error for a first round."""


class Rounds:
    """One answer with the tools of remote servers.

    Args:
        turn: the turn, with `remote` and a prompt of messages.
        caller: calls the tools.
        generate: prepares one round and returns its events; it raises `NoRoomError` if the prompt does not fit.
    """

    def __init__(self, turn: Turn, caller: RemoteCaller, generate: Generate) -> None:
        assert turn.remote is not None
        assert isinstance(turn.prompt, ChatPrompt)
        self._turn = turn
        self._prompt = turn.prompt
        self._remote: RemoteTools = turn.remote
        self._caller = caller
        self._generate = generate
        self._left = MAX_CALLS if self._remote.max_calls is None else min(self._remote.max_calls, MAX_CALLS)
        self._usage = Usage(0, 0)
        self._undeclared: tuple[str, ...] = ()
        self._offered: Offered = {}
        self._messages = RoundMessages(turn.prompt.messages)
        self._any_calls = False
        self._chars = 0
        """Characters of the results so far."""

    def first_turn(self) -> Turn:
        """Return the first round as far as it is known."""
        self._offer(self._remote.listed)
        return self._next_turn()

    @property
    def knows_its_first_turn(self) -> bool:
        """Whether `first_turn` is all of the first round: nothing is listed or called before it."""
        listed = self._remote.listed
        return not self._remote.approved and all(server.label in listed for server in self._remote.servers)

    async def run(self) -> AsyncGenerator[OutputEvent, None]:
        """Yield the events of the answer.

        Raises:
            Exception: what `generate` raises.
        """
        async with self._caller.sessions() as sessions:
            async with aclosing(self._before_rounds(sessions)) as events:
                async for event in events:
                    yield event
            while True:
                try:
                    source = await self._generate(self._next_turn())
                except NoRoomError as error:
                    if not self._any_calls:
                        raise error.__cause__ or error from None
                    yield Finish("length", self._usage, undeclared_tools=self._undeclared)
                    return
                current = _Round(may_call=self._left > 0)
                async with aclosing(source), aclosing(self._round(current, source, sessions)) as events:
                    async for event in events:
                        yield event
                if (finish := self._finish_after(current)) is not None:
                    yield finish
                    return
                self._messages.end_text()
                yield MessageEnd()

    async def _before_rounds(self, sessions: RemoteSessions) -> AsyncGenerator[OutputEvent, None]:
        """List the tools that are not known yet, and make the calls that the client has approved."""
        listed = dict(self._remote.listed)
        async with aclosing(self._list(sessions, listed)) as events:
            async for event in events:
                yield event
        self._offer(listed)
        for call in self._remote.approved:
            async with aclosing(self._approved(call, sessions)) as events:
                async for event in events:
                    yield event

    def _finish_after(self, current: _Round) -> Finish | None:
        """Add the usage of a round, and return the answer's `Finish`, or None if another round follows."""
        finish = current.finish
        self._usage = _sum(self._usage, finish.usage)
        self._undeclared = tuple(dict.fromkeys((*self._undeclared, *finish.undeclared_tools)))
        is_whole = finish.reason != "length" and finish.stop_match is None
        if current.has_calls and not current.needs_client and is_whole:
            if self._tokens_left():
                return None
            finish = msgspec.structs.replace(finish, reason="length")
        return msgspec.structs.replace(finish, usage=self._usage, undeclared_tools=self._undeclared)

    def _offer(self, listed: Mapping[str, tuple[RemoteTool, ...]]) -> None:
        """Offer the listed tools to the model, except those that have the name of a function of the request."""
        own = {tool.name for tool in self._prompt.tools}
        offered = offered_tools(self._remote, listed)
        self._offered = {name: tool for name, tool in offered.items() if name not in own}

    async def _list(
        self, sessions: RemoteSessions, listed: dict[str, tuple[RemoteTool, ...]]
    ) -> AsyncGenerator[OutputEvent, None]:
        """List the tools of servers whose lists are not in the context.

        All servers are asked at once; their lists come one after the other in the answer.
        """
        missing = [server for server in self._remote.servers if server.label not in listed]
        tasks = [asyncio.ensure_future(sessions.tools(server)) for server in missing]
        own = {tool.name for tool in self._prompt.tools}
        try:
            for server, task in zip(missing, tasks, strict=True):
                yield ToolsListing(server.label)
                try:
                    tools = await task
                except RemoteFailureError as failure:
                    yield ToolsListed((), failure.error.message)
                    continue
                twice = next((tool for tool in tools if shown_name(server.label, tool.name) in own), None)
                if twice is not None:
                    name = shown_name(server.label, twice.name)
                    yield ToolsListed(
                        (), f"A function of the request has the name '{name}' of a tool of this server."
                    )
                    continue
                listed[server.label] = tools
                yield ToolsListed(tools)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _approved(
        self, call: ApprovedCall, sessions: RemoteSessions
    ) -> AsyncGenerator[OutputEvent, None]:
        """Make a call that the client has approved."""
        name = shown_name(call.server, call.name)
        yield RemoteCallStart(call.server, call.name, call.approval_id)
        yield ToolCallDelta(call.arguments)
        yield ToolCallEnd()
        if name not in self._offered:
            text = f"The MCP server '{call.server}' has no tool '{call.name}' that the request allows."
            result = RemoteResult(error=RemoteError("protocol", text, _INVALID_PARAMS))
        elif self._left < 1:
            result = RemoteResult(error=_LIMIT_REACHED)
        else:
            self._left -= 1
            result = await self._call(sessions, self._offered[name][0], call.name, call.arguments)
        self._any_calls = True
        self._messages.add_call(ToolCall(call.approval_id, name, call.arguments), result)
        yield RemoteCallEnd(result.output, result.error)

    async def _round(
        self, current: _Round, source: AsyncGenerator[OutputEvent, None], sessions: RemoteSessions
    ) -> AsyncGenerator[OutputEvent, None]:
        """Yield the events of one round and make its calls of remote tools; `current` keeps its `Finish`."""
        async for event in source:
            if current.broken is not None and not (isinstance(event, Finish) and event.reason == "length"):
                yield self._end(current.broken, RemoteResult(error=_BROKE_OFF))
                current.broken = None
            match event:
                case Finish():
                    current.finish = event
                case ToolCallStart() if event.name in self._offered:
                    current.call = self._begin(event)
                    if current.call.mode == "run":
                        yield RemoteCallStart(current.call.server.label, current.call.tool.name)
                case ToolCallDelta() if current.call is not None:
                    current.call.fragments.append(event.arguments)
                    if current.call.mode == "run":
                        yield event
                case ToolCallEnd() if current.call is not None:
                    if current.call.mode == "run":
                        yield event
                    ended = await self._end_call(current, current.call, event.complete, sessions)
                    if ended is not None:
                        yield ended
                case _:
                    current.needs_client = current.needs_client or isinstance(event, ToolCallStart)
                    self._messages.add(event)
                    yield event

    async def _end_call(
        self, current: _Round, call: _Call, complete: bool, sessions: RemoteSessions
    ) -> OutputEvent | None:
        """Make a call whose arguments are whole, or ask for approval; return the event of that, if there is one."""
        current.call = None
        if call.mode == "ask" and complete:
            current.needs_client = True
            return ApprovalNeeded(call.server.label, call.tool.name, call.arguments)
        if call.mode != "run":
            # The answer does not show this call, and the model has another round; the limit ends the rounds.
            current.has_calls = self._left > 0 or current.may_call
            self._left = max(0, self._left - 1)
            return None
        current.has_calls = True
        if complete:
            return self._end(call, await self._call(sessions, call.server, call.tool.name, call.arguments))
        current.broken = call
        return None

    async def _call(
        self, sessions: RemoteSessions, server: RemoteServer, name: str, arguments: str
    ) -> RemoteResult:
        """Make a call with arguments that are JSON text."""
        try:
            values: Any = json.loads(arguments, parse_float=_finite, parse_constant=_finite)
        except OverflowError:
            return RemoteResult(error=_NOT_FINITE)  # The client library would send null.
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            return RemoteResult(error=_NO_OBJECT)
        if self._chars >= MAX_CHARS:
            return RemoteResult(error=_TOO_LONG)
        result = await sessions.call(server, name, values)
        self._chars += len(result_text(result))
        return result

    def _begin(self, start: ToolCallStart) -> _Call:
        server, tool = self._offered[start.name]
        if server.needs_approval(tool):
            return _Call(start, server, tool, "ask")
        if self._left < 1:
            return _Call(start, server, tool, "ignore")
        self._left -= 1
        return _Call(start, server, tool, "run")

    def _end(self, call: _Call, result: RemoteResult) -> RemoteCallEnd:
        self._any_calls = True
        self._messages.add_call(ToolCall(call.start.id, call.start.name, call.arguments), result)
        return RemoteCallEnd(result.output, result.error)

    def _tokens_left(self) -> bool:
        limit = self._turn.sampling.max_tokens
        return limit is None or limit > self._usage.completion_tokens

    def _next_turn(self) -> Turn:
        """Return the turn of the next round."""
        used = self._usage.completion_tokens
        sampling = self._turn.sampling
        if used and sampling.max_tokens is not None:
            sampling = msgspec.structs.replace(sampling, max_tokens=sampling.max_tokens - used)
        if used and sampling.min_tokens:
            sampling = msgspec.structs.replace(sampling, min_tokens=max(0, sampling.min_tokens - used))
        prompt = with_remote_tools(self._prompt, self._offered)
        prompt = msgspec.structs.replace(prompt, messages=tuple(self._messages.all))
        choice = choice_among(self._turn.tool_choice, prompt.tools, self._offered)
        if self._any_calls and choice.mode == "required":
            # A required call was made. Required again in each round, the answer would never end.
            choice = msgspec.structs.replace(choice, mode="auto")
        if self._left < 1:
            choice = _without_remote(choice, self._prompt.tools)
        return msgspec.structs.replace(
            self._turn,
            prompt=prompt,
            tool_choice=choice,
            sampling=sampling,
            remote=None,
            # One call of an answer is repaired, whatever the number of its rounds.
            repair_calls=self._turn.repair_calls
            and choice.mode != "none"
            and not self._usage.repair_prompt_tokens,
        )


class _Call(msgspec.Struct):
    """A call that the model is writing."""

    start: ToolCallStart
    server: RemoteServer
    tool: RemoteTool
    mode: Literal["run", "ask", "ignore"]
    fragments: list[str] = []

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self.fragments)


class _Round(msgspec.Struct):
    """The state of one round."""

    may_call: bool
    """Whether the limit allowed a call at its beginning."""
    finish: Finish = Finish("stop", Usage(0, 0))
    call: _Call | None = None
    """The call that the model is writing."""
    broken: _Call | None = None
    """A call that broke off, until it is known whether the token limit cut it."""
    has_calls: bool = False
    """Whether the model called a remote tool; the call was made, or left out at the limit."""
    needs_client: bool = False
    """Whether the client must act before the model can continue: run its own tool, or approve a call."""


def _without_remote(choice: ToolChoice, own: Sequence[Tool]) -> ToolChoice:
    """Return a choice among the client's own tools. The prompt keeps the others, for the prefix cache."""
    names = tuple(tool.name for tool in own if choice.names is None or tool.name in choice.names)
    if choice.mode == "none" or not names:
        return ToolChoice(mode="none", parallel=choice.parallel, forbidden=True)
    return msgspec.structs.replace(choice, names=names)


def _finite(literal: str) -> float:
    """Return the number of a literal.

    Raises:
        OverflowError: it is none that JSON with doubles has.
    """
    value = float(literal)
    if not math.isfinite(value):
        raise OverflowError(literal)
    return value


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.prompt_tokens + other.prompt_tokens,
        one.completion_tokens + other.completion_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
        repair_prompt_tokens=one.repair_prompt_tokens + other.repair_prompt_tokens,
        repaired_calls=one.repaired_calls + other.repaired_calls,
        unmarked_calls=one.unmarked_calls + other.unmarked_calls,
    )
