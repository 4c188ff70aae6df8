"""Answer chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator

from plumbline.answer.events import ChoiceEvent
from plumbline.answer.road.prepare import PreparedTurn
from plumbline.contract._generated.chat import CreateChatCompletionRequest, CreateChatCompletionResponse
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.reply import JsonReply, Reply
from plumbline.server.http.failures import store_errors
from plumbline.server.http.frames import chunk_frames
from plumbline.server.http.replies import StreamForm
from plumbline.server.http.streams import Primed
from plumbline.server.operations.base import ModelOperations, required
from plumbline.server.operations.defaults import truncatable, with_defaults
from plumbline.server.protocols.chat.reader import read_chat
from plumbline.server.protocols.chat.stored_messages import stored_messages
from plumbline.server.protocols.chat.writer import ChatFold, ChatWriter
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.protocols.common.obfuscation import wants_obfuscation
from plumbline.server.protocols.common.tools.skipped_tools import read_skipping
from plumbline.server.store.records import ChatRecord

__all__ = ["ChatOperations"]


class ChatOperations(ModelOperations):
    """Operations on chat completions."""

    async def create_chat_completion(self, request: CreateChatCompletionRequest, call: Call) -> Reply:
        """Answer a conversation."""
        self._admission.check_model(request.model, call)
        self._admission.check_template(request)
        request = with_defaults(request, self._settings)
        request, turn = await read_skipping(
            request,
            call,
            lambda one: read_chat(
                one,
                self._model.defaults,
                stores=self._memory is not None,
                modalities=self.generation.modalities,
            ),
        )
        turn = truncatable(turn, self._settings)
        self._admission.check_choices(turn.num_choices, "n")
        if request.store is True:
            await required(self._memory).check_room(call)
        (prepared,) = await self.generation.prepare(call, request, [turn], "messages")
        (facts,) = await self.generation.prompt_facts(call, request, [prepared])
        writer = ChatWriter(
            request,
            model=self._admission.answer_name(request.model, call),
            fingerprint=self._model.fingerprint,
            reasoning_field=self._settings.reasoning_field,
            facts=facts,
            thinking_markers=_outer_markers(prepared),
            prompt_tokens=len(prepared.prompt_token_ids),
        )
        events = self.generation.answer(prepared, call)
        fold = writer.fold()

        if request.stream is True:
            return await self.generation.stream(
                call,
                events,
                lambda primed: chunk_frames(
                    writer.chunks(),
                    self._stored(request, call, fold, primed) if request.store is True else primed,
                    wants_obfuscation(request),
                    compact=self._settings.compact_stream,
                ),
                form=StreamForm.of_chunks(request),
            )
        await self.generation.consume(call, events, fold.event)
        answer = fold.answer()
        await self._store(request, call, answer)
        return JsonReply(encode(answer))

    async def _stored(
        self, request: CreateChatCompletionRequest, call: Call, fold: ChatFold, events: Primed[ChoiceEvent]
    ) -> AsyncIterator[ChoiceEvent]:
        """Pass on the events of an answer, and store it before its stream ends."""
        async for index, event in events:
            fold.event(index, event)
            yield index, event
        await self._store(request, call, fold.answer())

    async def _store(
        self, request: CreateChatCompletionRequest, call: Call, answer: CreateChatCompletionResponse
    ) -> None:
        """Store an answer, if the request wants that (CHAT-16)."""
        if request.store is not True:
            return
        memory = required(self._memory)
        with store_errors():
            await memory.store.save_chat(
                ChatRecord(
                    id=answer.id,
                    owner=memory.owner(call),
                    created_at=answer.created,
                    model=answer.model,
                    metadata=or_default(request.metadata, {}),
                    completion=encode(answer),
                    messages=stored_messages(answer.id, request.messages),
                )
            )


def _outer_markers(prepared: PreparedTurn) -> tuple[str, str]:
    """Return the texts around the model's reasoning, for `separate_reasoning: false`."""
    markers = prepared.dialect.thinking_markers
    return ("", "") if markers is None else (markers.open[0], markers.close)
