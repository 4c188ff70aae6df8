"""Relay bytes without reading them: the minimal proxy that `plumbline watch` is compared with.

python benchmarks/watch/relay.py --upstream http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

try:
    import uvloop
except ModuleNotFoundError:
    uvloop = None


class RelayEnd(asyncio.Protocol):
    """Relay one connection; bytes that arrive before the upstream is connected wait."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.other: RelayEnd | None = None
        self.early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early += data
        else:
            self.other.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()


async def main() -> None:
    """Relay until the process ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", required=True)
    upstream = urlsplit(parser.parse_args().upstream)
    loop = asyncio.get_running_loop()
    tasks = set()

    async def connect(front: RelayEnd) -> None:
        _, back = await loop.create_connection(RelayEnd, upstream.hostname, upstream.port)
        front.other, back.other = back, front
        back.transport.write(front.early)

    def connected() -> RelayEnd:
        front = RelayEnd()
        tasks.add(task := loop.create_task(connect(front)))
        task.add_done_callback(tasks.discard)
        return front

    server = await loop.create_server(connected, "127.0.0.1", 0)
    print(f"Listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}, towards it", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    factory: Callable[[], asyncio.AbstractEventLoop] | None = (
        None if uvloop is None else uvloop.new_event_loop
    )
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
