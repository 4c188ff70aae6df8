"""Count the requests that use each adapter of an engine, and read the rank of an adapter."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

from plumbline.port.engine import RefusedRequestError

__all__ = ["CONFIG", "WEIGHTS", "AdapterGate", "AdapterUsers", "adapter_rank", "read_config"]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter, as PEFT writes them."""
_MAX_CONFIG_BYTES = 1024**2
_MOST_SHOWN = 200
"""Characters of an error."""


class AdapterGate(Protocol):
    """Let requests in that name an adapter, or none."""

    def enter(self, name: str | None) -> object:
        """Count a request; `leave` takes what is returned.

        Raises:
            RefusedRequestError: no adapter of this name is loaded.
        """

    def leave(self, entered: Any) -> None:
        """Count a request no longer."""


class AdapterUsers:
    """The numbers of requests in flight, by the number of their adapter."""

    def __init__(self) -> None:
        self._users: Counter[int] = Counter()
        self._idle: dict[int, asyncio.Event] = {}
        """Set when the last request of an adapter has ended."""

    def enter(self, number: int) -> None:
        """Count a request."""
        self._users[number] += 1

    def leave(self, number: int) -> None:
        """Count a request no longer."""
        self._users[number] -= 1
        if not self._users[number]:
            del self._users[number]
            if number in self._idle:
                self._idle[number].set()

    async def unused(self, number: int) -> None:
        """Wait until no request in flight has this adapter; none may enter any more."""
        if self._users[number]:
            idle = self._idle.setdefault(number, asyncio.Event())
            await idle.wait()
            self._idle.pop(number, None)


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of an adapter.

    Raises:
        RefusedRequestError: it is too large, or not a JSON object.
    """
    path = folder / CONFIG
    try:
        if path.exists() and not path.is_file():
            raise RefusedRequestError(f"{CONFIG} is a pipe, a socket or a device, not a file")
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise RefusedRequestError(f"{CONFIG} has more than {_MAX_CONFIG_BYTES} bytes")
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(error) from None
    if not isinstance(found, dict):
        raise RefusedRequestError(f"{CONFIG} does not describe a LoRA adapter: it is not a JSON object")
    return found


def adapter_rank(folder: Path) -> int:
    """Return the largest rank of an adapter.

    Raises:
        RefusedRequestError: its configuration cannot be read.
    """
    config = read_config(folder)
    try:
        return max([int(config["r"]), *(int(rank) for rank in (config.get("rank_pattern") or {}).values())])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> RefusedRequestError:
    # The `repr` of an error may have the whole file.
    text = f"{type(error).__name__}: {error}"[:_MOST_SHOWN]
    return RefusedRequestError(f"{CONFIG} does not describe a LoRA adapter: {text!r}")
