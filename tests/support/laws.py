"""How many examples the laws are tried on, and on which dialects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

__all__ = ["DIALECT_NAMES", "EXAMPLES", "EXPLORED", "FEW_EXAMPLES", "FIRST_SEED", "some"]

EXPLORED = int(os.environ.get("PLUMBLINE_EXAMPLES", "0"))
"""How many new examples `nox -s properties` draws for each property; 0 for a fixed number of examples that stay the
same."""
EXAMPLES = EXPLORED or 120
"""For each law of dialects that depends on what is written and where it is cut."""
FEW_EXAMPLES = EXPLORED or 60
"""For each law that any output of a dialect shows, or that reads long outputs in tiny pieces."""
FIRST_SEED = int.from_bytes(os.urandom(4)) if EXPLORED else 0
"""Where tests that draw with seeds of their own begin to count."""
DIALECT_NAMES = frozenset(filter(None, os.environ.get("PLUMBLINE_DIALECTS", "").split(",")))
"""The dialects to try the laws on, as in `PLUMBLINE_DIALECTS=qwen3_coder,mimo nox -s properties`; empty for all."""
_DIALECTS_PER_EXAMPLE = 12

T = TypeVar("T")


def some(dialects: Sequence[T]) -> st.SearchStrategy[Sequence[T]]:
    """Draw the dialects to try one example on: all of them in `nox -s properties`, otherwise about a dozen.

    With 120 examples and 101 dialects, each dialect gets about 13. Neighbours in the list are alike, so a draw takes
    every ninth of it.
    """
    groups = 1 if EXPLORED else -(-len(dialects) // _DIALECTS_PER_EXAMPLE)
    return st.sampled_from([dialects[start::groups] for start in range(groups)])
