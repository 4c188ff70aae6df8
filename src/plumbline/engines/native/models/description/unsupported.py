"""Refuse a model by the name of what is not supported."""

__all__ = ["UnsupportedModelError"]


class UnsupportedModelError(ValueError):
    """The model needs something that the engine does not support; the message names the field or the part."""
