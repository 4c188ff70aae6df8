"""Keep the sealing key of a server without a store in a file of the user."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from plumbline.server.store.default import data_folder

__all__ = ["kept_key"]

_NAME = "sealing-key"
_CHARACTERS = 64
"""Hexadecimal digits of the key."""


def kept_key() -> tuple[str, Path | None]:
    """Return the user's sealing key, made at the first call, and its file.

    Where no file can be kept, such as in a container without a home directory, the key is a new one and the file None.
    """
    folder = data_folder()
    fresh = secrets.token_hex(_CHARACTERS // 2)
    if folder is None:
        return fresh, None
    path = folder / _NAME
    try:
        found = _read(path) or _made(path, fresh)
    except OSError:
        found = ""
    return (found, path) if found else (fresh, None)


def _read(path: Path) -> str:
    """Return the key in a file; empty if the file does not exist or holds no key."""
    try:
        with path.open("rb") as file:
            text = file.read(_CHARACTERS + 2).strip()
    except FileNotFoundError:
        return ""
    return text.decode("ascii", "replace") if len(text) == _CHARACTERS else ""


def _made(path: Path, key: str) -> str:
    """Write the key and return the one that the file has: of servers that start together, the first one's."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{_NAME}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(key)
        # A link, because a file that is replaced would change the key of a server that has just read it.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return _read(path)
