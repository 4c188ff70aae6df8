"""How many examples the laws are tried on."""

from __future__ import annotations

import os

__all__ = ["EXAMPLES"]

EXAMPLES = 20_000 if os.environ.get("PLUMBLINE_LAWS") == "thorough" else 500
"""For each law and dialect; `nox -s properties` asks for the thorough ones."""
