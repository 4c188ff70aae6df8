"""Start the server and stop it gracefully."""

from __future__ import annotations

import socket
import sys

from plumbline.server.loading.catalog import Catalog, only
from plumbline.server.loading.model import load
from plumbline.server.loading.storage import build_store
from plumbline.server.settings import Settings
from plumbline.server.start.api_servers.supervisor import supervise
from plumbline.server.start.garbage import make_collections_rare
from plumbline.server.start.listener import listener
from plumbline.server.start.sockets import bound, check_certificates
from plumbline.store.interface import Store
from plumbline.text.earlier_thinking import dropped_thinking
from plumbline_kernels.cpu.build import build_ahead

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
    if _may_compile(settings):
        build_ahead()
    catalog = _catalog(settings)
    _describe(catalog, settings)
    if settings.several_models:
        _print(
            f"Models on {_address(settings)}: {_loaded(catalog)}; together they may take "
            f"{catalog.capacity / 1024**3:.1f} GiB (--models-memory-bytes)"
        )
    _print(f"Responses are {_storage(store)}")
    make_collections_rare()
    if settings.api_servers > 1:
        _print(f"{settings.api_servers} API servers share the engine")
        (served,) = catalog.loaded.values()
        return supervise(served.engine, settings, settings.api_servers, sockets)
    server = listener(catalog, settings, store, host=settings.host, port=settings.port)
    server.run(sockets=sockets)
    return 0 if server.started else 1


def _may_compile(settings: Settings) -> bool:
    """Return whether the engine may need compiled kernels; what it is and runs on is known after seconds of imports."""
    return (
        settings.compile != "off"
        and settings.engine in ("auto", "plumbline")
        and settings.device in ("auto", "cpu")
    )


def _catalog(settings: Settings) -> Catalog:
    """Load the models of the start."""
    if not settings.several_models:
        return only(load(settings), lambda: load(settings))
    # It imports torch, which takes seconds: not before the certificates and the address are checked.
    from plumbline.server.loading.several import several

    return several(settings, lambda name: _print(f"Loading {name}"))


def _loaded(catalog: Catalog) -> str:
    """Count the models that are loaded."""
    total, loaded = len(catalog.sources), len(catalog.loaded)
    others = ", the others when requests name them" if loaded < total else ""
    return f"{loaded} of {total} loaded{others}"


def _describe(catalog: Catalog, settings: Settings) -> None:
    """Say how each model is served. A model that is unloaded later must not be kept by a variable of `_serve`."""
    for model in catalog.loaded.values():
        info = model.engine.info
        names = ", ".join(model.names)
        _print(
            f"Serving {names} with the {info.name} engine ({model.engine_reason}; {info.max_model_len} tokens of "
            f"context) on {_address(settings)}"
        )
        _print(model.dialect.choice.describe())
        if model.dialect.choice.reasoning is not None and (dropped := dropped_thinking(model.renderer)):
            _print(dropped)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _storage(store: Store | None) -> str:
    return "not stored (--store none)" if store is None else f"stored in {store.description} (--store)"


def _address(settings: Settings) -> str:
    """Return the base URL, or the Unix socket, on which the server listens."""
    if settings.uds:
        return f"the Unix socket {settings.uds} (paths begin with /v1)"
    scheme = "https" if settings.ssl_certfile else "http"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{settings.port}/v1"
