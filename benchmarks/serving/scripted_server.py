"""Serve tokens from a script, so that only the server's own work is measured.

Arguments: PORT STORE TOKENS SECONDS_BETWEEN_TOKENS [API_SERVERS].

The text of each token is the time at which the engine gave it, so that a client on the same machine can compute how
long the token was under way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import msgspec

from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.loading.catalog import only
from plumbline.server.loading.served_model import load
from plumbline.server.loading.storage import build_store
from plumbline.server.settings import Settings
from plumbline.server.start.api_servers.supervisor import supervise
from plumbline.server.start.garbage import make_collections_rare
from plumbline.server.start.listener import listener
from plumbline.server.start.sockets import bound


def main(port: int, store: str, tokens: int, seconds: float, api_servers: int = 1) -> None:
    """Serve until a signal; with several API servers this process has the engine only."""
    settings = Settings(host="127.0.0.1", port=port, store=store, served_model_names=("bench",))
    pocket = load(settings)
    encode = pocket.renderer.tokenizer.encode_text

    def script(request: GenerateRequest) -> Iterator[TokenChunk]:
        for _ in range(tokens):
            yield TokenChunk(token_ids=tuple(encode(f"{time.monotonic():.6f} ")))

    info = msgspec.structs.replace(pocket.engine.info, name="scripted", num_blocks=0)
    model = msgspec.structs.replace(pocket, engine=ScriptedEngine(info, script, delay=seconds))
    make_collections_rare()
    if api_servers > 1:
        with bound(settings) as sockets:
            supervise(model.engine, settings, api_servers, sockets)
        return
    listener(only(model), settings, build_store(settings), host=settings.host, port=port).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), *map(int, sys.argv[5:]))
