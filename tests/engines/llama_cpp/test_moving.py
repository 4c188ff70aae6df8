"""A saved sequence is the same in a cache of another shape, and unknown formats are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from plumbline.engines.llama_cpp.moving import cut_cells, state_of


def written(streams: int, stream: int, length: int, data: bytes) -> NDArray[np.uint8]:
    """What llama.cpp writes."""
    counts = [b"\0\0\0\0"] * streams
    counts[stream] = np.uint32(length).tobytes() + data
    return np.frombuffer(b"mark" + b"\7\0\0\0" + np.uint32(streams).tobytes() + b"".join(counts), np.uint8)


@given(
    streams=st.integers(1, 9), others=st.integers(1, 9), data=st.binary(min_size=4, max_size=40), at=st.data()
)
def test_the_cells_come_back_in_any_number_of_streams(
    streams: int, others: int, data: bytes, at: st.DataObject
) -> None:
    stream = at.draw(st.integers(0, streams - 1))
    cells = cut_cells(written(streams, stream, 5, data), streams, stream, 5)
    assert cells is not None
    assert state_of(cells, others).tobytes() == written(others, 0, 5, data).tobytes()


@pytest.mark.parametrize(
    "state",
    [
        written(3, 1, 5, b"datadata")[4:],
        written(3, 1, 4, b"datadata"),
        written(3, 0, 5, b"datadata"),
        written(4, 1, 5, b"datadata"),
        written(3, 1, 5, b"")[:12],
        np.zeros(0, np.uint8),
    ],
)
def test_what_is_not_a_state_of_this_sequence_is_refused(state: NDArray[np.uint8]) -> None:
    assert cut_cells(state, 3, 1, 5) is None
