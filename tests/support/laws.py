"""How many examples the laws are tried on, and which dialects."""

from __future__ import annotations

import os

__all__ = ["DIALECT_NAMES", "EXAMPLES"]

EXAMPLES = 20_000 if os.environ.get("PLUMBLINE_LAWS") == "thorough" else 500
"""For each law and dialect; `nox -s properties` asks for the thorough ones."""
DIALECT_NAMES = frozenset(filter(None, os.environ.get("PLUMBLINE_DIALECTS", "").split(",")))
"""The dialects to try the laws on, as in `PLUMBLINE_DIALECTS=qwen3_coder,mimo nox -s properties`; empty for all."""
