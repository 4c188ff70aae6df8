"""Define the messages of the supervisor to an API server."""

from __future__ import annotations

import msgspec

from plumbline.server.settings import Settings

__all__ = ["Renewal", "ServerStart"]


class Renewal(msgspec.Struct, frozen=True):
    """A later message: the keys and the files of certificates have changed."""

    api_keys: tuple[str, ...] | None
    """None if they cannot be used, and stay as they are."""


class ServerStart(msgspec.Struct, frozen=True, kw_only=True):
    """The start message on an API server's standard input; other users can see arguments and environments."""

    settings: Settings
    listening: list[int]
    """The file descriptors of the sockets that all API servers accept connections from."""
    engine: str
    """The engine's Unix socket."""
    hub: str
    """The hub's Unix socket."""
    address: str
    """The Unix socket for requests that other API servers pass on."""
