"""Encode text as JSON strings."""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Final

__all__ = ["quoted", "quoted_text"]

quoted: Final = encode_basestring
"""Encode a text as a JSON string, without the encoder that `json.dumps` makes for every call."""


def quoted_text(text: str) -> str:
    """Encode a text as it stands inside a JSON string, without the quotes."""
    return encode_basestring(text)[1:-1]
