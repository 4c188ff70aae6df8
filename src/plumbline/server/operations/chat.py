"""Answer chat completions."""

from __future__ import annotations

import time

from plumbline._generated.chat import CreateChatCompletionRequest
from plumbline.protocols.chat.reader import read_chat
from plumbline.protocols.chat.writer import ChatWriter
from plumbline.protocols.common.obfuscation import wants_obfuscation
from plumbline.road.prepare import PreparedTurn
from plumbline.server.frames import chunk_frames
from plumbline.server.operations.base import Operations
from plumbline.wire.call import Call
from plumbline.wire.decode import encode
from plumbline.wire.reply import JsonReply, Reply

__all__ = ["ChatOperations"]


class ChatOperations(Operations):
    """Operations on chat completions."""

    async def create_chat_completion(self, request: CreateChatCompletionRequest, call: Call) -> Reply:
        """Answer a conversation."""
        arrived = time.perf_counter()
        self._admission.check_model(request.model)
        self._admission.check_template(request)
        turn = read_chat(request, self._model.defaults)
        self._admission.check_choices(turn.num_choices, "n")
        (prepared,) = await self._generation.prepare(call, request, [turn], "messages")
        (facts,) = await self._generation.prompt_facts(call, request, [prepared])
        writer = ChatWriter(
            request,
            model=self._model.names[0],
            fingerprint=self._model.fingerprint,
            reasoning_field=self._settings.reasoning_field,
            facts=facts,
            thinking_markers=_outer_markers(prepared),
            prompt_tokens=len(prepared.prompt_token_ids),
        )
        events = self._generation.answer(prepared, call, arrived)

        if request.stream is True:
            return await self._generation.stream(
                call, events, lambda primed: chunk_frames(writer, primed, wants_obfuscation(request))
            )
        await self._generation.consume(call, events, writer.event)
        return JsonReply(encode(writer.answer()))


def _outer_markers(prepared: PreparedTurn) -> tuple[str, str]:
    """Return the texts around the model's reasoning, for `separate_reasoning: false`."""
    markers = prepared.dialect.thinking_markers
    return ("", "") if markers is None else (markers.open[0], markers.close)
