"""Start the server and stop it gracefully."""

from __future__ import annotations

import socket
import sys

from plumbline.server.loading.catalog import only
from plumbline.server.loading.model import load
from plumbline.server.loading.storage import build_store
from plumbline.server.settings import Settings
from plumbline.server.start.api_servers.supervisor import supervise
from plumbline.server.start.garbage import make_collections_rare
from plumbline.server.start.listener import listener
from plumbline.server.start.sockets import bound, check_certificates
from plumbline.store.interface import Store
from plumbline.text.earlier_thinking import dropped_thinking

__all__ = ["run"]


def run(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM, let streams finish within `shutdown_timeout`, and return the exit status.

    Raises:
        SettingsError: as `bound`, `check_certificates`, `load` and `build_store`.
        Exception: the store or the engine did not start; `explained` has a line for it.
    """
    check_certificates(settings)
    store = build_store(settings)
    with bound(settings) as sockets:
        return _serve(settings, store, sockets)


def _serve(settings: Settings, store: Store | None, sockets: list[socket.socket]) -> int:
    model = load(settings)
    info = model.engine.info
    names = ", ".join(model.names)
    print(
        f"Serving {names} with the {info.name} engine ({model.engine_reason}; {info.max_model_len} tokens of context) "
        f"on {_address(settings)}",
        file=sys.stderr,
        flush=True,
    )
    print(model.dialect.choice.describe(), file=sys.stderr, flush=True)
    if model.dialect.choice.reasoning is not None and (dropped := dropped_thinking(model.renderer)):
        print(dropped, file=sys.stderr, flush=True)
    stored = "not stored (--store none)" if store is None else f"stored in {store.description} (--store)"
    print(f"Responses are {stored}", file=sys.stderr, flush=True)
    make_collections_rare()
    if settings.api_servers > 1:
        print(f"{settings.api_servers} API servers share the engine", file=sys.stderr, flush=True)
        return supervise(model.engine, settings, settings.api_servers, sockets)
    server = listener(only(model), settings, store, host=settings.host, port=settings.port)
    server.run(sockets=sockets)
    return 0 if server.started else 1


def _address(settings: Settings) -> str:
    """Return the base URL, or the Unix socket, on which the server listens."""
    if settings.uds:
        return f"the Unix socket {settings.uds} (paths begin with /v1)"
    scheme = "https" if settings.ssl_certfile else "http"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{settings.port}/v1"
