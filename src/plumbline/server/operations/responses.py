"""Create responses, or count what they would read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from plumbline.answer.events import Finish, Usage
from plumbline.answer.turn import ChatPrompt, Prompt, Turn
from plumbline.contract._generated.events import ResponseStreamEvent
from plumbline.contract._generated.items import (
    CompactionBody,
    CompactionSummaryItemParam,
    EasyInputMessage,
    InputItem,
)
from plumbline.contract._generated.responses import (
    CompactResource,
    CompactResponseMethodPublicBody,
    CreateResponse,
    TokenCountsBody,
    TokenCountsResource,
)
from plumbline.contract.wire.call import Call, KeyShare
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.errors import previous_response_not_found
from plumbline.contract.wire.reply import JsonReply, Reply
from plumbline.server.admission import client_of
from plumbline.server.http.frames import event_frames
from plumbline.server.http.streams import close_with_request, until_disconnect
from plumbline.server.loading.pool import Lease
from plumbline.server.operations.base import ModelOperations
from plumbline.server.operations.defaults import response_with_defaults
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.protocols.common.ids import new_id, now
from plumbline.server.protocols.common.obfuscation import wants_obfuscation
from plumbline.server.protocols.common.tools.skipped_tools import read_skipping
from plumbline.server.protocols.responses.client_tools.namespaces import unavailable_tools
from plumbline.server.protocols.responses.compaction import AnswerEvent, Compacted
from plumbline.server.protocols.responses.event_log import EventLog
from plumbline.server.protocols.responses.identity import Fresh
from plumbline.server.protocols.responses.initial_response import initial_response
from plumbline.server.protocols.responses.input import read_input
from plumbline.server.protocols.responses.raw_messages import RawMessages
from plumbline.server.protocols.responses.reader import (
    Context,
    Continuing,
    check_storeless,
    compaction_threshold,
    conversation_id,
    own_input,
    read_response,
    read_response_prompt,
    without_trigger,
)
from plumbline.server.protocols.responses.writer import ResponsesWriter, response_usage
from plumbline.server.responses.background import BackgroundRun
from plumbline.server.responses.compactor import Compaction
from plumbline.server.responses.conversations import Hold
from plumbline.server.responses.foreground import streamed, whole
from plumbline.server.responses.latest_turns import LatestTurns
from plumbline.server.responses.memory import Keeper
from plumbline.server.responses.rounds import answer_in_rounds

__all__ = ["ResponseOperations", "unavailable_header"]

_STORED_ITEM = 1024
"""Bytes that a stored item is counted as: what it has is known when it is read."""


class _Begun(NamedTuple):
    """A response that is about to be answered."""

    writer: ResponsesWriter
    identity: Fresh
    answer: AsyncGenerator[AnswerEvent, None]
    keeper: Keeper | None


class ResponseOperations(ModelOperations):
    """Operations that create responses, or count what they would read."""

    async def create_response(self, request: CreateResponse, call: Call, lease: Lease[Any]) -> Reply:
        """Answer input items; `lease` is the request's, and ends with it."""
        request, triggered = self._completed(request)
        hold = await self._hold(request, call)
        begun = await self._begin(request, call, await self._context(request, call), triggered)
        headers = unavailable_header(request)
        if request.background is True:
            assert begun.keeper is not None  # `read_response` refuses it otherwise.
            run = BackgroundRun(
                begun.writer,
                begun.identity,
                begun.keeper,
                lambda error: self._replies.midway(error, call),
                client_of(call, self._settings),
            )
            await self._runs.start(run, begun.answer, _at_end(lease, hold, call.share))
            if request.stream is not True:
                return JsonReply(encode(begun.writer.response), headers=headers)
            frames = event_frames(run.events(), wants_obfuscation(request))
            return self._replies.stream(call, frames, headers)
        if request.stream is True:
            return await self.generation.stream(
                call,
                begun.answer,
                lambda primed: event_frames(self._events(begun, primed, call), wants_obfuscation(request)),
                headers,
            )
        await self.generation.finish(
            call, begun.answer, lambda events: whole(begun.writer, events, begun.keeper)
        )
        return JsonReply(encode(begun.writer.response), headers=headers)

    async def answer_on_socket(
        self,
        request: CreateResponse,
        call: Call,
        latest: LatestTurns,
        lane: str | None,
        *,
        generate: bool = True,
    ) -> AsyncGenerator[ResponseStreamEvent, None]:
        """Yield the events of one turn of a WebSocket.

        Args:
            request: the request.
            call: the connection's call for this turn.
            latest: the turns before, which this one may continue without a store (WS-05); it becomes one of them.
            lane: where it takes place among them.
            generate: whether the model answers; if not, the response has no output and can be continued (WS-11).

        Raises:
            ApiError: before the first event, as for a request over HTTP.
        """
        request, triggered = self._completed(request)
        with latest.continued(or_default(request.previous_response_id, None)) as previous:
            if previous is not None:
                request = msgspec.structs.replace(request, previous_response_id=UNSET)
            await self._hold(request, call)
            context = await self._context(request, call)
            if context is None:
                check_storeless(request)
                context = Context(own=own_input(request)) if previous is not None else None
            if context is not None and previous is not None:
                context = Context(previous.items, context.own)
            begun = await self._begin(request, call, context, triggered, generate=generate)
            if previous is not None:
                begun.writer.response.previous_response_id = previous.response_id
            async with aclosing(begun.answer):
                async for event in self._events(begun, begun.answer, call):
                    yield event
            if begun.writer.response.status not in ("completed", "incomplete"):
                latest.forget(previous)
            elif begun.keeper is None:
                latest.keep(lane, begun.writer.response, context or Context(own=own_input(request)))

    async def _begin(
        self,
        request: CreateResponse,
        call: Call,
        context: Context | None,
        triggered: bool,
        *,
        generate: bool = True,
    ) -> _Begun:
        """Check a request and prepare its answer, which begins when it is read.

        Args:
            request: the request.
            call: its call.
            context: the items that it is answered from.
            triggered: whether it asks to compact them and for nothing else.
            generate: whether the model answers.

        Raises:
            ApiError: for a request that cannot be answered.
        """
        self._admission.check_optional_model(request.model, call)
        stored = 0 if context is None else len(context.earlier) * _STORED_ITEM
        request, turn = await read_skipping(request, call, lambda one: self._read(one, call, context), stored)
        if turn.remote is not None:
            self._remote.check(turn.remote)
        if request.background is True:
            self._runs.check_room(client_of(call, self._settings))
        wants_logprobs = turn.sampling.logprobs is not None
        keeper = await self._keeper(request, call, context, wants_logprobs)
        prompt: Sequence[int] | None = None
        if triggered:
            answer = _alone(*await self._compact(request, context, turn.prompt, call, turn))
        elif not generate:
            (prepared,) = await self.generation.prepare(call, request, [turn], "input")
            answer = _nothing(Usage(len(prepared.prompt_token_ids), 0))
        else:
            turn, answer, prompt = await self._answer(request, call, context, turn)
        seals = "reasoning.encrypted_content" in or_default(request.include, [])
        identity = Fresh(self._sealer_of(call) if seals else None)
        response = initial_response(
            request,
            turn,
            self._admission.answer_name(request.model, call),
            store=keeper is not None,
            conversation=conversation_id(request),
        )
        raw = None
        if prompt is not None and request.enable_response_messages is True:
            raw = RawMessages(prompt, self.generation.road.tokenizer.decode)
        writer = ResponsesWriter(response, identity, logprobs=wants_logprobs, raw=raw)
        return _Begun(writer, identity, answer, keeper)

    def _completed(self, request: CreateResponse) -> tuple[CreateResponse, bool]:
        """Return a request with the operator's values, and whether it asks to compact."""
        return without_trigger(response_with_defaults(request, self._settings))

    def _read(self, request: CreateResponse, call: Call, context: Context | None) -> Turn:
        sealer = self._sealer_of(call)
        return read_response(request, self._model.defaults, sealer, context, self.generation.modalities)

    async def _answer(
        self, request: CreateResponse, call: Call, context: Context | None, turn: Turn
    ) -> tuple[Turn, AsyncGenerator[AnswerEvent, None], Sequence[int] | None]:
        """Prepare the model's answer. The turn may change, because its context may be compacted before it.

        Returns:
            The turn, its answer, and the prompt's tokens; None if there are several prompts.
        """
        compaction = await self._compaction(request, call, context, turn)
        if compaction is not None:
            short = CompactionSummaryItemParam(encrypted_content=compaction.item.encrypted_content)
            turn = self._read(request, call, Context(earlier=[short]))
        answer: AsyncGenerator[AnswerEvent, None]
        prompt: Sequence[int] | None = None
        if turn.remote is not None:
            answer = await answer_in_rounds(self.generation, self._remote.caller, request, call, turn)
        else:
            (prepared,) = await self.generation.prepare(call, request, [turn], "input")
            # What runs in the background waits, and so does what was compacted first.
            patient = request.background is True or compaction is not None
            answer = self.generation.answer(prepared, call, patient=patient)
            prompt = prepared.prompt_token_ids
        return turn, answer if compaction is None else _with_compaction(compaction, answer), prompt

    async def _compaction(
        self, request: CreateResponse, call: Call, context: Context | None, turn: Turn
    ) -> Compaction | None:
        """Compact the context of a request, if it asks for that and the prompt is too long (ST-15)."""
        threshold = compaction_threshold(request, self._model.engine.info.max_model_len * 3 // 4)
        if threshold is None:
            return None
        assert isinstance(turn.prompt, ChatPrompt)
        if len(await self.generation.token_ids(turn.prompt, "input", call)) <= threshold:
            return None
        return await self._compactor.compact(_items(request, context), call, self._sealer_of(call), turn)

    def _events(
        self, begun: _Begun, answer: AsyncIterator[AnswerEvent], call: Call
    ) -> AsyncIterator[ResponseStreamEvent]:
        return streamed(begun.writer, answer, begun.keeper, lambda error: self._replies.midway(error, call))

    async def count_response_input_tokens(self, request: TokenCountsBody, call: Call) -> Reply:
        """Count what a request would send to the model (R-15)."""
        self._admission.check_optional_model(request.model, call)
        request, _ = without_trigger(request)
        context = await self._context(request, call)
        sealer, modalities = self._sealer_of(call), self.generation.modalities
        prompt = await call.read(lambda: read_response_prompt(request, sealer, context, modalities))
        ids = await self.generation.token_ids(prompt, "input", call)
        return JsonReply(encode(TokenCountsResource(input_tokens=len(ids))))

    async def compact_response(self, request: CompactResponseMethodPublicBody, call: Call) -> Reply:
        """Seal a conversation into one item (ST-15)."""
        self._admission.check_model(request.model, call)
        request, _ = without_trigger(request)
        context = await self._context(request, call)
        if context is None and isinstance(request.previous_response_id, str):
            raise previous_response_not_found(request.previous_response_id)
        items = _items(request, context)
        sealer, instructions = self._sealer_of(call), or_default(request.instructions, None)
        modalities = self.generation.modalities
        messages = await call.read(lambda: read_input(items, instructions, sealer, modalities=modalities))
        item, usage = await self._compact(request, context, ChatPrompt(messages=messages), call)
        answer = CompactResource(
            id=new_id("cmp_"), created_at=now(), output=[item], usage=response_usage(usage)
        )
        return JsonReply(encode(answer))

    async def _compact(
        self,
        request: Continuing,
        context: Context | None,
        prompt: Prompt,
        call: Call,
        turn: Turn | None = None,
    ) -> tuple[CompactionBody, Usage]:
        """Compact the context of a request. Without a summary the usage counts its prompt tokens."""
        items, sealer = _items(request, context), self._sealer_of(call)
        item, usage = await self._compactor.compact(items, call, sealer, turn)
        if usage is None:
            assert isinstance(prompt, ChatPrompt)
            ids = await self.generation.token_ids(prompt, "input", call)
            usage = Usage(prompt_tokens=len(ids), completion_tokens=0)
        return item, usage

    async def _context(self, request: Continuing, call: Call) -> Context | None:
        """Return the stored past of a request; None if nothing is stored."""
        if self._memory is None:
            return None
        return await until_disconnect(call, self._memory.context(request, self._memory.owner(call)))

    async def _hold(self, request: CreateResponse, call: Call) -> Hold | None:
        """Hold the conversation of a request until the request is over."""
        name = conversation_id(request)
        if self._memory is None or name is None:
            return None
        hold = await self._memory.hold(self._memory.owner(call), name, "conversation")
        close_with_request(hold.end_with_request)
        return hold

    async def _keeper(
        self, request: CreateResponse, call: Call, context: Context | None, logprobs: bool
    ) -> Keeper | None:
        """Return the keeper that stores the response; None for `store: false` (ST-01)."""
        if self._memory is None or context is None or request.store is False:
            return None
        log = EventLog(logprobs=logprobs, background=request.background is True)
        return await self._memory.keeper(call, context, log)


def unavailable_header(request: CreateResponse) -> dict[str, str]:
    """Name the hosted tools of a request, which this server accepts and does not run (TOOL-15)."""
    kinds = unavailable_tools(or_default(request.tools, []), request.input)
    return {"x-plumbline-unavailable-tools": ", ".join(kinds)} if kinds else {}


def _at_end(lease: Lease[Any], hold: Hold | None, share: KeyShare | None) -> Callable[[], None]:
    """Keep the model, the conversation and the share of a key beyond a request; return the function that ends all."""
    ends = [lease.share().release]
    if hold is not None:
        ends.append(hold.take_over())
    if share is not None:
        ends.append(share.keep())

    def end() -> None:
        for each in ends:
            each()

    return end


def _items(request: Continuing, context: Context | None) -> list[InputItem]:
    """Return all items that a request is answered from, in order."""
    earlier, own = ((), own_input(request)) if context is None else context
    return [*earlier, *([EasyInputMessage(role="user", content=own)] if isinstance(own, str) else own)]


async def _alone(item: CompactionBody, usage: Usage) -> AsyncGenerator[AnswerEvent, None]:
    """Yield an answer that is nothing but a compaction."""
    yield 0, Compacted(item.encrypted_content)
    yield 0, Finish("stop", usage)


async def _nothing(usage: Usage) -> AsyncGenerator[AnswerEvent, None]:
    """Yield an answer without output."""
    yield 0, Finish("stop", usage, is_unasked=True)


async def _with_compaction(
    compaction: Compaction, answer: AsyncGenerator[AnswerEvent, None]
) -> AsyncGenerator[AnswerEvent, None]:
    """Yield the compaction of the context, then the answer."""
    async with aclosing(answer):
        yield 0, Compacted(compaction.item.encrypted_content)
        async for event in answer:
            yield event
