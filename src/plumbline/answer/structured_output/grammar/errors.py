"""Define the error for constraints that cannot be enforced."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TOO_COMPLEX", "UNNAMED", "ConstraintError", "named_failures"]

TOO_COMPLEX = "The schema is too large or too complex to be prepared."
UNNAMED = (RecursionError, OverflowError, TypeError, AttributeError, KeyError, MemoryError)
"""What a schema of an unforeseen form may raise."""

_log = logging.getLogger("plumbline.structured_output")


class ConstraintError(ValueError):
    """A constraint that cannot be enforced; the text is a sentence for the client.

    Attributes:
        tool: the name of the tool at fault; None if the constraint is on the text, or no single tool is at fault.
    """

    def __init__(self, message: str, *, tool: str | None = None) -> None:
        super().__init__(message)
        self.tool = tool


@contextmanager
def named_failures() -> Iterator[None]:
    """Raise a `ConstraintError` for what a client's schema makes fail within the block; it may be used as a decorator.

    A schema is the client's, so that its failure is an error of the request and not of the server.
    """
    try:
        yield
    except UNNAMED as error:
        _log.warning("a schema cannot be prepared: %s", type(error).__name__, exc_info=error)
        raise ConstraintError(TOO_COMPLEX) from error
