"""A damaged GGUF file is refused in one line, or read: no other error, and no memory beyond the file's own size.

- Any byte of a small file may have any value, and the file may end anywhere.
- What its lengths and counts promise is believed only as far as there are bytes.
"""

from __future__ import annotations

import struct
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plumbline.base.gguf_file import GgufError, read_index


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def small_file() -> bytes:
    """Metadata of several types, arrays of texts and of numbers, and the index of two tensors."""
    entries = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("general.alignment") + struct.pack("<II", 4, 32),
        text("a.float") + struct.pack("<If", 6, 1.5),
        text("a.texts") + struct.pack("<IIQ", 9, 8, 2) + text("one") + text("two"),
        text("a.numbers") + struct.pack("<IIQ3H", 9, 2, 3, 1, 2, 3),
    ]
    index = [
        text(name) + struct.pack("<IQQIQ", 2, 4, 8, 0, 128 * place) for place, name in enumerate(("a", "b"))
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(index), len(entries))
    return head + b"".join(entries) + b"".join(index) + bytes(300)


WHOLE = small_file()
_MOST_BYTES = 4 << 20
"""For a file of 600 bytes, and what reading any takes."""


def read(data: bytes) -> bool:
    """Return whether a file can be read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.gguf")
        path.write_bytes(data)
        message = ""
        tracemalloc.start()
        try:
            read_index(path, lambda _: True)
        except GgufError as error:
            message = str(error)
        finally:
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert most < _MOST_BYTES
        assert "\n" not in message
        return not message


def test_the_whole_file_is_read() -> None:
    assert read(WHOLE)


def test_the_names_of_a_file_break_no_line() -> None:
    index = [text("a\nb") + struct.pack("<IQIQ", 1, 4, 0, 0)] * 2
    assert not read(b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + b"".join(index))


@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=8)), max_size=4),
    st.integers(0, len(WHOLE)),
)
@example([(8, b"\xff" * 8)], len(WHOLE))
@example([(16, b"\xff" * 8)], len(WHOLE))
@example([(24, b"\xff" * 8)], len(WHOLE))
def test_a_damaged_file_is_read_or_refused(changes: list[tuple[int, bytes]], end: int) -> None:
    data = bytearray(WHOLE)
    for place, value in changes:
        data[place : place + len(value)] = value
    read(bytes(data[:end]))


def with_count(value: bytes) -> bytes:
    """Return a file without tensors that has a value of `split.count`."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("split.count") + value


def test_a_file_that_is_no_piece_may_say_so() -> None:
    """Converters write 0 pieces for a model in one file."""
    assert all(read(with_count(struct.pack("<IH", 2, count))) for count in (0, 1))


@pytest.mark.parametrize(
    "value",
    [
        struct.pack("<IH", 2, 65535),
        struct.pack("<Iq", 11, -1),
        struct.pack("<Id", 12, 2.5),
        struct.pack("<I", 8) + text("a\nb" * 99),
        struct.pack("<IIQ2B", 9, 0, 2, 1, 1),
    ],
)
def test_a_count_of_pieces_that_is_none_is_refused(value: bytes) -> None:
    assert not read(with_count(value))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read(b"GGUF" + struct.pack("<I", 3) + data)
