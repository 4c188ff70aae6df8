"""Markers are found in text that may end inside of one, wherever it ends."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.laws import EXAMPLES, EXPLORED

from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.spec.dialect import ToolDialect
from plumbline.answer.dialects.spec.markers import Markers
from plumbline.answer.dialects.streams.cursor import Finder
from plumbline.answer.dialects.streams.marker_patterns import PatternCache

DIALECTS = tuple(dict.fromkeys(TOOL_DIALECTS.values()))
laws = settings(max_examples=4 * EXPLORED or EXAMPLES)
words = st.text("ab<|", min_size=1, max_size=4)


def looked_for(markers: Sequence[str], text: str, start: int, closed: bool) -> tuple[int, str | None]:
    """The first place where a marker stands or the text ends amid one; of several markers there the longest."""
    for pos in range(start, len(text)):
        rest = text[pos:]
        if not closed and any(marker != rest and marker.startswith(rest) for marker in markers):
            return pos, None
        if whole := [marker for marker in markers if rest.startswith(marker)]:
            return pos, max(whole, key=len)
    return len(text), None


@laws
@given(st.lists(words, max_size=4), st.text("ab<|", max_size=10), st.integers(0, 10), st.booleans())
@example(["<a", "<ab"], "<a", 0, False)
@example(["<a", "<abb"], "<aba", 0, False)
@example(["a<b", "<"], "a<", 0, False)
def test_a_marker_is_where_looking_everywhere_finds_it(
    markers: list[str], text: str, start: int, closed: bool
) -> None:
    start = min(start, len(text))
    assert Finder(markers).search(text, start, closed) == looked_for(markers, text, start, closed)


@laws
@given(st.data(), st.sampled_from(DIALECTS), st.booleans())
def test_markers_of_a_dialect_are_found(data: st.DataObject, dialect: ToolDialect, closed: bool) -> None:
    finder = Markers(dialect, None).in_text
    pieces = st.sampled_from(finder.markers or ("a",)).flatmap(
        lambda marker: st.tuples(st.integers(0, len(marker)), st.integers(0, len(marker))).map(
            lambda cut: marker[min(cut) : max(cut)]
        )
    )
    text = data.draw(st.lists(pieces | st.text(max_size=2), max_size=5).map("".join))
    assert finder.search(text, 0, closed) == looked_for(finder.markers, text, 0, closed)


@given(st.lists(st.lists(st.text("<ab>", min_size=1, max_size=40), max_size=3), max_size=40))
def test_patterns_that_are_kept_stay_within_their_bound(asked: list[list[str]]) -> None:
    cache = PatternCache(100)
    for markers in asked:
        key = tuple(sorted(set(markers)))
        assert cache.of(key)[2] == PatternCache(0).of(key)[2]
        assert sum(len(marker) for kept in cache.kept for marker in kept) <= 100
    assert all(cache.of(key) is cache.of(key) for key in cache.kept)
