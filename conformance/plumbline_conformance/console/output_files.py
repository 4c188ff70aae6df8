"""The files of a run, looked at before it: what it could not write at its end, and what would overwrite what."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["why_unwritable"]


def why_unwritable(
    written: Mapping[str, Path | None], read: Mapping[str, Path | None] | None = None
) -> str | None:
    """What is said if these files cannot be written, or not all of them; None if they can.

    Args:
        written: by the options that name them; None where one was not given.
        read: files that the command needs, which none of the others may be.
    """
    taken = {_place(path): name for name, path in (read or {}).items() if path is not None}
    for name, path in written.items():
        if path is None:
            continue
        if not path.parent.is_dir():
            return f"{path} cannot be written: there is no folder {path.parent}."
        if path.is_dir():
            return f"{path} cannot be written: it is a folder."
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            return f"{path} cannot be written: it is not allowed."
        if path.exists() and not path.is_file():
            continue  # A pipe or a terminal takes one after the other.
        other = taken.setdefault(_place(path), name)
        if other != name:
            return f"{path} is named by {other} and by {name}, and one would overwrite the other."
    return None


def _place(path: Path) -> str:
    return os.path.realpath(path)
