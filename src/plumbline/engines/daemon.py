"""Run synchronous work in a thread that the end of the process does not wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_daemon_thread"]

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T], name: str = "load") -> T:
    """Await the result of synchronous work. If the caller is cancelled, the work ends unheeded.

    The default executor would keep the process alive until the weights of a large model are read, or for ever if the
    work hangs.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # The event loop has ended.
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=f"plumbline-{name}", daemon=True).start()
    return await future
