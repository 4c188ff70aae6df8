"""Define what an API server is started with."""

from __future__ import annotations

import msgspec

from plumbline.server.settings import Settings

__all__ = ["Start"]


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What an API server reads from its standard input, because arguments and environments can be seen by others."""

    settings: Settings
    listening: int
    """The file descriptor of the socket that all API servers accept connections from."""
    engine: str
    """The engine's Unix socket."""
    hub: str
    """The hub's Unix socket."""
    address: str
    """The Unix socket for requests that other API servers pass on."""
