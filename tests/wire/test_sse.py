"""A frame carries one document and ends with a blank line."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from plumbline.contract.wire import sse


@given(
    st.recursive(st.none() | st.booleans() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c))
)
def test_a_frame_is_one_document_and_a_blank_line(document: Any) -> None:
    """SSE-01, SSE-02, SSE-04."""
    data = msgspec.json.encode(document)
    for event in (None, "response.created"):
        lines = sse.frame(data, event).decode().split("\n")
        named = [f"event: {event}"] if event else []
        assert lines == [*named, f"data: {data.decode()}", "", ""]
    assert sse.comment("ping") == b": ping\n\n"
    assert sse.DONE == b"data: [DONE]\n\n"
