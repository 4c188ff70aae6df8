"""How many examples the laws are tried on, and on which dialects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

__all__ = ["DIALECT_NAMES", "EXAMPLES", "some"]

_THOROUGH = os.environ.get("PLUMBLINE_LAWS") == "thorough"
EXAMPLES = 20_000 if _THOROUGH else 500
"""For each law; `nox -s properties` asks for the thorough ones."""
DIALECT_NAMES = frozenset(filter(None, os.environ.get("PLUMBLINE_DIALECTS", "").split(",")))
"""The dialects to try the laws on, as in `PLUMBLINE_DIALECTS=qwen3_coder,mimo nox -s properties`; empty for all."""
_DIALECTS_PER_EXAMPLE = 12

T = TypeVar("T")


def some(dialects: Sequence[T]) -> st.SearchStrategy[Sequence[T]]:
    """Draw the dialects to try one example on: all of them if thorough, otherwise about a dozen.

    With 500 examples and 101 dialects, each dialect gets about 60. Neighbours in the list are alike, so a draw takes
    every ninth of it.
    """
    groups = 1 if _THOROUGH else -(-len(dialects) // _DIALECTS_PER_EXAMPLE)
    return st.sampled_from([dialects[start::groups] for start in range(groups)])
