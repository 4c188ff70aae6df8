"""Prime streams, keep them alive with comments, and end work for clients that leave.

Litestar never closes an iterator: it drops the iterator when it stops sending. So code that makes a stream registers
its cleanup with `close_with_request`, and `http.middleware.front` runs it when the request is over, however it ended
(HTTP-11).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from plumbline.contract.wire.call import Call
from plumbline.contract.wire.errors import ApiError

__all__ = [
    "ClientGoneError",
    "KeepAlive",
    "Primed",
    "close_with_request",
    "closing_streams",
    "prime",
    "until_disconnect",
]

T = TypeVar("T")

_closers: ContextVar[AsyncExitStack] = ContextVar("closers")


@asynccontextmanager
async def closing_streams() -> AsyncIterator[None]:
    """Run the functions that a request registered with `close_with_request` at its end, the last one first."""
    async with AsyncExitStack() as stack:
        token = _closers.set(stack)
        try:
            yield
        finally:
            _closers.reset(token)


def close_with_request(close: Callable[[], Awaitable[None]]) -> None:
    """Call `close` when the current request is over."""
    _closers.get().push_async_callback(close)


class ClientGoneError(ApiError):
    """The client left before the answer began. Metrics count it as status 499; no client reads it."""

    def __init__(self) -> None:
        super().__init__(499, "The client closed the connection.")


async def until_disconnect(call: Call, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, but cancel it when the client leaves (HTTP-11). No ASGI server does that by itself.

    Raises:
        ClientGoneError: the client has left, and `work` is cancelled and cleaned up.
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
        # A failed task has an error whose traceback has this frame; a cycle would keep the whole request until a
        # garbage collection, and those are rare.
        del task, gone


class Primed(Generic[T]):
    """A stream that is already waiting for its first event, or has it."""

    def __init__(self, first: asyncio.Future[T], rest: AsyncGenerator[T, None]) -> None:
        self._first: asyncio.Future[T] | None = first
        self._rest = rest

    @property
    def first(self) -> T | None:
        """The first event, if it is there and has not been taken."""
        first = self._first
        if first is None or not first.done() or first.cancelled() or first.exception() is not None:
            return None
        return first.result()

    def __aiter__(self) -> Primed[T]:
        """Return itself."""
        return self

    async def __anext__(self) -> T:
        """Return the first event, then the others."""
        if self._first is None:
            return await anext(self._rest)
        event = await self._first
        self._first = None
        return event

    async def aclose(self) -> None:
        """Stop waiting and close the source. Idempotent."""
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._rest.aclose()


async def prime(events: AsyncGenerator[T, None], patience: float) -> Primed[T]:
    """Await the first event, so that a failure before it still becomes a status (HTTP-12).

    Args:
        events: the stream.
        patience: seconds after which the stream begins without an event, because proxies take a long prefill for a
            dead server; 0 waits without a limit. Later failures are error events.
    """
    first = asyncio.ensure_future(anext(events))
    primed = Primed(first, events)
    try:
        await asyncio.wait({first}, timeout=patience if patience > 0 else None)
        if first.done():
            first.result()
    except StopAsyncIteration:
        pass
    except BaseException:
        await primed.aclose()
        raise
    return primed


_UNREAD = 64
"""Frames that may wait for a client. Then nothing more is read from the engine, which pauses the request in turn."""


class KeepAlive:
    """Passes frames on, with a keep-alive whenever the stream was silent for `interval` seconds (SSE-08)."""

    def __init__(self, frames: AsyncGenerator[bytes, None], interval: float, keep_alive: bytes) -> None:
        self._frames = frames
        self._keep_alive = keep_alive
        self._interval = interval
        self._mailbox: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_UNREAD)
        self._quiet = True
        self._timer: asyncio.TimerHandle | None = None
        self._pump: asyncio.Task[None] | None = None

    def __aiter__(self) -> KeepAlive:
        """Return itself."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next frame, or a keep-alive after a silence."""
        if self._interval <= 0:
            return await anext(self._frames)
        if self._pump is None:
            self._pump = asyncio.create_task(self._fill())
            self._wind()
        item = await self._mailbox.get()
        if isinstance(item, bytes):
            return item
        await self.aclose()
        raise StopAsyncIteration if item is None else item

    async def aclose(self) -> None:
        """Stop the timer, the pump and the source. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        await self._frames.aclose()

    async def _fill(self) -> None:
        try:
            async for frame in self._frames:
                self._quiet = False
                await self._mailbox.put(frame)
        except Exception as error:  # raised again in __anext__
            await self._mailbox.put(error)
        else:
            await self._mailbox.put(None)

    def _wind(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def _tick(self) -> None:
        # A client that has frames left to read needs no sign of life.
        if self._quiet and self._mailbox.empty():
            self._mailbox.put_nowait(self._keep_alive)
        self._quiet = True
        self._wind()
