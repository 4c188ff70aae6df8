"""Two replicas that share PostgreSQL, behind HAProxy and nginx, with the configurations of docs/deploy."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.servers.recovery import recovering

from .fleet import DEPLOY, MESSAGES, Fleet, behind, wait_for

pytestmark = pytest.mark.long

BY_KEY = {
    "haproxy": (
        "balance hash req.body,json_query('$.prompt_cache_key')",
        "balance hash req.hdr(authorization)",
    ),
    "nginx": ("least_conn;", "hash $http_authorization consistent;"),
}
"""For each proxy the line that chooses a replica, and the one that chooses it by the key."""
LONG = {"model": "m", "messages": MESSAGES, "stream": True, "max_tokens": 20_000, "ignore_eos": True}


BACKGROUND = {
    "model": "m",
    "input": "Count to 3.",
    "background": True,
    "stream": True,
    "max_output_tokens": 20_000,
    "ignore_eos": True,
}
CANCELLED_WITHIN = 5.0
FAILED_WITHIN = 15.0
"""Seconds that docs/guides/scale-out.md promises, less a poll of the client."""


class Reader:
    """A client that reads a stream in its own thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.events: list[dict[str, Any]] = []
        self.ended = ""
        """`cut`, the status and body of a refusal, the message of an error, or `whole`."""

    def read(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        ended = "whole"
        try:
            with httpx2.stream(method, f"{self._url}{path}", json=body, timeout=60) as answer:
                if answer.status_code != 200:
                    ended = f"{answer.status_code} {answer.read().decode()}"
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        self.events.append(event := json.loads(line[6:]))
                        if "choices" not in event and "error" in event:
                            ended = event["error"]["message"]
        except httpx2.TransportError:
            ended = "cut"
        self.ended = ended


@pytest.fixture(scope="module", params=("haproxy", "nginx"))
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with behind(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.mark.parametrize("fleet", ["haproxy"], indirect=True)
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
    made = httpx2.post(first, json=body, timeout=30).json()
    assert httpx2.get(f"{second}/{made['id']}").json() == made
    continued = httpx2.post(second, json={**body, "previous_response_id": made["id"]}, timeout=30)
    assert continued.status_code == 200


@pytest.mark.parametrize("proxy", BY_KEY)
def test_a_proxy_that_routes_by_key_makes_its_limits_those_of_all_replicas(
    proxy: str, tmp_path: Path
) -> None:
    guide = (DEPLOY.parent / "guides" / "scale-out.md").read_text("utf-8")
    assert BY_KEY[proxy][1] in guide
    keys = tmp_path / "keys"
    keys.write_text("".join(f"key-{number} requests=2\n" for number in range(4)))
    with behind(proxy, tmp_path, BY_KEY[proxy], ("--api-key-file", str(keys))) as fleet:
        body = {"model": "m", "messages": MESSAGES, "max_tokens": 4}
        for number in range(4):
            headers = {"authorization": f"Bearer key-{number}"}
            answers = [
                httpx2.post(f"{fleet.url}/v1/chat/completions", json=body, headers=headers, timeout=30)
                for _ in range(4)
            ]
            assert [each.status_code for each in answers] == [200, 200, 429, 429]


@pytest.mark.parametrize("fleet", ["haproxy"], indirect=True)
def test_a_client_that_does_not_send_its_request_loses_its_connection(fleet: Fleet) -> None:
    """The configuration gives a client 30 s; here 2, as `behind` has it."""
    host, port = fleet.url.removeprefix("http://").split(":")
    for sent in (b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n", b"GET"):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(sent)
            assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_a_websocket_passes_the_proxy(fleet: Fleet) -> None:
    from websockets.sync.client import connect

    with connect(f"{fleet.url.replace('http', 'ws')}/v1/responses") as socket:
        body = {"type": "response.create", "model": "m", "input": "Hello", "max_output_tokens": 16}
        socket.send(json.dumps(body))
        assert json.loads(socket.recv(30))["type"] == "response.created"


def test_a_response_is_cancelled_through_the_proxy(fleet: Fleet) -> None:
    """ST-11: whichever replica the request reaches."""
    for _ in range(4):
        body = {**BACKGROUND, "stream": False}
        name = httpx2.post(f"{fleet.url}/v1/responses", json=body, timeout=30).json()["id"]
        began = time.monotonic()
        answer = httpx2.post(f"{fleet.url}/v1/responses/{name}/cancel", timeout=30)
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        assert time.monotonic() - began < CANCELLED_WITHIN


def test_a_replica_that_dies_takes_only_its_own_streams_along(fleet: Fleet) -> None:
    """HTTP-11, R-04, RS-02: others go on; what comes next goes to the survivor, which ends what the dead one had."""
    with ThreadPoolExecutor(max_workers=16) as threads:  # More than there are streams, on any machine.
        background = Reader(fleet.url)
        threads.submit(background.read, "POST", "/v1/responses", BACKGROUND)
        wait_for(lambda: len(background.events) > 20)
        wait_for(lambda: any(each.runs() for each in fleet.replicas))  # Counts come a moment later.
        (victim,) = (each for each in fleet.replicas if each.runs())
        (survivor,) = (each for each in fleet.replicas if each is not victim)
        chats: list[Reader] = []
        while victim.runs() < 2 or not survivor.runs():
            assert len(chats) < 8, "the proxy prefers a replica"
            chats.append(Reader(fleet.url))
            threads.submit(chats[-1].read, "POST", "/v1/chat/completions", LONG)
            wait_for(lambda: chats[-1].events or chats[-1].ended)
            assert chats[-1].events, chats[-1].ended
        # Counts come a moment later, on a slow machine much later.
        wait_for(lambda: sum(each.runs() for each in fleet.replicas) == 1 + len(chats))
        lost = victim.runs() - 1
        os.kill(victim.process.pid, signal.SIGKILL)
        killed = time.monotonic()
        victim.process.wait()
        with recovering("A replica is killed"):
            assert [fleet.chat() for _ in range(10)] == [200] * 10
        wait_for(lambda: sum(each.ended == "cut" for each in [background, *chats]) == lost + 1)
        assert background.ended == "cut"

        name, last = background.events[0]["response"]["id"], background.events[-1]["sequence_number"]
        resumed = Reader(fleet.url)
        with recovering("A replica is killed"):
            resumed.read("GET", f"/v1/responses/{name}?stream=true&starting_after={last}")
        assert time.monotonic() - killed < FAILED_WITHIN
        numbers = [event["sequence_number"] for event in background.events + resumed.events]
        assert numbers == list(range(len(numbers))), "an event is missing, or there twice"
        assert resumed.events[-1]["type"] == "response.failed"
        assert resumed.events[-1]["response"]["error"]["code"] == "server_error"

        chats.append(Reader(fleet.url))  # A fast machine has ended the others meanwhile.
        threads.submit(chats[-1].read, "POST", "/v1/chat/completions", LONG)
        wait_for(lambda: chats[-1].events)
        whole = [each for each in chats if not each.ended]
        so_far = [len(each.events) for each in whole]
        wait_for(lambda: all(len(each.events) > old for each, old in zip(whole, so_far, strict=True)))
        survivor.process.terminate()  # It drains, and then says why it ends a stream.
        wait_for(lambda: all(each.ended for each in whole))
        assert {each.ended for each in whole} == {"The server is shutting down."}
