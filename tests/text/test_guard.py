"""Law of hiding markers in long texts: no search holds up other threads for long, and none is missed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.text import guard
from plumbline.answer.text.guard import TokenPattern


@given(
    st.text("ab<€", max_size=40),
    st.sets(st.sampled_from(["a", "b<", "<b", "aab", "ab", "€"])),
    st.integers(1, 9),
)
def test_a_long_text_is_searched_in_windows_as_it_is_at_once(
    text: str, tokens: set[str], window: int
) -> None:
    """Whatever its length, no search holds up other threads for long, and a marker may lie across two windows."""
    markers = TokenPattern(tokens)
    once = markers.hidden(text, lambda found: f"({found[0]})")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "_WINDOW", window)
        assert markers.hidden(text, lambda found: f"({found[0]})") == once
