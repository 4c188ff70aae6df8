"""Convert the saved state of a sequence between caches of different shapes.

llama.cpp writes a mark, the number of the sequence, the number of streams, and for each stream how many cells of the
sequence it has, followed by these cells. It reads a state only into a cache with as many streams, although it takes the
cells to wherever the sequence is. So the cells are cut out here and written between other empty streams.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["cut_cells", "state_of"]

_HEAD = 2
"""Numbers before that of the streams."""


def cut_cells(state: NDArray[np.uint8], streams: int, stream: int, length: int) -> NDArray[np.uint8] | None:
    """Return the mark and the cells of a sequence.

    Args:
        state: uint8 [bytes], what llama.cpp has written.
        streams: of the cache.
        stream: that of the sequence.
        length: cells of the sequence.

    Returns None if the bytes are not as described above: other releases of llama.cpp may write something else.
    """
    begin, end = 4 * (_HEAD + 1 + stream), len(state) - 4 * (streams - stream - 1)
    if end - begin <= 4:
        return None
    before, after = state[4 * _HEAD : begin].view(np.uint32), state[end:]
    if before[0] != streams or before[1:].any() or after.any():
        return None
    cells = state[begin:end]
    if cells[:4].view(np.uint32)[0] != length:
        return None
    return np.concatenate([state[: 4 * _HEAD], cells])


def state_of(cells: NDArray[np.uint8], streams: int) -> NDArray[np.uint8]:
    """Return the state, uint8 [bytes], that llama.cpp reads into a cache of so many streams."""
    number = np.array([streams], np.uint32).view(np.uint8)
    empty = np.zeros(4 * (streams - 1), np.uint8)
    return np.concatenate([cells[: 4 * _HEAD], number, cells[4 * _HEAD :], empty])
