"""Turn failures of libraries in Rust into errors that have a name.

pyo3 raises a panic as a `PanicException`, which is a `BaseException` and so passes every `except Exception` on its way.
The tokenizers library raises its own errors as a plain `Exception`, which no narrower clause catches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["panics"]


@contextmanager
def panics(error: type[Exception], message: str) -> Iterator[None]:
    """Raise `error(message: reason)` for a panic or a plain `Exception` within the block; narrower ones pass.

    >>> with panics(ValueError, "The text cannot be encoded"):
    ...     pass
    """
    try:
        yield
    except BaseException as raised:
        if type(raised).__name__ != "PanicException" and type(raised) is not Exception:
            raise
        reason = str(raised).partition("\n")[0][:200]
        raise error(f"{message}: {reason}") from None
