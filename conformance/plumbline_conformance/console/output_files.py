"""Check before a run that its files can be read or written, and do not overwrite each other."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["why_unreadable", "why_unwritable"]


def why_unreadable(path: Path) -> str | None:
    """Return the reason why a file cannot be read; None if it can."""
    try:
        if path.is_dir():
            return "it is a directory"
        os.stat(path)
    except (OSError, ValueError) as error:
        return (getattr(error, "strerror", None) or str(error)).lower()
    return None if os.access(path, os.R_OK) else "permission denied"


def why_unwritable(written: Mapping[str, Path], read: Mapping[Path, str] | None = None) -> str | None:
    """Return the reason why these files cannot be written; None if they can.

    Args:
        written: output files by the option that names them.
        read: input files, which must not be overwritten, with the options that name them.
    """
    taken = {_place(path): name for path, name in (read or {}).items()}
    for name, path in written.items():
        if not path.parent.is_dir():
            return f"{name} {path} cannot be written: the directory {path.parent} does not exist."
        if path.is_dir():
            return f"{name} {path} cannot be written: it is a directory."
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            return f"{name} {path} cannot be written: permission denied."
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
