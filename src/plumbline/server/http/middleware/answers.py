"""Describe an answer that is known before its request is read."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["WholeAnswer"]


class WholeAnswer(NamedTuple):
    """A whole answer.

    Each layer of the application has a method `refuse`, which returns one for a request that no model has room for, and
    None for all others. It waits for nothing, so the listener calls it without a task: an overloaded server refuses
    most requests.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    """With lower-case names and `content-length`."""
    body: bytes
