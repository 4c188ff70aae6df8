"""Start the server and stop it gracefully."""

from __future__ import annotations

import sys

from plumbline.server.listener import listener
from plumbline.server.loading import load
from plumbline.server.settings import Settings

__all__ = ["run"]


def run(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM, let streams finish within `shutdown_timeout`, and return the exit status."""
    model = load(settings)
    info = model.engine.info
    names = ", ".join(model.names)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    print(
        f"Serving {names} with the {info.name} engine ({info.max_model_len} tokens of context) "
        f"on http://{host}:{settings.port}/v1",
        file=sys.stderr,
        flush=True,
    )
    print(model.dialect.choice.describe(), file=sys.stderr, flush=True)
    server = listener(model, settings, host=settings.host, port=settings.port)
    server.run()
    return 0 if server.started else 1
