"""Answer requests of Messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from plumbline.answer.events import ChoiceEvent
from plumbline.contract._generated.messages import (
    CountMessageTokensRequest,
    CreateMessageRequest,
    MessageStreamEvent,
    MessageTokensCount,
)
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.reply import JsonReply, Reply
from plumbline.server.http.frames import event_frames
from plumbline.server.http.replies import MESSAGES
from plumbline.server.http.streams import Primed
from plumbline.server.operations.base import ModelOperations
from plumbline.server.operations.defaults import truncatable
from plumbline.server.protocols.common.tools.skipped_tools import read_skipping
from plumbline.server.protocols.messages.reader import read_message, read_message_prompt
from plumbline.server.protocols.messages.writer import MessageWriter

__all__ = ["MessageOperations"]


class MessageOperations(ModelOperations):
    """Operations of Messages."""

    async def create_message(self, request: CreateMessageRequest, call: Call) -> Reply:
        """Answer a conversation."""
        self._admission.check_model(request.model, call)
        request, turn = await read_skipping(
            request,
            call,
            lambda one: read_message(
                one,
                self._model.defaults,
                self._sealer_of(call),
                thinks=self._model.dialect.thinking_markers is not None,
                modalities=self.generation.modalities,
            ),
        )
        (prepared,) = await self.generation.prepare(
            call, request, [truncatable(turn, self._settings)], "messages"
        )
        writer = MessageWriter(
            request,
            self._sealer_of(call),
            model=self._admission.answer_name(request.model, call),
            prompt_tokens=len(prepared.prompt_token_ids),
            max_model_len=self._model.engine.info.max_model_len,
        )
        events = self.generation.answer(prepared, call)
        if request.stream is True:
            return await self.generation.stream(
                call, events, lambda primed: event_frames(_written(writer, primed)), form=MESSAGES
            )
        await self.generation.consume(call, events, writer.event)
        return JsonReply(encode(writer.answer()))

    async def count_message_tokens(self, request: CountMessageTokensRequest, call: Call) -> Reply:
        """Count the tokens of a conversation."""
        self._admission.check_model(request.model, call)
        sealer, modalities = self._sealer_of(call), self.generation.modalities
        prompt, _ = await call.read(lambda: read_message_prompt(request, sealer, modalities))
        ids = await self.generation.token_ids(prompt, "messages", call)
        return JsonReply(encode(MessageTokensCount(input_tokens=len(ids))))


async def _written(
    writer: MessageWriter, events: Primed[ChoiceEvent]
) -> AsyncGenerator[MessageStreamEvent, None]:
    # After a long wait the stream begins without it: the counts of its start are then those of no cache.
    first = None if events.first is None else events.first[1]
    for begun in writer.start(first):
        yield begun
    async for index, event in events:
        for each in writer.event(index, event):
            yield each
    for last in writer.end():
        yield last
