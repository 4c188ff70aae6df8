"""Faults around the server: clocks that jump, and name servers that are dead or silent."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.models import GatedEngine, answer_with, served, until
from support.servers.asgi import serving
from support.servers.mcp_requests import respond, running

from plumbline.cli import main
from plumbline.server.media.fetch import Fetcher, FetchError
from plumbline.server.store.default import default_url
from plumbline.server.store.open import BadStoreUrlError, open_store


@pytest.mark.parametrize("seconds", [-86_400.0, 86_400.0])
async def test_a_clock_that_jumps_by_a_day_changes_no_answer(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timeouts and rates use the monotonic clock; what is kept for 30 days is kept."""
    engine = GatedEngine(answer_with("one two three"))
    clock = time.time
    body = {"model": "test-model", "input": "hi", "stream": True}
    async with serving(served(engine), store=str(tmp_path / "s.db"), keep_alive_interval=5.0) as server:
        engine.let()
        whole = await server.post("/v1/responses", body)
        engine._gate = asyncio.Semaphore(0)
        given = engine.num_given
        exchange = server.open("POST", "/v1/responses", body)
        engine.let(2)
        await until(lambda: engine.num_given == given + 2)
        monkeypatch.setattr(time, "time", lambda: clock() + seconds)
        engine.let()
        jumped = await exchange.answer()
        assert [event.name for event in jumped.events] == [event.name for event in whole.events]
        for answer in (whole, jumped):
            response = answer.events[-2].json["response"]
            found = await server.get(f"/v1/responses/{response['id']}")
            assert found.json["output"] == response["output"]
            continued = {"model": "test-model", "input": "more", "previous_response_id": response["id"]}
            assert (await server.post("/v1/responses", continued)).status == 200


class NameServer:
    """What looks names up, and how many look-ups wait for an answer that does not come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_silent = False
        self.answers = threading.Event()
        self.asked = 0
        real = socket.getaddrinfo

        def look_up(host: str, *arguments: object, **named: object) -> object:
            if not str(host).endswith(".test"):
                return real(host, *arguments, **named)  # type: ignore[arg-type]
            self.asked += 1
            if self.is_silent:
                self.answers.wait(30)
            raise socket.gaierror(-3, "Temporary failure in name resolution")

        monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    found = NameServer(monkeypatch)
    yield found
    found.answers.set()


@pytest.mark.parametrize("silent", [False, True])
async def test_files_of_hosts_without_an_address_are_refused_in_time(names: NameServer, silent: bool) -> None:
    names.is_silent = silent
    fetcher = Fetcher(0.3)

    async def fetch(number: int) -> None:
        with pytest.raises(FetchError, match="0.3 seconds" if silent else "could not be fetched"):
            await fetcher.fetch(f"https://host{number}.test/cat.png", 1000)

    await asyncio.gather(*(fetch(number) for number in range(20)))
    # Look-ups that hang have threads of their own: all other work in threads goes on.
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "rendered"), 10) == "rendered"


async def test_a_dead_name_server_ends_in_an_item_with_an_error(names: NameServer) -> None:
    async with running("Hello.", allow_mcp=("tools.test",)) as (server, host):
        tool = host.tool(server_url="https://tools.test/mcp")
        final = await respond(server, tools=[tool], tool_choice="required")
    listed, said = final["output"]
    assert names.asked
    assert listed["error"] == "The MCP server 'box' cannot be reached."
    assert said["content"][0]["text"] == "Hello."


def test_a_user_without_a_home_is_told_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert default_url({"XDG_DATA_HOME": "/data"}) == "sqlite:////data/plumbline/responses.db"
    with pytest.raises(BadStoreUrlError, match="HOME or XDG_DATA_HOME"):
        open_store(default_url({}))


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_program_without_streams_works(closed: str) -> None:
    """Some service managers start programs so."""
    command = f'exec "{sys.executable}" -m plumbline completion bash {closed}'
    assert subprocess.run(["bash", "-c", command], timeout=120, check=False).returncode == 0


def test_a_folder_that_is_gone_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries find no files of theirs from a working directory that was deleted."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(SystemExit):
        main(["--version"])
    assert Path.cwd() == Path("/")
