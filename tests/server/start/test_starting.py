"""`plumbline serve` prints the dialects that it chose, or why it does not start."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest

from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS
from plumbline.cli import main
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.catalog import Catalog
from plumbline.server.loading.memory import release_unused
from plumbline.server.settings import Settings
from plumbline.server.start import serve as start

pytestmark = pytest.mark.usefixtures("in_one_process")


class Silent:
    """A listener that ends at once."""

    started = True
    failed = False

    def run(self, **_: object) -> None:
        pass


class Emptying(Silent):
    """A listener that drops the model of the start while the server runs."""

    def __init__(self, catalog: Catalog, then: Callable[[], None], dropped: list[Any]) -> None:
        self._catalog, self._then, self._dropped = catalog, then, dropped

    def run(self, **_: object) -> None:
        _, model = self._catalog.loaded.popitem()  # type: ignore[assignment]
        self._dropped.append(weakref.ref(model.engine))
        del model
        self._then()


@pytest.fixture(autouse=True)
def no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    def listener(*_: Any, announce: Callable[[], None], **__: Any) -> Silent:
        announce()
        return Silent()

    monkeypatch.setattr(start, "listener", listener)


def test_nothing_keeps_the_model_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its memory would not be there for another one: that of a single model, and of one of two."""
    dropped: list[Any] = []

    def serve(then: Callable[[], None], *options: str) -> None:
        monkeypatch.setattr(start, "listener", lambda catalog, *_, **__: Emptying(catalog, then, dropped))
        assert main(["serve", "--port", "0", "--store", "none", *options]) == 0

    def check() -> None:
        release_unused()  # Once, as it searches the modules of all tests, which takes seconds.
        assert [engine() for engine in dropped] == [None, None]

    serve(lambda: serve(check, "--model", str(MODEL_DIR), "--model", f"b={MODEL_DIR}"))


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ("1000000000", "2 of 2 loaded;"),
        ("300000000", "1 of 2 loaded, the others when requests name them;"),
    ],
)
def test_the_models_that_are_loaded_are_counted_at_the_start(
    memory: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    models = ("--model", f"a={MODEL_DIR}", "--model", f"b={MODEL_DIR}", "--kv-cache-bytes", "200000000")
    assert main(["serve", "--port", "0", "--store", "none", *models, "--models-memory-bytes", memory]) == 0
    assert words in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ("as hermes (detected", "as qwen3 (detected")),
        (
            ("--tool-parser", "llama3_json", "--reasoning-parser", "none"),
            ("as llama3_json (given", "as none (given"),
        ),
        (("--tool-parser", "qwen25"), ("hermes",)),  # SGLang's name for it.
    ],
)
def test_the_dialects_are_printed_at_the_start(
    options: tuple[str, ...], expected: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", *options]) == 0
    printed = capfd.readouterr().err
    for words in expected:
        assert words in printed, printed


@pytest.mark.parametrize(
    ("option", "known"), [("--tool-parser", TOOL_DIALECTS), ("--reasoning-parser", REASONING_DIALECTS)]
)
def test_a_dialect_that_is_unknown_is_refused_with_the_list(
    option: str, known: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", option, "nope"]) == 2
    captured = capfd.readouterr()
    printed = captured.out + captured.err
    assert "'nope': " in printed
    for name in {dialect.name for dialect in known.values()}:
        assert name in printed
    assert "Traceback" not in printed
    near = next(iter(sorted(known)))
    assert main(["serve", "--port", "0", option, f"{near}s"]) == 2
    assert f"(did you mean {near}?)" in capfd.readouterr().err


def test_a_server_without_a_store_keeps_its_sealing_key(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Or each restart would refuse the open sessions of all clients (ST-16, MSG-06)."""
    keys = []

    def listener(
        _: Catalog, settings: Settings, *__: Any, announce: Callable[[], None], **___: Any
    ) -> Silent:
        announce()
        keys.append(settings.sealing_key)
        return Silent()

    monkeypatch.setattr(start, "listener", listener)
    for _ in range(2):
        assert main(["serve", "--port", "0", "--store", "none"]) == 0
        assert "keeps the key of sealed thinking" in capfd.readouterr().err
    assert keys[0] == keys[1] != ""
