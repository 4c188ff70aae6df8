"""Check before a run that its output files can be written and do not overwrite each other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["why_unwritable"]


def why_unwritable(
    written: Mapping[str, Path | None], read: Mapping[str, Path | None] | None = None
) -> str | None:
    """Return the reason why these files cannot be written; None if they can.

    Args:
        written: output files by the option that names them; None if the option was not given.
        read: input files, which must not be overwritten.
    """
    taken = {_place(path): name for name, path in (read or {}).items() if path is not None}
    for name, path in written.items():
        if path is None:
            continue
        if not path.parent.is_dir():
            return f"{path} cannot be written: the directory {path.parent} does not exist."
        if path.is_dir():
            return f"{path} cannot be written: it is a directory."
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            return f"{path} cannot be written: permission denied."
        if path.exists() and not path.is_file():
            continue  # A pipe or terminal can take several outputs.
        other = taken.setdefault(_place(path), name)
        if other != name:
            return (
                f"{path} is given for both {other} and {name}: one would overwrite the other. Name two files."
            )
    return None


def _place(path: Path) -> str:
    return os.path.realpath(path)
