"""Load the models of a server, and serve until it is stopped."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from plumbline.base.workers.memory import trim
from plumbline.port.progress import LoadProgress, report, watched
from plumbline.server.loading.catalog import Catalog, only
from plumbline.server.loading.several import several
from plumbline.server.loading.storage import build_store, with_sealing_key
from plumbline.server.settings import OptionError, Settings
from plumbline.server.start.api_servers.supervisor import supervise
from plumbline.server.start.engine_process.keeper import Begun
from plumbline.server.start.engine_process.load import KeptEngine, load_apart, plan_apart
from plumbline.server.start.explain import print_line
from plumbline.server.start.garbage import make_collections_rare
from plumbline.server.start.listener import listener
from plumbline.server.start.summary import summary
from plumbline.server.start.terminal import shown
from plumbline.server.start.waiting import Waiting, answering

__all__ = ["serve"]


def serve(
    settings: Settings,
    sockets: list[socket.socket],
    begun: Begun | None,
    read: Callable[[], Settings] | None,
) -> int:
    """Serve until SIGINT or SIGTERM, and return the exit status.

    Args:
        settings: the settings.
        sockets: where clients connect.
        begun: the engine of the only model.
        read: see `run`.

    Raises:
        SettingsError: as `load` and `build_store`.
        Exception: the store or the engine did not start; `explained` has a line for it.
    """
    store = build_store(settings)
    settings, key_note = with_sealing_key(settings)
    catalog = _load(settings, sockets, begun)
    known = {name for source in catalog.sources for name in source.names}
    if unknown := next((name for name, _ in settings.sampling_defaults if name and name not in known), ""):
        raise OptionError("--sampling-defaults", f"names {unknown[:80]!r}, and no model has that name")
    make_collections_rare()
    trim()
    lines = summary(catalog, settings, store, _port(sockets), key_note)
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


def _load(settings: Settings, sockets: list[socket.socket], begun: Begun | None) -> Catalog:
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
            return _catalog(settings, begun)


def _catalog(settings: Settings, begun: Begun | None) -> Catalog:
    report("loading libraries")
    if not settings.several_models:
        return only(load_apart(settings, begun), lambda: load_apart(settings))
    return several(plan_apart(settings), settings, lambda name: report(f"loading {name}"), load_apart)


def _port(sockets: list[socket.socket]) -> int:
    """Return the TCP port of the first socket; 0 for a Unix socket."""
    address = sockets[0].getsockname()
    return int(address[1]) if isinstance(address, tuple) else 0
