"""Turn panics of libraries in Rust into ordinary errors.

pyo3 raises them as a `PanicException`, which is a `BaseException` and so passes every `except Exception` on its way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["panics"]


@contextmanager
def panics(error: type[Exception], message: str) -> Iterator[None]:
    """Raise `error(message: reason)` for a panic within the block; other exceptions pass.

    >>> with panics(ValueError, "The text cannot be encoded"):
    ...     pass
    """
    try:
        yield
    except BaseException as raised:
        if type(raised).__name__ != "PanicException":
            raise
        reason = str(raised).partition("\n")[0][:200]
        raise error(f"{message}: {reason}") from None
