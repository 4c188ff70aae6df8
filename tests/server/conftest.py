"""A real server for the tests that need a socket."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from support.models import GatedEngine, scripted, served, tiny_engine
from support.servers.live import Live, live

from plumbline.server.loading.native import native_loader as engine
from plumbline.server.loading.served_model import load
from plumbline.server.observe.logs import LOGGERS
from plumbline.server.settings import Settings

KEY = "test-key"


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undo what `plumbline serve` does to the log of its process, which here is that of other tests, too."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [logger.handlers for logger in loggers]
    yield
    for logger, handlers in zip(loggers, before, strict=True):
        logger.handlers = handlers


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load models without measuring how many threads are fastest, which takes most of the time for small ones."""
    monkeypatch.setattr(engine, "fastest", lambda counts, step: 1)


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the engine of `plumbline serve` in this process: another one imports torch first, in two seconds."""
    monkeypatch.setattr("plumbline.server.start.run.begin", lambda settings: None)
    monkeypatch.setattr(
        "plumbline.server.start.serve.load_apart", lambda settings, begun=None: load(settings)
    )


@pytest.fixture(scope="session")
def echoing() -> Iterator[Live]:
    """A server that answers with the user's text. It needs a key."""
    with live(
        lambda: served(scripted(), names=("test-model", "org/alias")), Settings(api_keys=(KEY,))
    ) as server:
        yield server


@pytest.fixture(scope="session")
def thinking() -> Iterator[Live]:
    """A server with the native engine and a random model."""
    with live(lambda: served(tiny_engine()), Settings()) as server:
        yield server


@pytest.fixture
def gated() -> Iterator[tuple[Live, GatedEngine]]:
    """A server whose engine waits for the test, and that engine."""
    waiting = GatedEngine()
    with live(lambda: served(waiting), Settings()) as server:
        yield server, waiting
        if not server.loop.is_closed():
            server.loop.call_soon_threadsafe(waiting.let)
