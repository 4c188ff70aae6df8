"""What a form that cannot be held is refused with."""

from __future__ import annotations

__all__ = ["ConstraintError"]


class ConstraintError(ValueError):
    """A form that cannot be promised; the text is a sentence fit for the client.

    Attributes:
        tool: the name of the tool whose calls cannot be held, None if it is the form of the text or none in particular.
    """

    def __init__(self, message: str, *, tool: str | None = None) -> None:
        super().__init__(message)
        self.tool = tool
