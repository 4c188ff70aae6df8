"""Define the error for constraints that cannot be enforced."""

from __future__ import annotations

__all__ = ["ConstraintError"]


class ConstraintError(ValueError):
    """A constraint that cannot be enforced; the text is a sentence for the client.

    Attributes:
        tool: the name of the tool at fault; None if the constraint is on the text, or no single tool is at fault.
    """

    def __init__(self, message: str, *, tool: str | None = None) -> None:
        super().__init__(message)
        self.tool = tool
