"""Laws of the limits on a body's values: text does not count, structure does, however it is written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract.wire import size
from plumbline.contract.wire.decode import decode
from plumbline.contract.wire.errors import ApiError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(alphabet='a"\\[]{},:é\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='a"\\[,:'), inner),
    max_leaves=30,
)


def counted(value: Any) -> tuple[int, int, int]:
    """Return the containers, members and separators of a value."""
    match value:
        case list():
            found = [counted(item) for item in value]
            own = (1, 0, max(len(value) - 1, 0))
        case dict():
            found = [counted(item) for item in value.values()]
            own = (1, len(value), max(len(value) - 1, 0))
        case _:
            return (0, 0, 0)
    return tuple(map(sum, zip(own, *found, strict=True)))  # type: ignore[return-value]


@given(VALUES, st.integers(1, 7))
def test_counting_equals_a_walk_over_the_decoded_value(value: Any, piece: int) -> None:
    body = msgspec.json.encode(value)
    before, size._PIECE = size._PIECE, piece
    try:
        assert size._outside_strings(body) == counted(value)
    finally:
        size._PIECE = before


@pytest.mark.parametrize(
    "extra",
    [
        b"[" + b"[]," * size.MAX_CONTAINERS + b"1]",
        b"[" + b"{}," * size.MAX_CONTAINERS + b"1]",
        b"{" + b'"a":1,' * size.MAX_MEMBERS + b'"b":2}',
        b"[" + b"1," * (size.MAX_VALUES + 1) + b"1]",
    ],
)
def test_too_many_values_are_refused_where_they_are_also_in_an_unknown_field(extra: bytes) -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "unknown": ' + extra + b"}"
    with pytest.raises(ApiError) as refused:
        decode(CreateChatCompletionRequest, body)
    assert (refused.value.status, refused.value.code) == (413, "request_too_large")


def test_text_full_of_brackets_is_text() -> None:
    text = '[{":,\\"' * 500_000
    request = {"model": "m", "messages": [{"role": "user", "content": text}]}
    assert decode(CreateChatCompletionRequest, msgspec.json.encode(request)).messages[0].content == text
