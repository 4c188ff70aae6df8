"""The engine's process ends, whatever ends it, and the server goes on.

1. What it was computing ends with an error in the form of its API, which names the engine's end.
2. What waited is answered as if nothing had happened.
3. `/health`, `/metrics` and the log name the cause.
4. A request that ends it each time is refused from the third time on, and no other is.
5. Three ends within a minute end the server with status 1 and a reason.
6. No process is left over, however the server ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.servers.family import engine_of, engines_of, family
from support.servers.recovery import recovering
from websockets.sync.client import connect

from plumbline.pocket import MODEL_DIR
from plumbline.pocket.to_gguf import write

from .running import Running, running, wait_for

pytestmark = pytest.mark.long

_COMMON: dict[str, Any] = {"model": "pocket", "ignore_eos": True, "temperature": 0}
_MESSAGES = [{"role": "user", "content": "Tell me a story."}]
PATHS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({"messages": _MESSAGES}, "max_tokens"),
    "/v1/completions": ({"prompt": "Once"}, "max_tokens"),
    "/v1/responses": ({"input": "Tell me a story."}, "max_output_tokens"),
    "/v1/messages": ({"messages": _MESSAGES}, "max_tokens"),
}
LONG, SHORT = 8_000, 16
GGUF = "--model"
"""The last option of an engine that takes the pocket model as a GGUF file only."""


def body(path: str, tokens: int, **more: Any) -> dict[str, Any]:
    fields, limit = PATHS[path]
    return {**_COMMON, **fields, limit: tokens, **more}


def ask(server: Running, path: str, tokens: int, stream: bool) -> tuple[int, list[Any]]:
    """Return the status, and the JSON of all events or of the body."""
    with httpx2.stream(
        "POST", f"{server.url}{path}", json=body(path, tokens, stream=stream), timeout=120
    ) as answer:
        if answer.headers["content-type"].startswith("application/json"):
            return answer.status_code, [json.loads(answer.read())]
        return answer.status_code, [
            json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")
        ]


def ask_on_socket(server: Running, tokens: int) -> tuple[int, list[Any]]:
    """Send a turn over the WebSocket of Responses; returns its events."""
    with connect(f"ws://127.0.0.1:{server.port}/v1/responses", max_size=None) as socket:
        socket.send(json.dumps({"type": "response.create", **body("/v1/responses", tokens)}))
        events: list[Any] = []
        while not events or events[-1]["type"] not in ("response.completed", "response.incomplete", "error"):
            events.append(json.loads(socket.recv(120)))
        return 200, events


def in_background(server: Running, tokens: int) -> tuple[int, list[Any]]:
    """Send a response in the background, and return what became of it."""
    made = httpx2.post(
        f"{server.url}/v1/responses", json=body("/v1/responses", tokens, background=True), timeout=120
    ).json()
    assert "id" in made, made
    path = f"{server.url}/v1/responses/{made['id']}"
    found = made
    while found["status"] in ("queued", "in_progress"):
        time.sleep(0.05)
        found = httpx2.get(path, timeout=60).json()
    return 200, [found]


WAYS: dict[str, Callable[[Running, int], tuple[int, list[Any]]]] = {
    **{
        f"{path} {'stream' if stream else 'body'}": lambda server, tokens, p=path, s=stream: ask(  # type: ignore[misc]
            server, p, tokens, s
        )
        for path in PATHS
        for stream in (True, False)
    },
    "WebSocket": ask_on_socket,
    "background": in_background,
}
"""All ways in which a client gets an answer."""


def text(found: Any) -> str:
    """Return what the model has written, in any form and however it is cut."""
    return "".join(texts(found))


def texts(found: Any) -> list[str]:
    """Return the pieces of what the model has written."""
    if isinstance(found, dict):
        return [
            each
            for key, value in found.items()
            for each in (
                [value] if key in ("text", "content", "delta") and isinstance(value, str) else texts(value)
            )
        ]
    return [piece for each in found for piece in texts(each)] if isinstance(found, list) else []


def failed(way: str, status: int, found: list[Any]) -> str:
    """Return the message of an answer that must be an error in the form of its API."""
    if way.endswith("body"):
        assert (status, found[0]["error"].get("code")) in {(503, "engine_died"), (529, None)}, found
        return str(found[0]["error"]["message"])
    if way == "background":
        assert found[0]["status"] == "failed", found
        return str(found[0]["error"]["message"])
    assert status == 200
    (event,) = (each for each in found if "error" in each or each.get("type") == "error")
    error = event.get("error") or event
    # Responses and Messages have closed lists of codes or none.
    assert error.get("code", error["type"]) in (
        "engine_died",
        "server_error",
        "overloaded_error",
        "api_error",
    ), event
    return str(error["message"])


_HOOK = """
import os, signal, sys, threading, time

def hook():
    while True:
        core = sys.modules.get("plumbline.engines.threaded.request_core")
        if core is not None and hasattr(core, "RequestCore"):
            break
        time.sleep(0.001)
    take = core.RequestCore._take
    def deadly(self, state, *rest):
        if state.sampling.max_tokens in {whose}:
            {deed}
        take(self, state, *rest)
    core.RequestCore._take = deadly

if "plumbline.server.start.engine_process.process" in sys.orig_argv:
    threading.Thread(target=hook, daemon=True).start()
"""
"""Python imports `sitecustomize` at its start. Some requests do something in the engine's process at each token."""


def hook(folder: Path, monkeypatch: pytest.MonkeyPatch, whose: object, deed: str) -> None:
    """Let requests for some numbers of tokens do something."""
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(_HOOK.format(whose=whose, deed=deed), "utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{folder / 'hook'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


@pytest.mark.parametrize(
    ("what", "options"),
    [
        (signal.SIGSEGV, ()),
        (signal.SIGKILL, ("--api-servers=2",)),
        (signal.SIGSEGV, ("--engine=transformers",)),
        pytest.param(
            signal.SIGSEGV,
            ("--engine=llama_cpp", GGUF),
            marks=pytest.mark.skipif(find_spec("llama_cpp") is None, reason="llama.cpp is not installed"),
        ),
    ],
    ids=["SIGSEGV", "SIGKILL of two API servers' engine", "transformers", "llama.cpp"],
)
def test_the_end_of_the_engine_ends_what_it_computes_and_keeps_what_waits(
    what: signal.Signals, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if GGUF in options:
        write(MODEL_DIR, tmp_path / "pocket.gguf")
        options = (*options, str(tmp_path / "pocket.gguf"))
    # Messages have no `ignore_eos`, and their answers end after a hundred tokens.
    hook(tmp_path, monkeypatch, (LONG,), "time.sleep(0.01)")
    with (
        running(tmp_path, f"--max-num-seqs={len(WAYS)}", *options) as server,
        ThreadPoolExecutor(2 * len(WAYS)) as threads,
    ):
        whole = {way: text(send(server, SHORT)[1]) for way, send in WAYS.items()}
        begun: dict[str, Future[tuple[int, list[Any]]]] = {
            way: threads.submit(send, server, LONG) for way, send in WAYS.items()
        }
        wait_for(lambda: server.metric("plumbline_num_requests_running") == len(WAYS))
        waiting = {way: threads.submit(send, server, SHORT) for way, send in WAYS.items()}
        wait_for(lambda: server.metric("plumbline_num_requests_waiting") == len(WAYS))

        os.kill(engine_of(server.process.pid), what)
        with recovering("The process of the engine dies (SIGSEGV in a kernel, no memory)"):
            for way, answer in begun.items():
                assert what.name in failed(way, *answer.result()), way
            wait_for(lambda: httpx2.get(f"{server.url}/health/ready").status_code == 503)
            assert what.name in httpx2.get(f"{server.url}/health").text
            assert httpx2.get(f"{server.url}/health/live").status_code == 200
            wait_for(server.is_ready)
        for way, answer in waiting.items():
            status, found = answer.result()
            assert (status, text(found)) == (200, whole[way]), way
        wait_for(server.is_idle)
        health = httpx2.get(f"{server.url}/health").json()
        assert health["status"] == "degraded"
        assert what.name in health["reasons"][0]
        assert server.metric("plumbline_engine_deaths_total") == 1
        assert server.metric("plumbline_engine_restarts_total") == 1
        assert f"was killed by {what.name}" in server.log
        assert server.process.poll() is None


def test_three_ends_within_a_minute_end_the_server_with_a_reason(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        for number in range(3):
            wait_for(lambda: engines_of(server.process.pid))
            if number:
                wait_for(server.is_ready)
            os.kill(engine_of(server.process.pid), signal.SIGSEGV)
            wait_for(lambda n=number: server.log.count("was killed by SIGSEGV") > n)  # type: ignore[misc]
        assert server.process.wait(60) == 1
        assert (
            "its process has ended 3 times within a minute of serving; at last it was killed by SIGSEGV"
            in server.log
        )


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    hook(tmp_path, monkeypatch, (37,), request.param)


@pytest.mark.parametrize(
    ("deadly", "cause"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("os.abort()", "SIGABRT"),
        ("os._exit(9)", "ended with status 9"),
    ],
    indirect=["deadly"],
)
def test_a_request_that_ends_the_engine_each_time_is_refused(
    deadly: None, cause: str, tmp_path: Path
) -> None:
    path = "/v1/chat/completions"
    with running(tmp_path) as server:
        whole = ask(server, path, SHORT, False)[1][0]["choices"]
        url = f"{server.url}{path}"
        for seed in (1, 2):
            answer = httpx2.post(url, json=body(path, 37, seed=seed), timeout=120)
            assert answer.status_code == 503, answer.text
            assert answer.json()["error"]["code"] == "engine_died"
            assert cause in answer.json()["error"]["message"]
            # Another one waits for the next process, and is answered.
            assert ask(server, path, SHORT, False)[1][0]["choices"] == whole
        for stream in (True, False):
            refused = httpx2.post(url, json=body(path, 37, seed=3, stream=stream), timeout=120)
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == "request_quarantined"
        assert ask(server, path, 36, False)[0] == 200
        assert server.metric("plumbline_engine_quarantined_requests") == 1
        assert server.metric("plumbline_engine_deaths_total") == 2


@pytest.mark.parametrize("deadly", ["raise MemoryError"], indirect=True)
def test_memory_that_is_short_in_a_step_ends_one_request(deadly: None, tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert ask(server, "/v1/chat/completions", 37, False)[0] == 500
        assert ask(server, "/v1/chat/completions", SHORT, False)[0] == 200


def test_an_engine_without_addresses_ends_and_what_waits_is_answered(tmp_path: Path) -> None:
    """As with `ulimit -v`: from some moment on no allocation succeeds, in Python or in native code."""
    with running(tmp_path, "--threads=1", "--max-num-seqs=2") as server, ThreadPoolExecutor(12) as threads:
        engine = engine_of(server.process.pid)
        size = int(Path(f"/proc/{engine}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(engine, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

        def send(number: int) -> httpx2.Response:
            wanted = {**_COMMON, "prompt": f"{number} {'word ' * 1_500}", "max_tokens": 4}
            return httpx2.post(f"{server.url}/v1/completions", json=wanted, timeout=120)

        found = list(threads.map(send, range(12)))
        assert {answer.status_code for answer in found} <= {200, 500, 503}
        assert all(answer.json() for answer in found)
        if engines_of(server.process.pid) == [
            engine
        ]:  # Every allocation was one of a step, or from memory in stock.
            resource.prlimit(engine, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            assert "memory" in server.log
        wait_for(server.is_ready)
        assert ask(server, "/v1/completions", SHORT, False)[0] == 200


@pytest.mark.parametrize("what", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_all_processes_lets_streams_finish(what: signal.Signals, tmp_path: Path) -> None:
    """As systemd sends it: the server has `--shutdown-timeout` seconds, and so has its engine."""
    with running(tmp_path) as server, ThreadPoolExecutor(1) as threads:
        path = "/v1/chat/completions"
        whole = texts(ask(server, path, 600, True)[1])
        stream = threads.submit(ask, server, path, 600, True)
        wait_for(lambda: server.metric("plumbline_num_requests_running") == 1)
        os.kill(engine_of(server.process.pid), what)
        if what != signal.SIGHUP:
            server.signal(what)
        status, found = stream.result()
        assert (status, texts(found)) == (200, whole)
        if what != signal.SIGHUP:
            assert server.process.wait(60) in (0, -what)
        assert "was killed" not in server.log


def test_an_engine_that_is_silent_for_good_is_killed_and_started_again(tmp_path: Path) -> None:
    with running(tmp_path, "--stuck-after=1") as server:
        engine = engine_of(server.process.pid)
        os.kill(engine, signal.SIGSTOP)  # As native code that keeps the interpreter's lock.
        wait_for(lambda: not is_running(engine))
        wait_for(lambda: "was killed: it sent nothing for" in server.log)
        wait_for(server.is_ready)
        assert ask(server, "/v1/completions", SHORT, False)[0] == 200
        assert server.metric("plumbline_engine_deaths_total") == 1


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("options", [(), ("--api-servers=2",)], ids=["one", "api-servers"])
def test_no_process_outlives_a_server_that_is_killed(
    options: tuple[str, ...], stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "tmp"
    private.mkdir()
    monkeypatch.setenv("TMPDIR", str(private)) if len(str(private)) < 60 else None
    with running(tmp_path, "--shutdown-timeout=0", *options) as server:
        processes = family(server.process.pid)
        assert len(processes) >= 2
        if stopped:
            os.kill(engine_of(server.process.pid), signal.SIGSTOP)
        server.signal(signal.SIGKILL)
        server.process.wait(60)
        wait_for(lambda: not any(map(is_running, processes)), 30)


def test_no_process_outlives_a_server_that_ends(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        processes = family(server.process.pid)
        server.signal(signal.SIGTERM)
        server.process.wait(60)
        assert not any(map(is_running, processes))


def is_running(pid: int) -> bool:
    """Whether a process is there; one that waits to be reaped by another is not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
