"""Answer a response with the tools of MCP servers: each round takes the road as an answer of its own (TOOL-21)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from plumbline.answer.events import OutputEvent
from plumbline.answer.road.prepare import PreparedTurn
from plumbline.answer.turn import Turn
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.errors import ApiError
from plumbline.port.engine import EngineFullError
from plumbline.server.admission import client_of
from plumbline.server.generation import Generation
from plumbline.server.protocols.responses.compaction import AnswerEvent
from plumbline.server.tools.port import RemoteCaller
from plumbline.server.tools.rounds import NoRoomError, Rounds

__all__ = ["answer_in_rounds"]

_TRIES = 60
_PAUSE = 1.0
"""Seconds between two tries of a round after the first."""


async def answer_in_rounds(
    generation: Generation, caller: RemoteCaller, request: CreateResponse, call: Call, turn: Turn
) -> AsyncGenerator[AnswerEvent, None]:
    """Prepare an answer in rounds; it begins when it is read.

    The turn is prepared once before, with the tools that are known, so that a request which cannot be answered is
    refused before the answer begins.

    Raises:
        ApiError: for a request that cannot be answered.
    """
    number = 0
    client = client_of(call, generation.settings)
    first: PreparedTurn | None = None

    async def generate(turn: Turn) -> AsyncGenerator[OutputEvent, None]:
        nonlocal number, first
        number += 1
        prepared, first = first, None
        if prepared is None:
            try:
                # Nobody may be waiting any more: a response in the background goes on.
                (prepared,) = await generation.prepared(request, [turn], "input", client)
            except ApiError as error:
                if error.code == "context_length_exceeded":
                    raise NoRoomError from error
                raise
        own = (
            call
            if number == 1
            else replace(call, work_id=f"{call.work_id}-r{number}", arrived=time.perf_counter())
        )
        patient = number > 1 or request.background is True
        return _events(generation, prepared, own, _TRIES if number > 1 else 1, patient=patient)

    rounds = Rounds(turn, caller, generate)
    (prepared,) = await generation.prepare(call, request, [rounds.first_turn()], "input")
    if rounds.knows_its_first_turn:
        first = prepared
    return _indexed(rounds.run())


async def _events(
    generation: Generation, prepared: PreparedTurn, call: Call, tries: int, *, patient: bool
) -> AsyncGenerator[OutputEvent, None]:
    """Yield the events of a round. If the engine is full, it is tried again: the calls before it have been made."""
    for left in range(tries - 1, -1, -1):
        try:
            async with aclosing(generation.answer(prepared, call, patient=patient)) as answer:
                async for _, event in answer:
                    yield event
            return
        except EngineFullError:  # Raised before the first event only.
            if not left:
                raise
        await asyncio.sleep(_PAUSE)


async def _indexed(events: AsyncGenerator[OutputEvent, None]) -> AsyncGenerator[AnswerEvent, None]:
    async with aclosing(events):
        async for event in events:
            yield 0, event
