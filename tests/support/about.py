"""Name the value that a test failed with, for loops over hundreds of values that take a millisecond each.

As parameters they would be hundreds of tests, and pytest's own work for a test takes two milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["about"]


@contextmanager
def about(what: object) -> Iterator[None]:
    """Add what a failure is about to its message."""
    try:
        yield
    except Exception as error:
        error.add_note(f"with {what}")
        raise
