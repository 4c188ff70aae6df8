"""Read the metadata of a GGUF file: a list of keys with numbers, texts or arrays of them.

The layout is public (`docs/gguf.md` of ggml). All sizes are checked against the size of the file, so that a broken file
costs no more memory than it has bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["GgufError", "read_metadata"]

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""By the number of a type: its format in `struct`."""
_TEXT, _ARRAY = 8, 9


class GgufError(ValueError):
    """The file cannot be read as a GGUF file; the message states why."""


def read_metadata(file: Path, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return the metadata of a file.

    Args:
        file: the GGUF file.
        wanted: whether the value of a key is needed; others are skipped.

    Raises:
        GgufError: the file is not a GGUF file, or ends too early.
    """
    with file.open("rb") as stream:
        return _Reader(stream, file.stat().st_size).read(wanted)


class _Reader:
    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream = stream
        self._size = size

    def read(self, wanted: Callable[[str], bool]) -> dict[str, Any]:
        if self._bytes(4) != b"GGUF":
            raise GgufError("it does not begin with GGUF")
        version = self._number("I")
        if version not in (2, 3):
            raise GgufError(f"its version is {version}; 2 and 3 can be read")
        self._number("Q")  # the number of tensors
        found: dict[str, Any] = {}
        for _ in range(self._number("Q")):
            key = self._text()
            value = self._value(self._number("I"))
            if wanted(key):
                found[key] = value
        return found

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _FORMATS:
            raise GgufError(f"it has a value of the unknown type {kind}")
        return self._number(_FORMATS[kind])

    def _array(self) -> list[Any]:
        kind, count = self._number("I"), self._number("Q")
        if kind == _TEXT:
            return [self._text() for _ in range(count)]
        if kind not in _FORMATS:
            raise GgufError(f"it has an array of the unknown type {kind}")
        width = struct.calcsize("<" + _FORMATS[kind])
        data = self._bytes(count * width)
        return list(struct.unpack(f"<{count}{_FORMATS[kind]}", data))

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", "replace")

    def _number(self, form: str) -> Any:
        return struct.unpack("<" + form, self._bytes(struct.calcsize("<" + form)))[0]

    def _bytes(self, count: int) -> bytes:
        data = self._stream.read(count) if count <= self._size else b""
        if len(data) < count:
            raise GgufError("it ends inside its metadata")
        return data
