"""While the models load, connections are refused, or probes see a live server that is not ready.

Laws:
* an address is bound at once and listens when the server is ready, unless `--answer-while-loading` is given; then
* every path is answered at once, in the form of its API, and with `retry-after` unless it is `/health/live`;
* the sockets go on listening when the server itself takes over: no connection is refused in between;
* the summary names the address that clients can use.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx2
import msgspec
import pytest
import uvicorn
from support.models import scripted, scripted_info, served

from plumbline.base.workers.memory import resident
from plumbline.cli import main
from plumbline.contract._generated.utilities import Health
from plumbline.port.progress import LoadProgress, report, watched
from plumbline.server.loading.catalog import only
from plumbline.server.protocols.common.sampling.defaults import replaced
from plumbline.server.settings import OptionError, Settings
from plumbline.server.start.sockets import bound, make_reusable
from plumbline.server.start.summary import base_url, summary
from plumbline.server.start.terminal import shown
from plumbline.server.start.waiting import Waiting, answering


@contextmanager
def waiting(settings: Settings | None = None) -> Iterator[tuple[Waiting, list[socket.socket], str]]:
    """Answer as a server that loads; yield the application, its sockets and its URL."""
    settings = settings or Settings(port=0, store="none")
    application = Waiting()
    with bound(settings) as sockets, answering(application, settings, sockets):
        yield application, sockets, f"http://127.0.0.1:{sockets[0].getsockname()[1]}"


def test_an_address_is_taken_and_refuses_connections_until_a_server_listens() -> None:
    """Of two servers that load at the same time, the second finds out at its start."""
    with bound(Settings(port=0, store="none")) as sockets:
        address = sockets[0].getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=10)
        with pytest.raises(OptionError, match=r"--port \d+ cannot be used"), bound(Settings(port=address[1])):
            pass
        make_reusable(sockets)
        sockets[0].listen()
        client = socket.create_connection(address, timeout=10)
        server, _ = sockets[0].accept()
        server.close()  # First, so its end of the connection waits for a while.
        client.close()
    with bound(Settings(port=address[1])) as (again,):
        assert again.getsockname() == address


def test_every_path_is_answered_in_the_form_of_its_api() -> None:
    with waiting() as (application, _, url):
        application.progress = LoadProgress("loading weights", 2**20, 2**21)
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("DELETE", "/nowhere")):
            answer = httpx2.request(method, url + path)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
            assert answer.json()["error"]["code"] == "engine_unavailable"
            assert "loading weights, 1 MiB of 2 MiB" in answer.json()["error"]["message"]
            assert answer.headers["x-request-id"]
        assert httpx2.post(f"{url}/v1/messages").json()["error"]["type"] == "overloaded_error"
        page = httpx2.get(url)
        assert (page.status_code, page.headers["refresh"]) == (503, "2")
        assert "loading weights, 1 MiB of 2 MiB" in page.text
        head = httpx2.head(f"{url}/health")
        assert (head.status_code, head.content) == (503, b"")


@pytest.mark.parametrize(
    ("path", "status"), [("/health/live", 200), ("/health", 503), ("/health/ready", 503)]
)
def test_probes_see_how_far_the_start_is(path: str, status: int) -> None:
    with waiting() as (application, _, url):
        for total in (0, 10):
            application.progress = LoadProgress("loading <weights>", 5, total)
            answer = httpx2.get(url + path)
            assert answer.status_code == status
            health = msgspec.json.decode(answer.content, type=Health, strict=True)
            assert (health.status, health.progress.stage) == ("starting", "loading <weights>")  # type: ignore[union-attr]
            assert ("total_bytes" in answer.json()["progress"]) is (total > 0)


def test_a_client_that_connects_between_both_servers_is_answered() -> None:
    settings = Settings(port=0, store="none")
    with bound(settings) as sockets:
        address = sockets[0].getsockname()
        with (
            answering(Waiting(), settings, sockets),
            closing(socket.create_connection(address, timeout=10)) as kept,
        ):
            # It must not stay with the server that is only waiting.
            kept.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"connection: close" in b"".join(iter(lambda: kept.recv(4096), b""))
        with closing(socket.create_connection(address, timeout=10)) as early:
            early.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            with answering(Waiting(), settings, sockets):
                assert early.recv(4096).startswith(b"HTTP/1.1 503")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_start_does_not_wait_for_a_thread_that_could_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(config: uvicorn.Config) -> None:
        raise RuntimeError("no certificates")

    monkeypatch.setattr(uvicorn.Config, "load", load)
    ended = threading.Event()

    def start() -> None:
        with waiting():
            pass
        ended.set()

    threading.Thread(target=start, daemon=True).start()
    assert ended.wait(30)


def test_websockets_are_refused() -> None:
    with (
        waiting() as (_, sockets, _),
        closing(socket.create_connection(sockets[0].getsockname(), timeout=10)) as one,
    ):
        one.sendall(
            b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
        )
        assert one.recv(4096).startswith((b"HTTP/1.1 403", b"HTTP/1.1 503"))


def test_progress_goes_to_the_watcher_of_its_thread_only() -> None:
    seen: list[LoadProgress] = []
    report("not watched")
    with watched(seen.append):
        report("loading weights", 1, 2)
        other = threading.Thread(target=report, args=("of another start",))
        other.start()
        other.join()
    report("not watched")
    assert seen == [LoadProgress("loading weights", 1, 2)]


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://127.0.0.1:4711"),
        ({"host": "0.0.0.0", "api_keys": ("k",)}, "http://127.0.0.1:4711"),
        ({"host": "::1"}, "http://[::1]:4711"),
        ({"host": "localhost", "ssl_certfile": __file__}, "https://localhost:4711"),
    ],
)
def test_the_summary_names_an_address_that_clients_can_use(settings: dict[str, object], url: str) -> None:
    given = Settings(port=0, store="none", **settings)  # type: ignore[arg-type]
    assert base_url(given, 4711) == url
    printed = summary(only(served(scripted())), given, None, 4711)
    assert f"address  {url}/v1\n" in printed
    assert ("Bearer KEY" in printed) is bool(given.api_keys)
    assert "test-model" in printed
    assert "k'" not in printed.replace("KEY'", "")


def test_the_summary_counts_the_memory_of_all_processes() -> None:
    """What they have when it is printed; with a full cache and a step of all sequences they have no more.

    Nor had they more while the weights were read.
    """
    given, mib = Settings(port=0, store="none", api_servers=2), 2**20
    info = scripted_info(num_blocks=1, block_size=16, cache_bytes=1024 * mib)
    before = resident()
    printed = summary(only(served(scripted(info=info))), given, None, 4711)
    assert " now" not in printed
    info = msgspec.structs.replace(info, resident_bytes=500 * mib)
    assert " at most" not in summary(only(served(scripted(info=info))), given, None, 4711)
    info = msgspec.structs.replace(info, step_bytes=100 * mib)
    for loading, more in ((0, 1124), (1000, 1124), (2500, 2000)):
        info = msgspec.structs.replace(info, loading_bytes=loading * mib)
        line = next(
            line
            for line in summary(only(served(scripted(info=info))), given, None, 4711).splitlines()
            if "memory" in line
        )
        found = re.search(r"memory +([\d.]+) GiB now, ([\d.]+) GiB at most", line)
        assert found is not None, line
        now, most = (float(part) * 1024 for part in found.groups())
        assert now == pytest.approx(500 + 2 * before / mib, rel=0.1)
        assert most == pytest.approx(now + more, abs=20)


def test_an_interrupt_during_the_start_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(settings: Settings, read: Callable[[], Settings]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("plumbline.server.start.run.run", interrupted)
    assert main(["serve", "--store", "none"]) == 130
    assert capsys.readouterr().err == "plumbline: interrupted during the start\n"


def test_a_step_without_bytes_shows_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with shown() as show:
        show(LoadProgress("loading libraries"))
    printed = capsys.readouterr().err
    assert "Loading libraries" in printed
    assert "bytes" not in printed
    assert "?" not in printed.replace("\x1b[?", "")


@pytest.mark.parametrize(
    ("of_model", "operators", "expected"),
    [
        (
            {},
            (),
            "temperature 1.0 where requests set nothing; from OpenAI's API, because the model recommends",
        ),
        ({"top_k": 64}, (), "top_k 64 where requests set nothing; from the model ("),
        ({"top_k": 64}, ('{"top_k": 64}',), "top_k 64 where requests set nothing; from the operator ("),
        ({}, ('{"temperature": 1.0}',), "temperature 1.0 where requests set nothing; from the operator ("),
        ({"min_p": 0.1}, ('{"top_k": 9}',), "from the model and the operator ("),
    ],
)
def test_the_start_says_where_sampling_defaults_come_from(
    of_model: dict[str, Any], operators: tuple[str, ...], expected: str
) -> None:
    model = served(scripted())
    defaults = replaced(msgspec.structs.replace(model.defaults, **of_model), {})
    for value in operators:
        defaults = replaced(defaults, json.loads(value))
    given = Settings(sampling_defaults=tuple(("", value) for value in operators))
    assert expected in summary(only(msgspec.structs.replace(model, defaults=defaults)), given, None, 4711)


def test_the_start_says_what_four_bits_cost() -> None:
    info = scripted_info(rounding_losses={"English": 1.0118, "code": 1.0})
    printed = summary(only(served(scripted(info=info))), Settings(), None, 4711)
    assert "  rounding weights to 4 bits, with 1.012 (English), 1.000 (code) times the perplexity" in printed
    assert "rounding" not in summary(only(served(scripted())), Settings(), None, 4711)
