"""Merge event streams that run concurrently: the choices of a turn, or the prompts of a completion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

__all__ = ["merge"]

_UNREAD = 256
"""Items that may wait to be read. With more of them the sources pause."""

T = TypeVar("T")


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Read all sources concurrently and yield (index of the source, item) as items come.

    The first failure of a source ends all of them, and no further one begins. Closing the iterator closes every source
    that has begun.
    """
    mailbox: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(_UNREAD)
    has_failed = asyncio.Event()

    async def read(index: int, source: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(source) as items:
                async for item in items:
                    await mailbox.put((index, item))
        except Exception as error:  # Raised again where the items are read.
            has_failed.set()
            await mailbox.put(error)
        else:
            await mailbox.put(None)

    tasks: list[asyncio.Task[None]] = []
    try:
        for index, source in enumerate(sources):
            tasks.append(asyncio.create_task(read(index, source)))
            # Others have their turn between two beginnings, each of which sends its request.
            await asyncio.sleep(0)
            if has_failed.is_set():
                break  # What refused this one would refuse the others.
        left = len(tasks)
        while left:
            match await mailbox.get():
                case None:
                    left -= 1
                case Exception() as error:
                    raise error
                case item:
                    yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
