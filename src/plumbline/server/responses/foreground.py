"""Run a response while its client waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from plumbline.contract._generated.events import ResponseStreamEvent
from plumbline.contract.wire.errors import ApiError
from plumbline.server.protocols.responses.compaction import AnswerEvent
from plumbline.server.protocols.responses.event_log import Failure
from plumbline.server.protocols.responses.writer import ResponsesWriter
from plumbline.server.responses.memory import Keeper

__all__ = ["streamed", "whole"]


async def streamed(
    writer: ResponsesWriter,
    answer: AsyncIterator[AnswerEvent],
    keeper: Keeper | None,
    midway: Callable[[Exception], ApiError],
) -> AsyncIterator[ResponseStreamEvent]:
    """Yield the events of a response; it is stored before its terminal event (RS-19), which always comes (ERR-10).

    Args:
        writer: writes the events.
        answer: the answer.
        keeper: stores the response; None if it is not stored.
        midway: turns a failure into the error of the terminal event.
    """
    saving = False
    for out in writer.start():
        yield out
    try:
        async for _, event in answer:
            emitted = writer.event(event)
            if keeper is not None:
                keeper.log.append(event)
                if writer.ended:
                    for out in emitted[:-1]:
                        yield out
                    emitted = emitted[-1:]
                    saving = True
                    await keeper.save(writer.response)
            for out in emitted:
                yield out
    except Exception as error:
        failure = midway(error)
        emitted = writer.fail(failure)
        if keeper is not None and not saving:
            keeper.log.append(Failure.of(failure))
            await _save_failed(keeper, writer, midway)
        for out in emitted:
            yield out


async def whole(writer: ResponsesWriter, answer: AsyncIterator[AnswerEvent], keeper: Keeper | None) -> None:
    """Run a response to its end, and store it. A failure is raised, and nothing is stored then."""
    writer.start()
    async for _, event in answer:
        writer.event(event)
        if keeper is not None:
            keeper.log.append(event)
    if keeper is not None:
        await keeper.save(writer.response)


async def _save_failed(
    keeper: Keeper, writer: ResponsesWriter, midway: Callable[[Exception], ApiError]
) -> None:
    """Store a failed response. If that fails too, the client still learns of the first failure."""
    try:
        await keeper.save(writer.response)
    except ApiError as error:
        midway(error)
