"""Read the message that an answer continues without keeping the event loop waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from plumbline.answer.turn import Prompt, begun_text

__all__ = ["after_beginning"]

_Made = TypeVar("_Made")
_LONG = 512
"""Characters from which on a thread reads them: in a call, quotes or markers without end take 5 µs and more each."""


async def after_beginning(prompt: Prompt, make: Callable[[], _Made]) -> _Made:
    """Return what `make` returns, which reads the beginning of the answer; a long one in a thread.

    Args:
        prompt: may end with an open message of the assistant.
        make: makes a parser or a reader, and touches nothing that others use.
    """
    return await asyncio.to_thread(make) if len(begun_text(prompt)) > _LONG else make()
