"""A supervisor with real API servers, each a process, and an engine that gives a chunk only when the test lets it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2

from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.engines.remote.host import EngineHost
from plumbline.pocket import MODEL_DIR
from plumbline.port.engine import EngineInfo, EngineStats, GenerateRequest, TokenChunk
from plumbline.server.settings import Settings
from plumbline.server.start.api_servers.supervisor import Supervisor
from plumbline.server.start.sockets import bound
from support.models import GatedEngine

__all__ = ["KEY", "LIMITED", "TOKENIZER", "WORDS", "Running", "supervised", "wait_for"]

KEY = "a-key"
LIMITED = "a-limited-key"
WORDS = 8
TOKENIZER = TextTokenizer.from_folder(MODEL_DIR)
EOS = TOKENIZER.added["<|im_end|>"]
INFO = EngineInfo(
    name="scripted",
    model="test",
    vocab_size=TOKENIZER.vocab_size,
    max_model_len=4096,
    eos_token_ids=frozenset({EOS}),
)


def words(_: GenerateRequest) -> Iterator[TokenChunk]:
    for number in range(WORDS):
        yield TokenChunk(token_ids=tuple(TOKENIZER.encode_text(f"word {number} ")))
    yield TokenChunk(token_ids=(EOS,), finish_reason="stop")


@dataclass
class Running:
    """A supervisor on a thread of its own, with an engine that gives a chunk only when the test lets it."""

    engine: GatedEngine
    supervisor: Supervisor
    loop: asyncio.AbstractEventLoop
    folder: Path
    port: int
    statuses: list[int] = field(default_factory=list)

    def let(self, chunks: int = 10_000) -> None:
        self.loop.call_soon_threadsafe(self.engine.let, chunks)

    def hold(self) -> None:
        """Let no more chunks pass."""
        self.loop.call_soon_threadsafe(lambda: setattr(self.engine, "_gate", asyncio.Semaphore(0)))

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in list(self.supervisor._processes)]

    def client(self, number: int | None = None) -> httpx2.Client:
        """Return a client of the API server that was started as the `number`th, or of any."""
        headers = {"authorization": f"Bearer {KEY}"}
        if number is None:
            return httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=120)
        transport = httpx2.HTTPTransport(uds=str(self.folder / f"api{number}.sock"))
        return httpx2.Client(transport=transport, base_url="http://test", headers=headers, timeout=120)


def wait_for(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


class Hosted:
    """The engine on a socket, here in the supervisor's process."""

    def __init__(self, engine: GatedEngine, at: Path) -> None:
        self._engine = engine
        self._host = EngineHost(engine, at)

    async def start(self) -> None:
        await self._engine.start()
        await self._host.start()

    async def stop(self) -> None:
        await self._host.stop()
        await self._engine.stop()

    def stats(self) -> EngineStats:
        return self._engine.stats()


@contextmanager
def supervised(
    folder: Path, num_servers: int = 2, read: Callable[[], Settings] | None = None, **changes: Any
) -> Iterator[Running]:
    """Run a supervisor in an empty folder; `read` reads its settings again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = Settings(
        **{
            "port": port,
            "api_keys": (f"{KEY} metrics=yes", f"{LIMITED} requests=3"),
            "served_model_names": ("test",),
            "store": str(folder / "store.db"),
            "shutdown_timeout": 5.0,
            **changes,
        }
    )
    loop = asyncio.new_event_loop()
    engine = GatedEngine(words, info=INFO)
    taken = ExitStack()
    at = folder / "engine.sock"
    supervisor = Supervisor(
        cast(Any, Hosted(engine, at)),
        at,
        settings,
        num_servers,
        folder,
        taken.enter_context(bound(settings)),
        read=read,
    )
    running = Running(engine, supervisor, loop, folder, port)

    def run() -> None:
        running.statuses.append(loop.run_until_complete(supervisor.run()))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        if not loop.is_closed() and not running.statuses:
            loop.call_soon_threadsafe(supervisor.stop)
        thread.join(60)
        loop.close()
        taken.close()
