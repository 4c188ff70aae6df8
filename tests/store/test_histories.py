"""Histories of eight clients at two servers with one PostgreSQL, of which either may be killed at any time.

- An answer shows exactly the requests of the chain that it continues, in their order.
- A conversation has every request that was acknowledged, once, before its answer, in the order of acknowledgement; what
  was cut by a kill is there as a whole or not at all. Each answer has seen all that comes before it.
- What is deleted is gone at both servers, and stays so.
- A response in the background ends, wherever it is followed, also when cancelled; one of a killed server has failed.
- A compaction at either server can be continued at either.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

pytestmark = pytest.mark.long

CLIENTS = 8
_LOST = (httpx2.TransportError,)
_NUMBERS = itertools.count(1)


class Replica:
    """One of the two servers; it is started again on its port after a kill."""

    def __init__(self, store: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._store = store
        self.start()

    def start(self) -> None:
        command = [
            sys.executable,
            str(Path(__file__).with_name("echo_server.py")),
            str(self.port),
            self._store,
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while not self._answers():
            assert self.process.poll() is None, "the server has ended"
            assert time.monotonic() < end
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/health", timeout=5).status_code == 200
        except httpx2.TransportError:
            return False

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)


class Chain(NamedTuple):
    """A response that was acknowledged: its id, and the requests that its answer must show."""

    name: str
    numbers: tuple[int, ...]


class History:
    """What the clients know of a conversation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: list[tuple[int, float, float]] = []
        """The numbers of requests, when they began and when they were acknowledged."""
        self.uncertain: set[int] = set()
        """Requests whose answers a kill has cut."""


class Clients(RuleBasedStateMachine):
    """Rounds in which up to eight clients act at once."""

    replicas: tuple[Replica, Replica]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.chains: list[Chain] = []
        self.histories: list[History] = []
        self.deleted: list[str] = []
        self.killed = False
        """Whether a server was killed in this round, so that answers may be cut."""

    def teardown(self) -> None:
        self.loop.close()

    @initialize()
    def begin(self) -> None:
        self.loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        for _ in range(2):
            made = await self._send("POST", "/v1/conversations", 0, {})
            assert made is not None
            self.histories.append(History(made.json()["id"]))

    acts = st.tuples(
        st.sampled_from(
            ["answer", "continue", "converse", "converse", "background", "cancel", "delete", "compact"]
        ),
        st.integers(0, 1),
        st.integers(0, 7),
    )

    @rule(acts=st.lists(acts, min_size=1, max_size=CLIENTS), kills=st.sampled_from([None, None, 0, 1]))
    def round(self, acts: list[tuple[str, int, int]], kills: int | None) -> None:
        self.killed = kills is not None
        self.loop.run_until_complete(self._round(acts, kills))
        self.killed = False
        self.loop.run_until_complete(self._check())

    async def _round(self, acts: list[tuple[str, int, int]], kills: int | None) -> None:
        working: list[Coroutine[Any, Any, None]] = [
            getattr(self, f"_{act}")(server, choice) for act, server, choice in acts
        ]
        if kills is not None:
            working.append(self._kill(kills, acts[0][2] * 0.01))
        await asyncio.gather(*working)

    async def _kill(self, number: int, after: float) -> None:
        await asyncio.sleep(after)
        victim = self.replicas[number]
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.start)

    async def _send(self, method: str, path: str, server: int, body: Any = None) -> httpx2.Response | None:
        """Return the answer, or None if a kill has cut it."""
        async with httpx2.AsyncClient(timeout=60) as client:
            try:
                answer = await client.request(method, f"{self.replicas[server].url}{path}", json=body)
            except _LOST:
                assert self.killed, "the server has cut an answer"
                return None
        if answer.status_code >= 500:
            assert answer.status_code == 503, answer.text
            return None
        return answer

    # What clients do

    async def _create(self, server: int, **fields: Any) -> tuple[int, httpx2.Response | None]:
        number = next(_NUMBERS)
        body = {"model": "m", "input": f"op{number}", **fields}
        return number, await self._send("POST", "/v1/responses", server, body)

    async def _answer(self, server: int, _: int) -> None:
        number, answer = await self._create(server)
        if answer is not None:
            self._note(answer, (number,))

    async def _continue(self, server: int, choice: int) -> None:
        if not self.chains:
            return
        parent = self.chains[-1 - choice % len(self.chains)]
        number, answer = await self._create(server, previous_response_id=parent.name)
        if answer is None:
            return
        if answer.status_code == 400 or answer.status_code == 404:
            assert parent.name in self.deleted  # Also by a client of this round.
        else:
            self._note(answer, (*parent.numbers, number))

    def _note(self, answer: httpx2.Response, numbers: tuple[int, ...]) -> None:
        assert answer.status_code == 200, answer.text
        assert shown(answer.json()["output"]) == list(numbers)
        self.chains.append(Chain(answer.json()["id"], numbers))

    async def _converse(self, server: int, choice: int) -> None:
        history = self.histories[choice % len(self.histories)]
        before = [number for number, _, _ in history.acknowledged]
        began = time.monotonic()
        number, answer = await self._create(server, conversation=history.name)
        if answer is None:
            history.uncertain.add(number)
            return
        if (
            answer.status_code == 409
        ):  # Another request works on it, at either server, or a killed one has its lease.
            return
        assert answer.status_code == 200, answer.text
        found = shown(answer.json()["output"])
        assert found[-1] == number
        assert [each for each in found if each in before] == before, "an acknowledged item was lost"
        history.acknowledged.append((number, began, time.monotonic()))

    async def _background(self, server: int, choice: int) -> None:
        number, answer = await self._create(server, background=True)
        if answer is None:
            return
        assert answer.status_code == 200, answer.text
        found = await self._ended(answer.json()["id"], choice % 2)
        if found["status"] == "completed":
            assert shown(found["output"]) == [number]
        else:
            assert (found["status"], self.killed) == ("failed", True), found

    async def _cancel(self, server: int, choice: int) -> None:
        _, answer = await self._create(server, background=True)
        if answer is None:
            return
        name = answer.json()["id"]
        cancelled = await self._send("POST", f"/v1/responses/{name}/cancel", choice % 2)
        found = await self._ended(name, choice // 2 % 2)
        if cancelled is not None and cancelled.status_code == 200 and not self.killed:
            assert found["status"] in ("cancelled", "completed")
            assert found["status"] == cancelled.json()["status"]
        else:
            assert found["status"] in ("cancelled", "completed", "failed")

    async def _ended(self, name: str, server: int) -> dict[str, Any]:
        """Follow a response in the background to its end; one of a killed server fails within 15 seconds."""
        end = time.monotonic() + 120
        while True:
            answer = await self._send("GET", f"/v1/responses/{name}", server)
            if answer is not None:
                assert answer.status_code == 200, "an acknowledged response was lost"
                found: dict[str, Any] = answer.json()
                if found["status"] not in ("queued", "in_progress"):
                    return found
            assert time.monotonic() < end, "a response in the background does not end"
            await asyncio.sleep(0.05)

    async def _delete(self, server: int, choice: int) -> None:
        if not self.chains:
            return
        chain = self.chains[-1 - choice % len(self.chains)]
        self.deleted.append(chain.name)  # Before the answer: others of this round may find it gone.
        self.chains = [each for each in self.chains if chain.numbers != each.numbers[: len(chain.numbers)]]
        answer = await self._send("DELETE", f"/v1/responses/{chain.name}", server)
        if answer is None:
            self.deleted.remove(chain.name)
        else:
            assert answer.status_code in (200, 404), answer.text

    async def _compact(self, server: int, choice: int) -> None:
        if not self.chains:
            return
        chain = self.chains[-1 - choice % len(self.chains)]
        body = {"model": "m", "previous_response_id": chain.name}
        answer = await self._send("POST", "/v1/responses/compact", server, body)
        if answer is None or chain.name in self.deleted:
            return
        assert answer.status_code == 200, answer.text
        number = next(_NUMBERS)
        items = [*answer.json()["output"], {"role": "user", "content": f"op{number}"}]
        continued = await self._send("POST", "/v1/responses", choice % 2, {"model": "m", "input": items})
        if continued is not None:
            assert continued.status_code == 200, continued.text
            assert shown(continued.json()["output"])[-1] == number

    # What must hold after every round, at both servers

    async def _check(self) -> None:
        for server in range(2):
            for history in self.histories:
                await self._check_history(history, server)
            for chain in self.chains[-4:]:
                answer = await self._send("GET", f"/v1/responses/{chain.name}", server)
                assert answer is not None
                assert answer.status_code == 200
                assert shown(answer.json()["output"]) == list(chain.numbers)
            for name in self.deleted[-4:]:
                answer = await self._send("GET", f"/v1/responses/{name}", server)
                assert answer is not None
                assert answer.status_code == 404

    async def _check_history(self, history: History, server: int) -> None:
        items: list[dict[str, Any]] = []
        after = ""
        while True:
            path = f"/v1/conversations/{history.name}/items?order=asc&limit=100{after}"
            answer = await self._send("GET", path, server)
            assert answer is not None
            page = answer.json()
            items += page["data"]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        asked = [number for item in items if item["role"] == "user" for number in written(item)]
        acknowledged = [number for number, _, _ in history.acknowledged]
        assert sorted(set(asked)) == sorted(asked), "an item is there twice"
        assert set(acknowledged) <= set(asked), "an acknowledged item was lost"
        assert set(asked) - set(acknowledged) <= history.uncertain
        place = {number: index for index, number in enumerate(asked)}
        for number, _, ended in history.acknowledged:
            for other, began, _ in history.acknowledged:
                assert began < ended or place[number] < place[other], "items have changed their order"
        # Each request is followed by its answer, which was given one after the other and has seen all before it.
        assert [item["role"] for item in items] == ["user", "assistant"] * len(asked)
        for index, reply in enumerate(items[1::2]):
            assert shown([reply]) == asked[: index + 1], (
                "two requests have worked on the conversation at once"
            )


def written(item: dict[str, Any]) -> list[int]:
    """Return the number of a request."""
    return [int(part["text"].removeprefix("op")) for part in item["content"]]


def shown(output: list[dict[str, Any]]) -> list[int]:
    """Return the numbers in an answer."""
    text = "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
    return [int(word) for word in text.removeprefix("seen ").split()]


@pytest.fixture
def replicas(postgres_url: str) -> Iterator[tuple[Replica, Replica]]:
    found = (Replica(postgres_url), Replica(postgres_url))
    yield found
    for each in found:
        each.kill()


def test_no_history_loses_or_reorders_an_item(replicas: tuple[Replica, Replica]) -> None:
    machine = type("ClientsOfTwo", (Clients,), {"replicas": replicas})
    rounds = settings(max_examples=3, stateful_step_count=8, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=rounds)
