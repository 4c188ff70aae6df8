"""Find the user's folder of data, and the default store in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["data_folder", "default_url"]


def data_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Return Plumbline's folder in the user's data directory; None if the user has none."""
    environment = os.environ if environment is None else environment
    home = environment.get("XDG_DATA_HOME")
    if not home:
        try:
            home = str(Path.home() / ".local" / "share")
        except RuntimeError:  # A container's user has neither HOME nor an entry in /etc/passwd.
            return None
    return Path(home) / "plumbline"


def default_url(environment: Mapping[str, str] | None = None) -> str:
    """Return the URL of the store in the user's folder; empty if the user has none, which is refused later.

    A folder that others can write is no place for it, so there is no other default.
    """
    folder = data_folder(environment)
    return "" if folder is None else f"sqlite:///{folder / 'responses.db'}"
