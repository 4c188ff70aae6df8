"""What happens around a stream of events: priming, keep-alive comments, and clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from plumbline.wire.call import Call
from plumbline.wire.errors import ApiError
from plumbline.wire.sse import comment

__all__ = ["ClientGoneError", "keep_alive", "prime", "until_disconnect"]

T = TypeVar("T")


class ClientGoneError(ApiError):
    """The client left before there was anything to send. Nobody reads this answer; logs and metrics show 499."""

    def __init__(self) -> None:
        super().__init__(499, "The client closed the connection.")


async def until_disconnect(call: Call, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, but cancel it when the client leaves (HTTP-11): no ASGI server does that by itself.

    Raises:
        ClientGoneError: the client has left; `work` is cancelled and has cleaned up.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(call.disconnected())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def prime(events: AsyncGenerator[T, None], patience: float) -> AsyncGenerator[T, None]:
    """Await the first event, so that what fails before it still becomes a status (HTTP-12).

    After `patience` seconds the stream begins all the same: a proxy must not take a long prefill for a dead server.
    What fails later is an error event.
    """
    first = asyncio.ensure_future(anext(events))
    try:
        await asyncio.wait({first}, timeout=patience if patience > 0 else None)
        if first.done():
            first.result()
    except StopAsyncIteration:
        pass
    except BaseException:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await events.aclose()
        raise
    return _chained(first, events)


async def _chained(first: asyncio.Future[T], events: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    try:
        try:
            yield await first
        except StopAsyncIteration:
            return
        async for event in events:
            yield event
    finally:
        if not first.done():
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        await events.aclose()


async def keep_alive(frames: AsyncGenerator[bytes, None], interval: float) -> AsyncGenerator[bytes, None]:
    """Pass frames on, with a comment whenever the stream has been silent for `interval` seconds (SSE-08)."""
    if interval <= 0:
        async with aclosing(frames):
            async for frame in frames:
                yield frame
        return
    loop = asyncio.get_running_loop()
    mailbox: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()
    quiet = True
    timer: asyncio.TimerHandle | None = None

    async def pump() -> None:
        nonlocal quiet
        try:
            async with aclosing(frames):
                async for frame in frames:
                    quiet = False
                    mailbox.put_nowait(frame)
        except Exception as error:  # Raised where the frames are read.
            mailbox.put_nowait(error)
        else:
            mailbox.put_nowait(None)

    def tick() -> None:
        nonlocal quiet, timer
        if quiet:
            mailbox.put_nowait(comment())
        quiet = True
        timer = loop.call_later(interval, tick)

    timer = loop.call_later(interval, tick)
    task = asyncio.ensure_future(pump())
    try:
        while (item := await mailbox.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        timer.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
