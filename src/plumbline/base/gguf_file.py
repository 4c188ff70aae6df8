"""Read the metadata and the index of tensors of a GGUF file.

Metadata are keys with numbers, texts or arrays of them. The layout is public (`docs/gguf.md` of ggml). All sizes are
checked against the size of the file, so that a broken file costs no more memory than it has bytes.

A model may be cut into files: `NAME-00001-of-00003.gguf` has all metadata, and each file the index of its own tensors.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

__all__ = [
    "GgufError",
    "Tensor",
    "first_piece",
    "is_later_piece",
    "piece_paths",
    "read_index",
    "read_metadata",
    "title_of",
]

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""By the number of a type: its format in `struct`."""
_TEXT, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4
_MOST_NUMBERS = 1 << 24
"""Numbers of an array; as Python's they take 36 times the bytes of the file."""
_MOST_SHOWN = 80
"""Characters of a name or value in an error."""
_ALIGNMENT = "general.alignment"
_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"
"""Keys of a file that is a piece of a model: the number of pieces, that of this one from 0, and all tensors."""
_OWN_KEYS = frozenset({_ALIGNMENT, _COUNT, _NUMBER, _TENSORS})
_PIECE = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_TOO_SHORT = "it ends inside its metadata"
_TEXTS_END: dict[tuple[int, ...], int] = {}
"""Where arrays of texts end, by their files and starts. To pass hundreds of thousands of texts takes as long as reading
them, and a start reads the metadata of a file several times."""
_MOST_KNOWN = 256


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
    """From the start of its file."""
    file: Path
    """The GGUF file, or the piece of it, that has the tensor."""


def piece_paths(file: Path) -> list[Path]:
    """Return all files of a model by the name of its first, and the file itself if that is no name of a first one."""
    found = _PIECE.search(file.name)
    if found is None or int(found[1]) != 1:
        return [file]
    return [file.with_name(_piece_name(file, number)) for number in range(1, int(found[2]) + 1)]


def is_later_piece(file: Path) -> bool:
    """Return whether the name of a file is that of a piece that another one begins."""
    found = _PIECE.search(file.name)
    return found is not None and int(found[1]) != 1


def first_piece(file: Path) -> Path:
    """Return the first piece of a file that is split, or the file."""
    return file.with_name(_piece_name(file, 1))


def title_of(file: Path) -> str:
    """Return the name of a model by that of its file or first piece: without number and extension."""
    return _PIECE.sub("", file.name).removesuffix(".gguf")


def _piece_name(file: Path, number: int) -> str:
    return _PIECE.sub(lambda found: f"-{number:05}-of-{found[2]}.gguf", file.name)


def read_metadata(file: Path, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return the metadata of a file.

    Args:
        file: the GGUF file.
        wanted: whether the value of a key is needed; others are skipped.

    Raises:
        GgufError: the file is not a GGUF file, or ends too early.
    """
    with _mapped(file) as (data, identity):
        return _Reader(data, identity).read(wanted)[0]


def read_index(file: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata of a file as `read_metadata` does, and its tensors by name, those of all pieces.

    Raises:
        GgufError: a file is not a GGUF file, ends too early, or has two tensors of a name; a piece is missing, or the
            file is not the first of them.
    """
    metadata, tensors = _one_index(file, wanted)
    count = metadata.get(_COUNT, 1)
    if not isinstance(count, int) or count < 0:
        raise GgufError(f"its {_COUNT} is {count!r:.{_MOST_SHOWN}}; it must be a number of files")
    if count <= 1:
        return metadata, tensors
    for number, piece in enumerate(_pieces(file, metadata)[1:], 1):
        more, further = _one_index(piece, lambda key: False)
        if (more.get(_NUMBER), more.get(_COUNT)) != (number, count):
            raise GgufError(f"{piece.name} is not piece {number + 1} of {count} by its metadata")
        if twice := tensors.keys() & further.keys():
            raise GgufError(f"two pieces have a tensor {min(twice)!r:.{_MOST_SHOWN}}")
        tensors |= further
    if len(tensors) != metadata.get(_TENSORS, len(tensors)):
        raise GgufError(
            f"its pieces have {len(tensors)} tensors, and its metadata {metadata[_TENSORS]!r:.{_MOST_SHOWN}}"
        )
    return metadata, tensors


def _one_index(file: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with _mapped(file) as (data, identity):
        reader = _Reader(data, identity)
        found, count = reader.read(lambda key: key in _OWN_KEYS or wanted(key))
        return found, reader.tensors(count, found.get(_ALIGNMENT, 32), file)


def _pieces(file: Path, metadata: dict[str, Any]) -> list[Path]:
    """Return the files of a model that is cut into several.

    Raises:
        GgufError: see `read_index`.
    """
    count, number = metadata[_COUNT], metadata.get(_NUMBER)
    if number != 0:
        raise GgufError(f"it is not the first of its {count} pieces; give {_piece_name(file, 1)}")
    pieces = piece_paths(file)
    if len(pieces) != count:
        raise GgufError(
            f"it is the first of {count} pieces, which are found by its name: that must end with "
            f"-00001-of-{count:05}.gguf"
        )
    if missing := [piece.name for piece in pieces if not piece.is_file()]:
        raise GgufError(f"{missing[0]}, which has a part of its tensors, is missing")
    return pieces


@contextmanager
def _mapped(file: Path) -> Iterator[tuple[mmap.mmap, tuple[int, ...]]]:
    """Map a file within the block, and tell it from others and from its other states."""
    with file.open("rb") as stream:
        state = os.fstat(stream.fileno())
        try:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise GgufError("it is empty") from error
    with data:
        yield data, (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)


class _Reader:
    def __init__(self, data: mmap.mmap, identity: tuple[int, ...]) -> None:
        self._data = data
        self._identity = identity
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

    def tensors(self, count: int, alignment: object, file: Path) -> dict[str, Tensor]:
        """Return the tensors, which follow the metadata."""
        if not isinstance(alignment, int) or alignment <= 0:
            raise GgufError(f"its {_ALIGNMENT} is {alignment!r:.{_MOST_SHOWN}}; it must be positive")
        found: dict[str, Tensor] = {}
        for _ in range(count):
            name, dimensions = self._text(), self._number("I")
            if name in found:
                raise GgufError(f"it has two tensors {name!r:.{_MOST_SHOWN}}")
            if dimensions > _MOST_DIMENSIONS:
                raise GgufError(
                    f"{name!r:.{_MOST_SHOWN}} has {dimensions} dimensions; {_MOST_DIMENSIONS} can be read"
                )
            sizes = [int(self._number("Q")) for _ in range(dimensions)]
            found[name] = Tensor(tuple(reversed(sizes)), self._number("I"), self._number("Q"), file)
        start = -(-self._position // alignment) * alignment
        return {name: replace(each, offset=start + each.offset) for name, each in found.items()}

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
        if is_wanted and count > _MOST_NUMBERS:
            raise GgufError(f"it has an array of {count} numbers; {_MOST_NUMBERS} can be read")
        data = self._bytes(count * struct.calcsize("<" + _FORMATS[kind]))
        return list(struct.unpack(f"<{count}{_FORMATS[kind]}", data)) if is_wanted else []

    def _texts(self, count: int, is_wanted: bool) -> list[str]:
        array = (*self._identity, self._position)
        if not is_wanted and array in _TEXTS_END:
            self._position = _TEXTS_END[array]
            return []
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
        if len(_TEXTS_END) < _MOST_KNOWN:
            _TEXTS_END[array] = position
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
