"""Two API servers, each a process, in front of one engine: they are one server for clients."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from support.servers.recovery import recovering
from support.servers.supervised import LIMITED, WORDS, Running, supervised, wait_for

from plumbline.server.settings import Settings


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with supervised(tmp_path_factory.mktemp("api")) as running:
        wait_for(lambda: (running.folder / "api2.sock").exists(), 60)
        wait_for(lambda: len(running.supervisor._hub._addresses) == 2, 60)
        yield running
        pids = running.pids
        running.loop.call_soon_threadsafe(running.supervisor.stop)
        wait_for(lambda: running.statuses)
        assert running.statuses == [0]
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def test_a_key_has_its_limits_at_all_api_servers_together(two: Running) -> None:
    two.let()
    headers = {"authorization": f"Bearer {LIMITED}"}
    left, statuses = [], []
    for number in (1, 2, 1, 2, 1):
        with two.client(number) as client:
            answer = client.post("/v1/chat/completions", json=CHAT, headers=headers)
        statuses.append(answer.status_code)
        left.append(answer.headers["x-ratelimit-remaining-requests"])
    assert statuses == [200, 200, 200, 429, 429]
    assert left == ["2", "1", "0", "0", "0"]
    with two.client(2) as client:
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


CHAT = {"model": "test", "messages": [{"role": "user", "content": "hi"}]}
RESPONSE = {"model": "test", "input": "hi", "max_output_tokens": 200}


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line[6:])


@pytest.mark.parametrize("stream", [False, True])
def test_each_api_server_answers_alike(two: Running, stream: bool) -> None:
    two.let()
    texts = []
    for number in (None, 1, 2):
        with two.client(number) as client:
            answer = client.post("/v1/chat/completions", json={**CHAT, "stream": stream})
        assert answer.status_code == 200
        if stream:
            found = [chunk["choices"][0]["delta"].get("content", "") for chunk in events(answer.iter_lines())]
            texts.append("".join(found))
        else:
            texts.append(answer.json()["choices"][0]["message"]["content"])
    assert (
        texts == ["".join(f"word {number} " for number in range(WORDS)).rstrip()] * 3 or len(set(texts)) == 1
    )


def test_what_one_stores_the_other_continues(two: Running) -> None:
    two.let()
    with two.client(1) as first, two.client(2) as second:
        made = first.post("/v1/responses", json=RESPONSE).json()
        assert second.get(f"/v1/responses/{made['id']}").json() == made
        continued = second.post("/v1/responses", json={**RESPONSE, "previous_response_id": made["id"]})
        assert continued.status_code == 200


def test_each_api_server_has_the_page(two: Running) -> None:
    pages, states = [], []
    for number in (1, 2):
        with two.client(number) as client:
            pages.append(client.get("/", headers={"accept": "text/html"}))
            states.append(client.get("/page/status").json())
    assert pages[0].status_code == 200
    assert pages[0].content == pages[1].content
    assert states[0]["models"] == states[1]["models"] != []


def test_any_follows_a_background_response(two: Running) -> None:
    """RS-19: the events and their bytes are the same as those of the process that runs it."""
    two.hold()
    with two.client(1) as first, two.client(2) as second:
        made = first.post("/v1/responses", json={**RESPONSE, "background": True}).json()
        path = f"/v1/responses/{made['id']}?stream=true"
        with first.stream("GET", path) as here, second.stream("GET", path) as there:
            assert there.headers["content-type"].startswith("text/event-stream")
            assert len(there.headers.get_list("x-request-id")) == 1
            two.let()
            bodies = [b"".join(answer.iter_raw()) for answer in (here, there)]
        assert bodies[0] == bodies[1]
        assert b"response.completed" in bodies[0]
        after = [event["sequence_number"] for event in events(iter(bodies[0].decode().splitlines()))]
        assert after == list(range(len(after)))


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_any_stops_a_background_response(two: Running, how: str) -> None:
    """ST-02, ST-11."""
    two.hold()
    with two.client(1) as first, two.client(2) as second:
        made = second.post("/v1/responses", json={**RESPONSE, "background": True}).json()
        wait_for(lambda: two.engine.num_running)
        path = f"/v1/responses/{made['id']}"
        if how == "cancel":
            answer = first.post(f"{path}/cancel")
            assert answer.json()["status"] == "cancelled"
            assert second.get(path).json()["status"] == "cancelled"
        else:
            assert first.delete(path).json()["deleted"] is True
            assert second.get(path).status_code == 404
        wait_for(lambda: not two.engine.num_running)
    two.let()


def test_somebody_elses_background_response_stays_hidden(two: Running) -> None:
    """ST-03, also on the way to another process: the key is checked there, too."""
    two.hold()
    with two.client(1) as first, two.client(2) as second:
        made = first.post("/v1/responses", json={**RESPONSE, "background": True}).json()
        second.headers["authorization"] = "Bearer wrong"
        assert second.post(f"/v1/responses/{made['id']}/cancel").status_code == 401
    two.let()


def test_two_requests_on_one_conversation_are_refused_across_processes(two: Running) -> None:
    """ST-09."""
    two.hold()
    with two.client(1) as first, two.client(2) as second:
        name = first.post("/v1/conversations", json={}).json()["id"]
        body = {**RESPONSE, "conversation": name}
        with first.stream("POST", "/v1/responses", json={**body, "stream": True, "background": True}) as busy:
            assert busy.status_code == 200
            assert second.post("/v1/responses", json=body).status_code == 409
            two.let()
            assert "response.completed" in busy.read().decode()
        wait_for(lambda: second.post("/v1/responses", json=body).status_code == 200)


def test_the_metrics_of_each_are_those_of_all(two: Running) -> None:
    def counted(client: httpx2.Client) -> dict[str, float]:
        lines = client.get("/metrics").text.splitlines()
        return {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(("plumbline_request_success_total", "vllm:request_success_total"))
        }

    two.let()
    with two.client(1) as first, two.client(2) as second:
        before = sum(counted(first).values())
        for client in (first, second, second):
            assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
        assert sum(counted(first).values()) == before + 2 * 3  # Under our names and under vLLM's.
        assert counted(first) == counted(second)
        own = (
            "plumbline_http_requests_open 1.0"  # The request for the metrics; the others end a little later.
        )
        wait_for(lambda: own in first.get("/metrics").text.splitlines())


def test_a_killed_api_server_takes_only_its_own_streams_along(two: Running) -> None:
    """HTTP-11: and another takes its place."""
    two.hold()
    before = {pid: len(two.pids) for pid in two.pids}
    with two.client(1) as first, two.client(2) as second:
        body = {**CHAT, "stream": True}
        wanted = [
            client.build_request("POST", "/v1/chat/completions", json=body) for client in (first, second)
        ]
        with ThreadPoolExecutor() as threads:
            begun = [threads.submit(first.send, wanted[0], stream=True)]
            begun.append(threads.submit(second.send, wanted[1], stream=True))
            wait_for(lambda: two.engine.num_running == 2)
            two.let(6)  # An answer begins with its first words; both wait, so they take turns.
            staying, leaving = (each.result() for each in begun)
        with closing(staying), closing(leaving):
            wait_for(lambda: two.engine.num_running == 2)
            victim = next(
                process.pid
                for process in list(two.supervisor._processes)
                if _address(process.pid, two.folder) == "api2.sock"
            )
            os.kill(victim, signal.SIGKILL)
            with pytest.raises(httpx2.HTTPError):
                list(leaving.iter_raw())
            wait_for(lambda: two.engine.num_running == 1)
            two.let()
            assert "[DONE]" in staying.read().decode()
    with recovering("An API server is killed while it starts, or later"):
        wait_for(lambda: len(two.pids) == 2 and set(two.pids) != set(before))
        wait_for(lambda: len(two.supervisor._hub._addresses) == 2)
        with two.client(3) as new:
            assert new.post("/v1/chat/completions", json=CHAT).status_code == 200


def _address(pid: int, folder: Path) -> str:
    """Return which socket a process listens on: the sockets of a process are in its open files."""
    inodes = {
        link.rpartition("[")[2].rstrip("]")
        for entry in Path(f"/proc/{pid}/fd").iterdir()
        if (link := os.readlink(entry)).startswith("socket:")
    }
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        path = Path(fields[7] if len(fields) == 8 else "")
        if path.parent == folder and path.name.startswith("api") and fields[6] in inodes:
            return path.name
    return ""


def test_api_servers_that_cannot_start_end_the_supervisor(tmp_path: Path) -> None:
    (tmp_path / "not-a-folder").touch()
    with supervised(tmp_path, 1, store=f"sqlite:///{tmp_path}/not-a-folder/store.db") as running:
        wait_for(lambda: running.statuses, 60)
        assert running.statuses == [1]


def test_a_dead_engine_ends_all_api_servers(tmp_path: Path) -> None:
    """With status 1, so that a service manager starts the server again."""
    with supervised(tmp_path) as running:
        wait_for(lambda: len(running.supervisor._hub._addresses) == 2, 60)
        running.engine._closed = True
        wait_for(lambda: running.statuses, 60)
        assert running.statuses == [1]


def test_an_api_server_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    with supervised(tmp_path, 1, shutdown_timeout=600.0) as running:
        wait_for(lambda: running.pids)
        os.kill(running.pids[0], signal.SIGKILL)
        wait_for(lambda: len(running.supervisor._hub._addresses) == 1, 60)
        with running.client() as client:
            assert client.get("/v1/models").status_code == 200
            # The second Ctrl-C does not wait for what runs.
            running.hold()
            running.let(2)  # An answer begins with its first words, or with a comment after a while.
            with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
                for _ in range(2):
                    running.loop.call_soon_threadsafe(running.supervisor.stop, signal.SIGINT)
                assert b"shutting down" in b"".join(answer.iter_raw())
                wait_for(lambda: running.statuses)


def test_settings_reach_a_process_as_they_are() -> None:
    settings = Settings(api_keys=("k",), stuck_after=3.5, served_model_names=("a", "b"))
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings
