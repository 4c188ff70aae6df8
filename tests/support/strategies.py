"""What properties are tried on."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st

S = TypeVar("S", str, bytes, list)  # type: ignore[type-arg]


@st.composite
def cuts(draw: st.DrawFn, whole: S) -> list[S]:
    """Every way of cutting a sequence, with empty pieces too."""
    places: list[int] = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    return [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]


characters = st.sampled_from(["a", "b", " ", "<", "€", "é", "🎉", "ß", "\n", "hello", " world", "�"])
"""Characters of one to four bytes, and words that are single tokens."""

texts = st.lists(characters, max_size=12).map("".join)
