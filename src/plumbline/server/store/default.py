"""Name the store of a server whose operator names none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["default_url"]


def default_url(environment: Mapping[str, str] | None = None) -> str:
    """Return the URL of the file in the user's data directory; empty if the user has none, which is refused later.

    A folder that others can write is no place for it, so there is no other default.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("XDG_DATA_HOME")
    if not home:
        try:
            home = str(Path.home() / ".local" / "share")
        except RuntimeError:  # A container's user has neither HOME nor an entry in /etc/passwd.
            return ""
    return f"sqlite:///{Path(home) / 'plumbline' / 'responses.db'}"
