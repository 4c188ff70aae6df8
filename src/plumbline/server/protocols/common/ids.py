"""Make ids and timestamps of answers."""

from __future__ import annotations

import secrets
import time

__all__ = ["new_id", "now"]


def new_id(prefix: str) -> str:
    """Return a fresh id such as `chatcmpl-…` or `msg_…`."""
    return prefix + secrets.token_hex(16)


def now() -> int:
    """Return Unix time in whole seconds."""
    return int(time.time())
