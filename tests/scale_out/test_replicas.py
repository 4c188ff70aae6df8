"""Two replicas behind HAProxy, with the configuration of docs/guides/scale-out.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="not installed: haproxy"),
]

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "scale-out.md"
MESSAGES = [{"role": "user", "content": "Count to 3."}]
LONG = {"model": "m", "messages": MESSAGES, "stream": True, "max_tokens": 20_000, "ignore_eos": True}


@dataclass
class Replica:
    process: subprocess.Popen[bytes]
    port: int

    def answered(self) -> float:
        """How many chats it has answered."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics").text
        found = re.findall(
            r'^plumbline_http_requests_total\{path="/v1/chat/completions".*\} (\S+)$', text, re.M
        )
        return sum(map(float, found))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def replica(store: Path, port: int) -> Iterator[Replica]:
    command = [str(Path(sys.executable).parent / "plumbline"), "serve", "--port", str(port)]
    with running([*command, "--served-model-name=m", f"--store={store}", "--shutdown-timeout=1"]) as process:
        yield Replica(process, port)


@dataclass
class Fleet:
    url: str
    replicas: list[Replica]

    def chat(self, key: str | None = None) -> int:
        """Send a short chat; return the status."""
        body = {"model": "m", "messages": MESSAGES, "max_tokens": 4}
        if key is not None:
            body["prompt_cache_key"] = key
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=30).status_code


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("replicas")
    ports = [free_port(), free_port(), free_port()]
    config = re.findall(r"```haproxy\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    for named, port in zip((8001, 8002, 8080), ports, strict=True):
        assert config.count(f":{named}") == 1
        config = config.replace(f":{named}", f":{port}")
    (folder / "haproxy.cfg").write_text(config)
    with ExitStack() as stack:
        replicas = [stack.enter_context(replica(folder / "store.db", port)) for port in ports[:2]]
        wait_for(lambda: all(healthy(each.port) for each in replicas))
        stack.enter_context(running(["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]))
        wait_for(lambda: healthy(ports[2]))
        yield Fleet(f"http://127.0.0.1:{ports[2]}", replicas)


def test_requests_with_one_cache_key_reach_one_replica(fleet: Fleet) -> None:
    for number in range(6):
        before = [each.answered() for each in fleet.replicas]
        for _ in range(4):
            assert fleet.chat(f"user-{number}") == 200
        after = [each.answered() for each in fleet.replicas]
        assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0, 4]


def test_requests_without_a_cache_key_take_turns(fleet: Fleet) -> None:
    before = [each.answered() for each in fleet.replicas]
    for _ in range(6):
        assert fleet.chat() == 200
    assert all(each.answered() > old for each, old in zip(fleet.replicas, before, strict=True))


def test_a_conversation_goes_on_at_any_replica(fleet: Fleet) -> None:
    """R-13: the store is shared."""
    first, second = (f"http://127.0.0.1:{each.port}/v1/responses" for each in fleet.replicas)
    body = {"model": "m", "input": "Hello", "max_output_tokens": 16}
    made = httpx.post(first, json=body, timeout=30).json()
    assert httpx.get(f"{second}/{made['id']}").json() == made
    continued = httpx.post(second, json={**body, "previous_response_id": made["id"]}, timeout=30)
    assert continued.status_code == 200


def test_a_replica_that_dies_takes_only_its_own_streams_along(fleet: Fleet) -> None:
    """HTTP-11: the others go on, and what comes next goes to the survivor."""
    ended: dict[str, str] = {}
    begun: dict[str, int] = {}

    def read(key: str) -> None:
        body = {**LONG, "prompt_cache_key": key}
        try:
            with httpx.stream("POST", f"{fleet.url}/v1/chat/completions", json=body, timeout=60) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        begun[key] = begun.get(key, 0) + 1
                        if "error" in (event := json.loads(line[6:])):
                            ended[key] = event["error"]["message"]
        except httpx.RemoteProtocolError:
            ended[key] = "cut"

    victim, survivor = fleet.replicas
    keys = {"whole": key_of(fleet, survivor), "cut": key_of(fleet, victim)}
    with ThreadPoolExecutor() as threads:
        readers = [threads.submit(read, key) for key in keys.values()]
        wait_for(lambda: len(begun) == 2)
        os.kill(victim.process.pid, signal.SIGKILL)
        victim.process.wait()
        assert [fleet.chat(keys["cut"]) for _ in range(5)] == [200] * 5
        assert [fleet.chat() for _ in range(5)] == [200] * 5
        # The one that goes on would need long to its end.
        so_far = begun[keys["whole"]]
        wait_for(lambda: begun[keys["whole"]] > so_far)
        assert ended == {keys["cut"]: "cut"}
        survivor.process.terminate()  # It drains, and then says why it ends a stream.
        for reader in readers:
            reader.result()
        assert ended[keys["whole"]] == "The server is shutting down."


def key_of(fleet: Fleet, wanted: Replica) -> str:
    """Return a cache key whose requests reach this replica."""
    for number in range(50):
        before = wanted.answered()
        assert fleet.chat(f"key-{number}") == 200
        if wanted.answered() > before:
            return f"key-{number}"
    raise AssertionError("no key reaches it")
