"""Laws of the cursor: what is taken back is read again, wherever the output was cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.dialects.streams.cursor import Cursor

TEXT = st.text("ab<", min_size=1, max_size=6)


@given(before=TEXT, marker=TEXT, after=TEXT, waits=st.booleans(), marks=st.booleans())
def test_what_is_taken_back_is_read_again(
    before: str, marker: str, after: str, waits: bool, marks: bool
) -> None:
    cursor = Cursor()
    cursor.begin_at(10)
    cursor.feed(before + marker if waits else before + marker + after)
    if marks:
        cursor.mark("<<")
    cursor.pos += len(before) + len(marker)
    if waits:
        cursor.feed(after)
    cursor.unread(marker)
    assert cursor.text[cursor.pos :] == marker + after
    assert cursor.offset == 10 + len(before)
    cursor.pos += len(marker)
    assert cursor.unmark() == (f"<<{before}{marker}" if marks else "")
