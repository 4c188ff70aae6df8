"""The contract and its examples, read once for all tests; nothing may change them."""

from __future__ import annotations

from typing import Any

from generate import bundle

__all__ = ["CONTRACT", "EXAMPLES"]

CONTRACT: dict[str, Any] = bundle.document()
EXAMPLES: dict[str, list[Any]] = bundle.examples()
"""By schema."""
