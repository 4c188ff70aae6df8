"""Derive the merges of a SentencePiece vocabulary from its scores, and keep those of a large one in the user's cache.

Of all pairs that make a token the one with the highest score is merged first. Gemma's 262,144 tokens have half a
million pairs, which take a second to find.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["merges_of"]

_LARGE = 100_000
"""Tokens from which on merges are kept; those of fewer are found within 0.2 s."""
_FORM = b"1"
"""Changes when other merges are derived from the same vocabulary."""
_DIGEST = 32
"""Bytes of a SHA-256."""


def merges_of(
    tokens: Sequence[str], vocab: Mapping[str, int], scores: Sequence[float], made: Sequence[int]
) -> list[tuple[str, str]]:
    """Return all pairs of tokens that make a token of text, those of the highest score first.

    Args:
        tokens: the texts of the tokens.
        vocab: the ids of those that are used, by their texts.
        scores: of the tokens.
        made: the ids that pairs may make.
    """
    place = None if len(tokens) < _LARGE else _place(tokens, vocab, scores, made)
    pairs = _read(place)
    if not pairs:
        pairs = _derived(tokens, vocab, sorted(made, key=lambda number: -scores[number]))
        _write(place, pairs)
    numbers = iter(pairs)
    return [(tokens[first], tokens[second]) for first, second in zip(numbers, numbers, strict=True)]


def _derived(tokens: Sequence[str], vocab: Mapping[str, int], made: Iterable[int]) -> array[int]:
    """Return the ids of all pairs, one after the other."""
    found = array("I")
    for number in made:
        text = tokens[number]
        for cut in range(1, len(text)):
            first = vocab.get(text[:cut])
            if first is not None and (second := vocab.get(text[cut:])) is not None:
                found.append(first)
                found.append(second)
    return found


def _place(
    tokens: Sequence[str], vocab: Mapping[str, int], scores: Sequence[float], made: Sequence[int]
) -> Path | None:
    """Return the file of the merges, by a hash of all that they depend on; None if the user has no home."""
    digest = hashlib.sha256(_FORM)
    digest.update(array("I", map(len, tokens)).tobytes())  # So that no two vocabularies have the same bytes.
    digest.update("".join(tokens).encode("utf-8", "surrogatepass"))
    for part in (array("d", scores), array("I", vocab.values()), array("I", made)):
        digest.update(hashlib.sha256(part.tobytes()).digest())
    base = os.environ.get("XDG_CACHE_HOME")
    with suppress(RuntimeError):
        folder = (Path(base) if base else Path.home() / ".cache") / "plumbline" / "merges"
        return folder / digest.hexdigest()
    return None


def _read(place: Path | None) -> array[int]:
    """Return the merges of a file; nothing if there is none, or it is broken."""
    found = array("I")
    if place is not None:
        with suppress(OSError):
            data = place.read_bytes()
            if data[:_DIGEST] == hashlib.sha256(data[_DIGEST:]).digest():
                found.frombytes(data[_DIGEST:])
    return found


def _write(place: Path | None, pairs: array[int]) -> None:
    """Write a file that readers see as a whole; a disk that is full or read-only costs the next start a second."""
    if place is None:
        return
    data = pairs.tobytes()
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
            try:
                file.write(hashlib.sha256(data).digest() + data)
                file.close()
                os.replace(file.name, place)
            except OSError:
                os.unlink(file.name)
                raise
