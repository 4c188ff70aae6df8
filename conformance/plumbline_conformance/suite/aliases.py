"""Translate former ids of checks, which commands, baselines, recordings and published sets may still contain."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files

__all__ = ["aliases", "current", "notes"]


@cache
def aliases() -> dict[str, str]:
    """Return the current id of every former one."""
    text = files("plumbline_conformance.suite").joinpath("aliases.toml").read_text("utf-8")
    found: dict[str, str] = tomllib.loads(text)
    return found


def current(name: str) -> str:
    """Return the current id of a check; any other name is returned unchanged."""
    return aliases().get(name, name)


def notes(names: Iterable[str]) -> Iterator[str]:
    """Yield one sentence for each former id among these names."""
    for name in dict.fromkeys(names):
        if name in aliases():
            yield f"{name} is now called {aliases()[name]}."
