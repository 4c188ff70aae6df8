"""Compact a conversation: a summary by the model where that pays, or everything without loss (ST-15)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from plumbline.answer.events import Finish, OutputEvent, TextDelta, Usage
from plumbline.answer.road.errors import EmptyPromptError, PromptTooLongError
from plumbline.answer.text.templates.template import TemplateError
from plumbline.answer.turn import ChatPrompt, Message, Turn
from plumbline.contract._generated.items import CompactionBody, InputItem
from plumbline.contract.wire.call import Call
from plumbline.port.engine import EngineFullError, RefusedRequestError, SamplingParams
from plumbline.server.admission import client_of, salted
from plumbline.server.generation import Generation
from plumbline.server.http.failures import as_api_error
from plumbline.server.protocols.common.sealing import Sealer
from plumbline.server.protocols.responses.compaction import (
    SUMMARY_REQUEST,
    compacted,
    opened_all,
    split,
    with_summary,
)
from plumbline.server.protocols.responses.input import read_input

__all__ = ["Compaction", "Compactor"]

_log = logging.getLogger("plumbline.server")

_MAX_SUMMARY = 2048
"""Tokens of a summary; at most an eighth of the model's context."""
_LARGE_MODEL = 10**9
"""Bytes of weights from which on a model is trusted to summarise, unless the operator sets it."""


class Compaction(NamedTuple):
    """An item that stands for a conversation, and what it cost."""

    item: CompactionBody
    usage: Usage | None
    """Token counts of the summary; None if no summary was generated."""


class Compactor:
    """Compacts conversations of one served model."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        mode = generation.settings.compaction
        large = generation.model.weight_bytes >= _LARGE_MODEL
        self._summarises = mode == "summary" or (mode == "auto" and large)

    async def compact(
        self, items: Sequence[InputItem], call: Call, sealer: Sealer, answered: Turn | None = None
    ) -> Compaction:
        """Return one item that stands for a conversation.

        A summary replaces everything before the last message of the user. If the model must not write a summary, if
        that message is the first one, or if the summary fails or is cut, nothing is left out.

        Args:
            items: the conversation.
            call: the call of the request.
            sealer: seals the item.
            answered: the turn of the request; the summary has its priority and its part of the prefix cache.

        Raises:
            ApiError: 400 if the items are too large, or contain content that this server did not seal; failures of the
                engine.
        """
        every = opened_all(items, sealer)
        earlier, kept = split(every)
        summarises = self._summarises and earlier
        summary = await self._summary(earlier, call, sealer, answered) if summarises else None
        text, usage = (None, None) if summary is None else summary
        chosen = every if text is None else with_summary(text, kept)
        return Compaction(await asyncio.to_thread(compacted, chosen, sealer), usage)

    async def _summary(
        self, items: Sequence[InputItem], call: Call, sealer: Sealer, answered: Turn | None
    ) -> tuple[str | None, Usage] | None:
        """Let the model summarise items. The text is None if it was cut or is empty; all is None if it cannot begin."""
        request = Message(role="user", content=SUMMARY_REQUEST)
        limit = min(_MAX_SUMMARY, self._generation.model.engine.info.max_model_len // 8)
        messages = read_input(items, None, sealer, modalities=self._generation.modalities)
        turn = Turn(
            prompt=ChatPrompt(messages=(*messages, request), effort="none"),
            sampling=SamplingParams(temperature=0.0, max_tokens=limit),
            priority=0 if answered is None else answered.priority,
            cache_salt=None if answered is None else answered.cache_salt,
            truncate_prompt=True,  # Of a conversation that does not fit, the newest messages are summarised.
        )
        client = client_of(call, self._generation.settings)
        try:
            (turn,) = await self._generation.loaded([turn], client)
            turn = salted(turn, client, self._generation.settings)
            prepared = await self._generation.road.prepare(turn, client)
        except (PromptTooLongError, EmptyPromptError, TemplateError, RefusedRequestError) as error:
            _log.warning("request %s: a conversation cannot be summarised: %s", call.request_id, error)
            return None
        except EngineFullError as error:
            raise as_api_error(error) from error
        text: list[str] = []
        ends: list[Finish] = []

        def take(_: int, event: OutputEvent) -> None:
            if isinstance(event, TextDelta):
                text.append(event.text)
            elif isinstance(event, Finish):
                ends.append(event)

        answer = self._generation.answer(prepared, call, suffix="-summary")
        await self._generation.consume(call, answer, take)
        summary = "".join(text).strip()
        return summary if summary and ends[0].reason == "stop" else None, ends[0].usage
