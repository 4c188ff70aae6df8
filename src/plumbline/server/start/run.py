"""Start the server and stop it gracefully.

The engine's process is started as early as possible: this module imports little, and `serve`, which takes a second,
while that process imports torch and loads the model.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from plumbline.hub.pull import fetch_missing
from plumbline.server.observe.logs import configure
from plumbline.server.settings import OptionError, Settings
from plumbline.server.start.descriptors import with_descriptors
from plumbline.server.start.engine_process.keeper import begin
from plumbline.server.start.sockets import bound

__all__ = ["run"]


def run(settings: Settings, read: Callable[[], Settings] | None = None) -> int:
    """Serve until SIGINT or SIGTERM, let streams finish within `shutdown_timeout`, and return the exit status.

    Args:
        settings: the settings.
        read: reads them again at SIGHUP, of which the keys are used.

    Raises:
        SettingsError: as `bound`, `tls_context`, `begin` and `serve`.
        Exception: the store or the engine did not start; `explained` has a line for it.
    """
    gc.disable()  # Until `make_collections_rare`: little of what a start makes is garbage.
    configure(settings.log_format)
    settings = with_descriptors(settings)
    if settings.ssl_certfile:
        from plumbline.server.start.connections.tls import tls_context

        tls_context(settings)  # Not after the models have been loaded.
    with bound(settings) as sockets:
        for _, model in settings.models:
            _fetch(model, settings)
        begun = None if settings.several_models else begin(settings)
        try:
            from plumbline.server.start.serve import serve

            gc.freeze()  # Libraries are most of the objects, and stay.
            return serve(settings, sockets, begun, read)
        finally:
            if begun is not None:
                begun.process.end()  # It has ended, unless the start has failed.


def _fetch(model: str, settings: Settings) -> None:
    try:
        fetch_missing(model, yes=settings.yes)
    except FileNotFoundError as error:
        raise OptionError("--model", f"cannot be used: {error}") from error
