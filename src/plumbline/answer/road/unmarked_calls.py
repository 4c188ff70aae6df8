"""Read an answer that is nothing but calls in plain JSON as calls, where the model's own dialect has found none.

The whole text has to be one JSON object or list, fenced or bare, that names declared tools with arguments that their
parameters allow. Text is held back only while it may still become that, so another answer that begins like it comes in
one piece at the end, and any other at once. Text in a format, and what a limit cut or a stop string ended, is text.
Where only one call is allowed (`parallel_tool_calls: false`), a second object ends the answer, because Qwen2.5-Coder
0.5B repeats its first call until the context is full.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from plumbline.answer.dialects.model_dialect import call_ids
from plumbline.answer.dialects.unmarked import (
    UnmarkedCall,
    first_of_several,
    is_meant_as_call,
    may_become_calls,
    unmarked_calls,
)
from plumbline.answer.events import Finish, OutputEvent, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from plumbline.answer.road.call_advice import CallAdvice
from plumbline.answer.road.prepare import PreparedTurn
from plumbline.answer.structured_output.answer_grammar import callable_tools
from plumbline.answer.structured_output.arguments import ArgumentsChecker
from plumbline.answer.turn import ChatPrompt, Tool

__all__ = ["UnmarkedCalls", "may_have_unmarked_calls"]

_log = logging.getLogger("plumbline.calls")


def may_have_unmarked_calls(prepared: PreparedTurn) -> bool:
    """Return whether calls in plain JSON are looked for in the answer to a turn."""
    # A grammar of strict tools leaves other text free, and their parameters are checked here as well.
    return bool(_tools(prepared)) and prepared.turn.output_format is None


def _tools(prepared: PreparedTurn) -> dict[str, Tool]:
    prompt = prepared.turn.prompt
    if not isinstance(prompt, ChatPrompt):
        return {}
    tools = callable_tools(prompt.tools, prepared.turn.tool_choice)
    return {tool.name: tool for tool in tools if not tool.custom}


class UnmarkedCalls:
    """One choice of an answer, with calls in plain JSON read as calls.

    Args:
        prepared: the turn.
        checker: checks arguments.
        client: whose turn it is.
        request_id: for the log.
        end: ends the answer before the model does, so that its `Finish` follows.
        advice: is told of calls that work and that fail.
    """

    def __init__(
        self,
        prepared: PreparedTurn,
        checker: ArgumentsChecker,
        client: str,
        request_id: str,
        end: Callable[[], None],
        advice: CallAdvice,
    ) -> None:
        self._prepared = prepared
        self._checker = checker
        self._client = client
        self._request_id = request_id
        self._end = end
        self._advice = advice
        self._tools = _tools(prepared)

    async def read(self, events: AsyncGenerator[OutputEvent, None]) -> AsyncGenerator[OutputEvent, None]:
        """Yield the events of the choice."""
        held: list[OutputEvent] = []
        text, looking, ended = "", True, False
        async with aclosing(events):
            async for event in events:
                if not looking:
                    self._watch(event)
                    yield event
                    continue
                if isinstance(event, Finish):
                    whole = ended or (event.reason == "stop" and event.stop_match is None)
                    for one in await self._ended(held, text if whole else "", event):
                        yield one
                    return
                if ended:
                    continue
                if isinstance(event, TextDelta):
                    text += event.text
                    looking = may_become_calls(text)
                    if looking and (first := await self._only_call(text)) is not None:
                        text, ended = first, True
                        self._end()
                elif isinstance(event, ToolCallStart):
                    looking = False
                    self._watch(event)
                if looking and text:
                    held.append(event)
                    continue
                for one in (*held, event):
                    yield one
                held = []

    def _watch(self, event: OutputEvent) -> None:
        """Tell of the calls of an answer in the model's own dialect."""
        if isinstance(event, ToolCallStart):
            self._advice.worked()
        elif isinstance(event, Finish) and event.undeclared_tools:
            self._advice.failed(self._request_id)

    async def _ended(self, held: list[OutputEvent], text: str, finish: Finish) -> list[OutputEvent]:
        """Return the held events, with calls in the place of their text if it is calls."""
        calls = await self._calls(text)
        if not calls:
            if is_meant_as_call(text):
                self._advice.failed(self._request_id)
            return [*held, finish]
        self._advice.worked()
        _log.info("%s: %d calls were read from plain JSON", self._request_id, len(calls))
        found: list[OutputEvent] = [event for event in held if not isinstance(event, TextDelta)]
        for start, arguments in calls:
            found += [self._named(start), ToolCallDelta(arguments), ToolCallEnd()]
        usage = msgspec.structs.replace(finish.usage, unmarked_calls=len(calls))
        return [*found, msgspec.structs.replace(finish, reason="tool_calls", usage=usage, stop_match=None)]

    async def _only_call(self, text: str) -> str | None:
        """Return the call that the text is up to a second JSON object, if the answer may have no other call."""
        if self._prepared.turn.tool_choice.parallel:
            return None
        first = first_of_several(text)
        return first if first is not None and await self._calls(first) else None

    async def _calls(self, text: str) -> list[UnmarkedCall]:
        prepared, prompt = self._prepared, self._prepared.turn.prompt
        assert isinstance(prompt, ChatPrompt)
        dialect = prepared.dialect.choice.tool
        earlier = sum(len(message.tool_calls) for message in prompt.messages)
        calls = unmarked_calls(
            text,
            {tool.name: tool.parameters or {} for tool in self._tools.values()},
            call_ids("call" if dialect is None else dialect.ids, earlier),
            earlier,
        )
        if len(calls) > 1 and not prepared.turn.tool_choice.parallel:
            return []
        for start, arguments in calls:
            if await self._checker.violates(self._tools[start.name].parameters, arguments, self._client):
                return []
        return calls

    def _named(self, start: ToolCallStart) -> ToolCallStart:
        return msgspec.structs.replace(start, member=self._tools[start.name].member)
