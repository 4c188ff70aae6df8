"""Collect the beginnings and the ends of texts, to find texts that are cut in two."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["proper_prefixes", "proper_suffixes"]


def proper_prefixes(texts: Iterable[str]) -> frozenset[str]:
    """Return every beginning of the texts that is neither empty nor a whole text."""
    return frozenset(text[:size] for text in texts for size in range(1, len(text)))


def proper_suffixes(texts: Iterable[str]) -> frozenset[str]:
    """Return every end of the texts that is neither empty nor a whole text."""
    return frozenset(text[size:] for text in texts for size in range(1, len(text)))
