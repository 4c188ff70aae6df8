"""Describe a defect of the judge itself, for the verdict `error`."""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["summary_of", "traceback_of"]

_PACKAGE = Path(__file__).parents[1]
_FRAMES = 12
"""Innermost frames that are shown; endless recursion has a thousand."""
_LONGEST = 300


def summary_of(error: BaseException) -> str:
    """Return the type and the message of an exception, in one short line."""
    text = " ".join(str(error).split())[:_LONGEST]
    return f"{type(error).__name__}: {text}".rstrip(": ")


def traceback_of(error: BaseException) -> str:
    """Return the traceback with paths relative to the package, so that a report shows no home directory."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    lines = [f"{_relative(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
    return "\n".join([*lines, summary_of(error)])


def _relative(name: str) -> str:
    path = Path(name)
    return str(path.relative_to(_PACKAGE)) if path.is_relative_to(_PACKAGE) else path.name
