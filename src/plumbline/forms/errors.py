"""What a form that cannot be held is refused with."""

from __future__ import annotations

__all__ = ["FormError"]


class FormError(ValueError):
    """A form that cannot be promised; the text is a sentence fit for the client."""
