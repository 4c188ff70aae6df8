"""Start the server and stop it gracefully."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from plumbline.hub.pull import fetch_missing
from plumbline.port.progress import LoadProgress, report, watched
from plumbline.server.loading.catalog import Catalog, only
from plumbline.server.loading.several import several
from plumbline.server.loading.storage import build_store
from plumbline.server.observe.logs import configure
from plumbline.server.settings import OptionError, Settings
from plumbline.server.start.api_servers.supervisor import supervise
from plumbline.server.start.connections.tls import tls_context
from plumbline.server.start.descriptors import with_descriptors
from plumbline.server.start.engine_process.load import KeptEngine, load_apart, plan_apart
from plumbline.server.start.garbage import make_collections_rare
from plumbline.server.start.listener import listener
from plumbline.server.start.sockets import bound
from plumbline.server.start.summary import print_line, summary
from plumbline.server.start.terminal import shown
from plumbline.server.start.waiting import Waiting, answering
from plumbline.server.store.interface import Store

__all__ = ["run"]


def run(settings: Settings, read: Callable[[], Settings] | None = None) -> int:
    """Serve until SIGINT or SIGTERM, let streams finish within `shutdown_timeout`, and return the exit status.

    Args:
        settings: the settings.
        read: reads them again at SIGHUP, of which the keys are used.

    Raises:
        SettingsError: as `bound`, `tls_context`, `load` and `build_store`.
        Exception: the store or the engine did not start; `explained` has a line for it.
    """
    configure(settings.log_format)
    settings = with_descriptors(settings)
    if settings.ssl_certfile:
        tls_context(settings)  # Not after the models have been loaded.
    store = build_store(settings)
    with bound(settings) as sockets:
        return _serve(settings, store, sockets, read)


def _serve(
    settings: Settings,
    store: Store | None,
    sockets: list[socket.socket],
    read: Callable[[], Settings] | None,
) -> int:
    for _, model in settings.models:
        _fetch(model, settings)
    catalog = _load(settings, sockets)
    known = {name for source in catalog.sources for name in source.names}
    if unknown := next((name for name, _ in settings.sampling_defaults if name and name not in known), ""):
        raise OptionError("--sampling-defaults", f"names {unknown[:80]!r}, and no model has that name")
    lines = summary(catalog, settings, store, _port(sockets))
    make_collections_rare()
    if settings.api_servers > 1:
        (served,) = catalog.loaded.values()
        assert isinstance(served.engine, KeptEngine)
        return supervise(
            served.engine,
            served.engine.socket,
            settings,
            settings.api_servers,
            sockets,
            lambda: print_line(lines),
            read,
        )
    server = listener(
        catalog,
        settings,
        store,
        host=settings.host,
        port=settings.port,
        announce=lambda: print_line(lines),  # Not before: the store may be out of reach.
        read=read,
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises SIGINT again when it has stopped.
        server.run(sockets=sockets)
    return 0 if server.started and not server.failed else 1


def _fetch(model: str, settings: Settings) -> None:
    try:
        fetch_missing(model, yes=settings.yes)
    except FileNotFoundError as error:
        raise OptionError("--model", f"cannot be used: {error}") from error


def _load(settings: Settings, sockets: list[socket.socket]) -> Catalog:
    """Load the models of the start, and show on the terminal, and to clients if they may ask, how far it is."""
    waiting = Waiting()
    with contextlib.ExitStack() as stack:
        if settings.answer_while_loading:
            stack.enter_context(answering(waiting, settings, sockets))
        show = stack.enter_context(shown())

        def watch(progress: LoadProgress) -> None:
            waiting.progress = progress
            show(progress)

        with watched(watch):
            return _catalog(settings)


def _catalog(settings: Settings) -> Catalog:
    report("loading libraries")
    if not settings.several_models:
        return only(load_apart(settings), lambda: load_apart(settings))
    return several(plan_apart(settings), settings, lambda name: report(f"loading {name}"), load_apart)


def _port(sockets: list[socket.socket]) -> int:
    """Return the TCP port of the first socket; 0 for a Unix socket."""
    address = sockets[0].getsockname()
    return int(address[1]) if isinstance(address, tuple) else 0
