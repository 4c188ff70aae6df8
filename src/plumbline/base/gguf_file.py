"""Read the metadata and the index of tensors of a GGUF file.

Metadata are keys with numbers, texts or arrays of them. The layout is public (`docs/gguf.md` of ggml). All sizes are
checked against the size of the file, so that a broken file costs no more memory than it has bytes.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["GgufError", "Tensor", "read_index", "read_metadata"]

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""By the number of a type: its format in `struct`."""
_TEXT, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4
_ALIGNMENT = "general.alignment"
_TOO_SHORT = "it ends inside its metadata"


class GgufError(ValueError):
    """The file cannot be read as a GGUF file; the message states why."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor is in a file."""

    shape: tuple[int, ...]
    """Rows first, as in torch."""
    kind: int
    """The number of its type, such as 0 for fp32 and 8 for Q8_0."""
    offset: int
    """From the start of the file."""


def read_metadata(file: Path, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return the metadata of a file.

    Args:
        file: the GGUF file.
        wanted: whether the value of a key is needed; others are skipped.

    Raises:
        GgufError: the file is not a GGUF file, or ends too early.
    """
    with _mapped(file) as data:
        return _Reader(data).read(wanted)[0]


def read_index(file: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata of a file as `read_metadata` does, and its tensors by name.

    Raises:
        GgufError: the file is not a GGUF file, ends too early, or has two tensors of a name.
    """
    with _mapped(file) as data:
        reader = _Reader(data)
        found, count = reader.read(lambda key: key == _ALIGNMENT or wanted(key))
        return found, reader.tensors(count, found.get(_ALIGNMENT, 32))


def _mapped(file: Path) -> mmap.mmap:
    with file.open("rb") as stream:
        try:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise GgufError("it is empty") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._position = 0

    def read(self, wanted: Callable[[str], bool]) -> tuple[dict[str, Any], int]:
        """Return the metadata and the number of tensors."""
        if self._bytes(4) != b"GGUF":
            raise GgufError("it does not begin with GGUF")
        version = self._number("I")
        if version not in (2, 3):
            raise GgufError(f"its version is {version}; 2 and 3 can be read")
        count = int(self._number("Q"))
        found: dict[str, Any] = {}
        for _ in range(self._number("Q")):
            key = self._text()
            is_wanted = wanted(key)
            value = self._value(self._number("I"), is_wanted)
            if is_wanted:
                found[key] = value
        return found, count

    def tensors(self, count: int, alignment: object) -> dict[str, Tensor]:
        """Return the tensors, which follow the metadata."""
        if not isinstance(alignment, int) or alignment <= 0:
            raise GgufError(f"its {_ALIGNMENT} is {alignment!r}; it must be positive")
        found: dict[str, Tensor] = {}
        for _ in range(count):
            name, dimensions = self._text(), self._number("I")
            if name in found:
                raise GgufError(f"it has two tensors {name!r}")
            if dimensions > _MOST_DIMENSIONS:
                raise GgufError(f"{name!r} has {dimensions} dimensions; {_MOST_DIMENSIONS} can be read")
            sizes = [int(self._number("Q")) for _ in range(dimensions)]
            found[name] = Tensor(tuple(reversed(sizes)), self._number("I"), self._number("Q"))
        start = -(-self._position // alignment) * alignment
        return {name: Tensor(each.shape, each.kind, start + each.offset) for name, each in found.items()}

    def _value(self, kind: int, is_wanted: bool) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array(is_wanted)
        if kind not in _FORMATS:
            raise GgufError(f"it has a value of the unknown type {kind}")
        return self._number(_FORMATS[kind])

    def _array(self, is_wanted: bool) -> list[Any]:
        """Read an array; one that is not wanted is passed, and empty."""
        kind, count = self._number("I"), self._number("Q")
        if kind == _TEXT:
            return self._texts(count, is_wanted)
        if kind not in _FORMATS:
            raise GgufError(f"it has an array of the unknown type {kind}")
        data = self._bytes(count * struct.calcsize("<" + _FORMATS[kind]))
        return list(struct.unpack(f"<{count}{_FORMATS[kind]}", data)) if is_wanted else []

    def _texts(self, count: int, is_wanted: bool) -> list[str]:
        # A vocabulary has hundreds of thousands of texts, so this loop has no calls of its own.
        data, position, size, read = (
            self._data,
            self._position,
            len(self._data),
            struct.Struct("<Q").unpack_from,
        )
        found: list[str] = []
        for _ in range(count):
            start = position + 8
            position = start + read(data, position)[0] if start <= size else size + 1
            if position > size:
                raise GgufError(_TOO_SHORT)
            if is_wanted:
                found.append(data[start:position].decode("utf-8", "replace"))
        self._position = position
        return found

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", "replace")

    def _number(self, form: str) -> Any:
        return struct.unpack("<" + form, self._bytes(struct.calcsize("<" + form)))[0]

    def _bytes(self, count: int) -> bytes:
        start = self._position
        if count > len(self._data) - start:
            raise GgufError(_TOO_SHORT)
        self._position = start + count
        return self._data[start : self._position]
