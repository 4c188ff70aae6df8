"""Ask the model once more for a call that failed, so that the answer has the repaired call in its place.

A call fails if it cannot be read, or if the parameters of its tool do not allow its arguments. The second ask continues
the answer from where the call begins, under the grammar of one call. Nothing of a call is emitted before the call is
known to be right, and nothing after a failed call before the second ask has ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from plumbline.answer.events import (
    CallPlace,
    Finish,
    OutputEvent,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from plumbline.answer.road.answer_reader import AnswerReader
from plumbline.answer.road.begun import after_beginning
from plumbline.answer.road.errors import GenerationError
from plumbline.answer.road.prepare import PreparedTurn
from plumbline.answer.structured_output.answer_grammar import callable_tools
from plumbline.answer.structured_output.arguments import ArgumentsChecker
from plumbline.answer.structured_output.constraints import ConstraintCompiler
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.answer.turn import ChatPrompt, Tool
from plumbline.port.engine import (
    Engine,
    EngineClosedError,
    EngineFullError,
    GenerateRequest,
    RefusedRequestError,
    SamplingParams,
    TokenChunk,
)

__all__ = ["CallRepair"]

Ask = Callable[[AnswerReader, GenerateRequest], AsyncGenerator[OutputEvent, None]]


class _Failed(msgspec.Struct):
    """A call that failed."""

    place: CallPlace
    number: int
    """How many calls the answer has before it."""
    name: str
    """What the model called; empty if that is not known."""
    events: Sequence[OutputEvent] = ()
    """Empty if the call could not be read: what the model wrote is text then."""
    rest: list[OutputEvent] = []
    """The events after it, to the `Finish`."""


class CallRepair:
    """One choice of an answer, with one call repaired if it fails.

    Args:
        engine: what generates.
        tokenizer: the model's.
        checker: checks arguments.
        prepared: the turn, whose calls may be repaired (`TurnPreparer`).
        request: the first ask.
        ask: generates for a request and reads the answer with a reader.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: TextTokenizer,
        checker: ArgumentsChecker,
        prepared: PreparedTurn,
        request: GenerateRequest,
        ask: Ask,
    ) -> None:
        assert isinstance(prepared.turn.prompt, ChatPrompt)
        self._engine = engine
        self._tokenizer = tokenizer
        self._checker = checker
        self._prepared = prepared
        self._request = request
        self._ask = ask
        tools = callable_tools(prepared.turn.prompt.tools, prepared.turn.tool_choice)
        self._tools = {tool.name: tool for tool in tools}
        self._reader = self._new_reader()
        self._reader.note_calls()

    def end(self) -> None:
        """End the answer here, as if the model had."""
        self._reader.end()

    async def run(self) -> AsyncGenerator[OutputEvent, None]:
        """Yield the events of the choice."""
        failed: _Failed | None = None
        place: CallPlace | None = None
        call: list[OutputEvent] = []
        number = 0
        async with aclosing(self._ask(self._reader, self._request)) as events:
            async for event in events:
                if isinstance(event, CallPlace):
                    place = event
                    if failed is None and event.name is not None:
                        failed = _Failed(event, number, event.name)
                elif failed is not None:
                    failed.rest.append(event)
                elif isinstance(event, ToolCallStart) or call:
                    call.append(event)
                    if not isinstance(event, ToolCallEnd):
                        continue
                    if place is not None and await self._fails(call):
                        failed = _Failed(place, number, _name(call), call)
                    else:
                        for one in call:
                            yield one
                    call, place, number = [], None, number + 1
                else:
                    yield event
        if failed is not None:
            for one in await self._repaired(failed):
                yield one

    async def _fails(self, call: Sequence[OutputEvent]) -> bool:
        """Return whether a call broke off, or its arguments are not what its tool takes."""
        start, end = call[0], call[-1]
        assert isinstance(start, ToolCallStart)
        assert isinstance(end, ToolCallEnd)
        if not end.complete:
            return True
        arguments = "".join(event.arguments for event in call if isinstance(event, ToolCallDelta))
        parameters = self._tools[start.name].parameters
        # The input of a custom tool is text, which a grammar has constrained already (TOOL-14).
        return not start.custom and await self._checker.violates(parameters, arguments, self._request.client)

    async def _repaired(self, failed: _Failed) -> list[OutputEvent]:
        """Return the events from a failed call on, with the call of a second ask in its place if that does not fail."""
        finish = failed.rest.pop()
        assert isinstance(finish, Finish)
        rest, call = failed.rest, list(failed.events)
        found, usage = await self._second(failed, finish)
        if usage is not None:
            finish = msgspec.structs.replace(finish, usage=_with_second(finish.usage, usage, bool(found)))
        if found:
            if not call:  # The text is what could not be read.
                starts = (i for i, event in enumerate(rest) if isinstance(event, ToolCallStart))
                rest = rest[next(starts, len(rest)) :]
            call = found
            finish = _after_repair(finish, rest, failed.name)
        return [*call, *rest, finish]

    async def _second(self, failed: _Failed, finish: Finish) -> tuple[list[OutputEvent], Usage | None]:
        """Ask again for a failed call; see `_second_call`."""
        try:
            request = await self._second_request(failed, finish)
            return ([], None) if request is None else await self._second_call(failed, request)
        except (RefusedRequestError, EngineFullError, EngineClosedError, GenerationError):
            return [], None

    async def _second_request(self, failed: _Failed, finish: Finish) -> GenerateRequest | None:
        """Return what to ask for a failed call; None if nothing can be asked."""
        first = self._request
        if finish.reason == "length" or isinstance(finish.stop_match, str) or failed.place.start < 0:
            return None  # A limit or a stop string ended the answer, or the call began in the message to continue.
        written, before = self._reader.output_before(failed.place.start)
        prompt = (*first.prompt_token_ids, *written)
        limit = first.sampling.max_tokens
        left = None if limit is None else limit - finish.usage.completion_tokens
        if len(prompt) >= self._engine.info.max_model_len or (left is not None and left < 1):
            return None
        compiler = ConstraintCompiler(self._engine, self._tokenizer, first.client)
        named: Tool | None = self._tools.get(failed.name)
        grammar = await compiler.next_call(
            [*self._tools.values()] if named is None else [named],
            self._prepared.dialect.syntax,
            before=before + failed.place.before,
            continues=failed.place.continues,
        )
        if grammar is None:
            return None
        sampling: SamplingParams = msgspec.structs.replace(
            first.sampling, grammar=grammar, max_tokens=left, min_tokens=0, thinking_budget=None
        )
        media = first.media
        if media is not None:
            media = msgspec.structs.replace(media, token_ids=(*media.token_ids, *written))
        return msgspec.structs.replace(
            first,
            request_id=f"{first.request_id}-repair",
            prompt_token_ids=prompt,
            media=media,
            sampling=sampling,
            patient=True,
        )

    async def _second_call(
        self, failed: _Failed, request: GenerateRequest
    ) -> tuple[list[OutputEvent], Usage | None]:
        """Return the events of the call that a second ask gives, if it does not fail; and its usage, if it began."""
        reader = await after_beginning(self._prepared.turn.prompt, self._new_reader)
        written = request.prompt_token_ids[len(self._request.prompt_token_ids) :]
        events = [*reader.push(TokenChunk(token_ids=tuple(written)))]
        async with aclosing(self._ask(reader, request)) as source:
            events += [event async for event in source]
        finish = events[-1]
        assert isinstance(finish, Finish)
        usage = msgspec.structs.replace(
            finish.usage,
            prompt_tokens=len(request.prompt_token_ids),
            completion_tokens=finish.usage.completion_tokens - len(written),
        )
        starts = [i for i, event in enumerate(events) if isinstance(event, ToolCallStart)]
        if len(starts) <= failed.number:
            return [], usage
        begin = starts[failed.number]
        ends = (i for i in range(begin, len(events)) if isinstance(events[i], ToolCallEnd))
        call = events[begin : next(ends) + 1]
        return ([] if await self._fails(call) else call), usage

    def _new_reader(self) -> AnswerReader:
        return AnswerReader(self._prepared, self._tokenizer, self._engine.info.eos_token_ids)


def _name(call: Sequence[OutputEvent]) -> str:
    return call[0].name if isinstance(call[0], ToolCallStart) else ""


def _with_second(first: Usage, second: Usage, repaired: bool) -> Usage:
    """Return the usage of an answer with a second ask, whose tokens are counted like those of the first."""
    return Usage(
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
        cached_tokens=first.cached_tokens + second.cached_tokens,
        reasoning_tokens=first.reasoning_tokens,
        repair_prompt_tokens=second.prompt_tokens,
        repaired_calls=int(repaired),
    )


def _after_repair(finish: Finish, rest: Sequence[OutputEvent], name: str) -> Finish:
    """Return how an answer ends after its failed call of this name has been replaced."""
    broken = any(isinstance(event, ToolCallEnd) and not event.complete for event in rest)
    return msgspec.structs.replace(
        finish,
        reason="stop" if broken else "tool_calls",
        undeclared_tools=tuple(one for one in finish.undeclared_tools if one != name),
    )
