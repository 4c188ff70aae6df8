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

number_literals = st.one_of(
    st.sampled_from(
        ["1e400", "-1E+400", "9007199254740993", "1" * 300, "123456789012345678.5", "0.10000000000000000001"]
    ),
    st.sampled_from(
        ["9007199254740993e0", "-9007199254740993E-3", "1e-400", "1.5E-324", "12345678901234567e+5"]
    ),
    st.builds(lambda whole, part: f"{whole}.{part}", st.integers(-(2**70), 2**70), st.integers(1, 10**30)),
    st.integers(-(2**200), 2**200).map(str),
)
"""Numbers of JSON, most of which a double would change."""
