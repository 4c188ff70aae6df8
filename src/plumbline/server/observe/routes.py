"""Name the route of a path, for metrics, traces and limits."""

from __future__ import annotations

import re

from plumbline.contract._generated import OPERATIONS

__all__ = ["OTHER", "route_of"]

OTHER = "other"
"""The route of a path that the contract does not have."""


def route_of(path: str) -> str:
    """Return the path with `{id}` for its ids, so that clients cannot make up new time series, or `other`."""
    if path in _KNOWN_PATHS:
        return path
    return next((label for pattern, label in _PATTERNS if pattern.fullmatch(path)), OTHER)


def _pattern(template: str) -> re.Pattern[str]:
    """Compile a path template of the contract. Model ids may contain slashes (MOD-02), other ids may not."""
    ids = {name: ".+" if name == "model" else "[^/]+" for name in re.findall(r"\{(\w+)\}", template)}
    return re.compile(re.sub(r"\\\{(\w+)\\\}", lambda found: ids[found[1]], re.escape(template)))


_LABELS = {op.path: re.sub(r"\{\w+\}", "{id}", op.path) for op in OPERATIONS}
_KNOWN_PATHS = frozenset(_LABELS.values())
_PATTERNS = [(_pattern(path), label) for path, label in _LABELS.items() if path != label]
