"""Former ids of checks: whoever wrote one down (in a command, a baseline, a recording, a set) means the same check."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files

__all__ = ["aliases", "current", "notes"]


@cache
def aliases() -> dict[str, str]:
    """The id of today of every former one."""
    text = files("plumbline_conformance.suite").joinpath("aliases.toml").read_text("utf-8")
    found: dict[str, str] = tomllib.loads(text)
    return found


def current(name: str) -> str:
    """The id of today; whatever is no former id is given back as it is."""
    return aliases().get(name, name)


def notes(names: Iterable[str]) -> Iterator[str]:
    """A sentence for each of these that is a former id, once."""
    for name in dict.fromkeys(names):
        if name in aliases():
            yield f"{name} is called {aliases()[name]} now."
