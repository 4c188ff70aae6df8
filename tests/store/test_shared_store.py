"""Servers that share PostgreSQL are one server for clients of stored responses and conversations.

- A response in the background is read, followed from any event on, cancelled and deleted at any of them.
- A response of a server that has gone fails with what it had; its stream goes on at any other, with no event twice or
  missing, up to an end that every client gets.
- Two requests on one conversation are refused wherever they come to, and a server that has gone locks none for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from support.models import scripted, served, text_chunks
from support.servers.asgi import Answer, Exchange, Server, read_events, serving
from support.stores.postgres import PostgresServer

from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.responses import followers, leases
from plumbline.server.store.sql import lease_rows, response_rows

RESPONSES = "/v1/responses"
TEXT = "one two three four five six seven eight nine ten " * 3
BODY: dict[str, Any] = {"model": "test-model", "input": "hi", "max_output_tokens": 400}


def written(request: GenerateRequest) -> Iterable[TokenChunk]:
    return text_chunks(request, TEXT)


@asynccontextmanager
async def pair(url: str, *, delay: float = 0.01, **settings: Any) -> AsyncIterator[tuple[Server, Server]]:
    """Two servers with a model that takes its time."""
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                serving(served(scripted(written, delay=delay)), store=url, page=False, **settings)
            )
            for _ in range(2)
        ]
        yield first, second


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of a second: the times are the machine's, the order of events is the law."""
    for module in (response_rows, lease_rows):
        monkeypatch.setattr(module, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(lease_rows, "SURE_SECONDS", 0.2)
    monkeypatch.setattr(leases, "_SHARED_SECONDS", 0.1)


def events(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    return [event.json for event in answer.events if event.data != "[DONE]"]


async def begun(exchange: Exchange, count: int) -> list[dict[str, Any]]:
    """Read the first events of a stream."""
    found: list[dict[str, Any]] = []
    async for write in exchange.writes():
        found += [event.json for event in read_events([write])]
        if len(found) >= count:
            return found
    raise AssertionError(f"the stream has ended after {len(found)} events")


async def queued(server: Server, **fields: Any) -> str:
    answer = await server.post(RESPONSES, {**BODY, "background": True, **fields})
    assert answer.status == 200, answer.body
    return str(answer.json["id"])


async def followed(server: Server, name: str, after: int | None = None) -> list[dict[str, Any]]:
    query = "" if after is None else f"&starting_after={after}"
    return events(await server.get(f"{RESPONSES}/{name}?stream=true{query}"))


async def test_a_response_is_followed_at_both_servers_alike(postgres_url: str) -> None:
    """RS-20, ST-12: the same events, also while it is written, and from any number on."""
    async with pair(postgres_url) as (first, second):
        name = await queued(first)
        here, there = await asyncio.gather(followed(first, name), followed(second, name))
        assert there == here == await followed(second, name)
        assert here[-1]["type"] == "response.completed"
        assert await followed(second, name, after=7) == here[8:]


async def test_a_response_is_read_with_what_it_has_so_far(postgres_url: str) -> None:
    async with pair(postgres_url) as (first, second):
        exchange = first.open("POST", RESPONSES, {**BODY, "background": True, "stream": True})
        name = (await begun(exchange, 30))[0]["response"]["id"]
        found = (await second.get(f"{RESPONSES}/{name}")).json
        assert (found["status"], found["id"]) == ("in_progress", name)
        exchange.leave()


async def test_a_response_is_cancelled_at_any_server(postgres_url: str) -> None:
    """ST-11: the one that generates it stops."""
    async with pair(postgres_url, delay=0.1) as (first, second):
        exchange = first.open("POST", RESPONSES, {**BODY, "background": True, "stream": True})
        seen = await begun(exchange, 6)
        name = seen[0]["response"]["id"]
        cancelled = await second.post(f"{RESPONSES}/{name}/cancel", {})
        assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
        rest = [
            event.json async for write in exchange.writes() for event in read_events([write]) if event.name
        ]
        assert (rest[-1]["type"], rest[-1]["code"]) == ("error", "response_cancelled")
        assert await followed(second, name) == [*seen, *rest]
        assert (await second.get(f"{RESPONSES}/{name}")).json == cancelled.json


async def test_a_response_that_is_deleted_elsewhere_stops(postgres_url: str) -> None:
    """ST-02."""
    async with pair(postgres_url, delay=0.1) as (first, second):
        name = await queued(first)
        here, there = (asyncio.create_task(followed(each, name)) for each in (first, second))
        await asyncio.sleep(0.3)
        assert (await second.request("DELETE", f"{RESPONSES}/{name}")).status == 200
        assert [(await task)[-1]["type"] for task in (here, there)] == ["response.failed", "error"]
        assert (await first.get(f"{RESPONSES}/{name}")).status == 404


async def test_a_stream_that_a_dead_server_cut_goes_on_at_another(
    postgres_url: str,
) -> None:
    """R-04, RS-02: what the client has seen was kept, and an error ends the rest."""
    async with pair(postgres_url, delay=0.02) as (first, second):
        exchange = first.open("POST", RESPONSES, {**BODY, "background": True, "stream": True})
        seen = await begun(exchange, 20)
        name, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
        resumed = asyncio.create_task(followed(second, name, after=last))
        watching = _watch_of(first)
        watching.cancel()  # As if its process had been stopped: it neither renews nor learns anything.
        rest = await resumed
        whole = await followed(second, name)
        assert whole[: len(seen)] == seen
        assert whole[len(seen) :] == rest
        assert [event["type"] for event in rest[-2:]] == ["error", "response.failed"]
        found = (await second.get(f"{RESPONSES}/{name}")).json
        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
        text = "".join(event["delta"] for event in whole if event["type"] == "response.output_text.delta")
        assert found["output"][0]["content"][0]["text"] == text
        assert TEXT.startswith(text)
        assert text


async def test_a_conversation_is_locked_at_all_servers(postgres_url: str) -> None:
    """ST-09: as within one server, and free for the next request when the client has its answer."""
    async with pair(postgres_url) as (first, second):
        made = (await first.post("/v1/conversations", {})).json["id"]
        body = {**BODY, "conversation": made, "max_output_tokens": 20}
        exchange = first.open("POST", RESPONSES, {**body, "stream": True})
        await begun(exchange, 3)
        refused = await second.post(RESPONSES, body)
        item = {"items": [{"role": "user", "content": "x"}]}
        assert (await second.post(f"/v1/conversations/{made}/items", item)).status == 409
        assert (refused.status, refused.error["code"]) == (409, "conversation_locked")
        assert refused.header("retry-after") == "1"
        await exchange.finished()
        for server in (second, first, second):
            assert (await server.post(RESPONSES, body)).status == 200
        assert (await second.post(f"/v1/conversations/{made}/items", item)).status == 200
        assert (await first.post(RESPONSES, body)).status == 200


async def test_a_conversation_of_a_dead_server_is_free_again(postgres_url: str) -> None:
    async with pair(postgres_url, delay=0.03) as (first, second):
        made = (await first.post("/v1/conversations", {})).json["id"]
        body = {**BODY, "conversation": made}
        exchange = first.open("POST", RESPONSES, {**body, "stream": True})
        await begun(exchange, 3)
        _watch_of(first).cancel()
        short = {**body, "max_output_tokens": 16}
        refused = 0
        while (answer := await second.post(RESPONSES, short)).status == 409:
            refused += 1
            await asyncio.sleep(0.1)
        assert answer.status == 200
        assert refused
        exchange.leave()


async def test_a_client_that_leaves_frees_its_conversation(postgres_url: str) -> None:
    async with pair(postgres_url, delay=0.03) as (first, second):
        made = (await first.post("/v1/conversations", {})).json["id"]
        body = {**BODY, "conversation": made}
        exchange = first.open("POST", RESPONSES, {**body, "stream": True})
        await begun(exchange, 3)
        exchange.leave()
        await exchange.finished()
        await asyncio.sleep(0.3)  # Less than a lease.
        assert (await second.post(RESPONSES, {**body, "max_output_tokens": 16})).status == 200


async def test_a_wish_to_cancel_outlives_the_server_that_it_was_for(postgres_url: str) -> None:
    """ST-11: whoever ends the response of a dead server ends it as its client asked."""
    async with pair(postgres_url, delay=0.05) as (first, second):
        exchange = first.open("POST", RESPONSES, {**BODY, "background": True, "stream": True})
        seen = await begun(exchange, 6)
        name = seen[0]["response"]["id"]
        _watch_of(first).cancel()
        cancelled = await second.post(f"{RESPONSES}/{name}/cancel", {})
        assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
        whole = await followed(second, name)
        assert whole[: len(seen)] == seen
        assert (whole[-1]["type"], whole[-1]["code"]) == ("error", "response_cancelled")
        assert (await second.get(f"{RESPONSES}/{name}")).json == cancelled.json
        exchange.leave()


async def test_a_key_follows_so_many_responses_of_other_servers_that_others_can_too(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "_MOST_OF_A_KEY", 2)
    async with pair(postgres_url, delay=0.05, api_keys=("a", "b")) as (first, second):
        names = {
            key: (await first.post(RESPONSES, {**BODY, "background": True}, headers=bearer(key))).json["id"]
            for key in "ab"
        }

        def follow(key: str) -> Exchange:
            return second.open("GET", f"{RESPONSES}/{names[key]}?stream=true", headers=bearer(key))

        streams = [follow("a") for _ in range(2)]
        for stream in streams:
            await begun(stream, 1)
        refused = await follow("a").answer()
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        streams.append(follow("b"))
        await begun(streams[-1], 1)
        for stream in streams:
            stream.leave()
            await stream.finished()
        last = follow("a")
        await begun(last, 1)
        last.leave()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _watch_of(server: Server) -> asyncio.Task[Any]:
    """Return the task that renews the leases of a server; that of the first server began first."""
    found = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == "_watch"]
    return min(found, key=lambda task: int(task.get_name().rpartition("-")[2]))


@pytest.mark.long
async def test_a_database_that_was_away_for_longer_than_a_lease_costs_no_response(
    postgres: PostgresServer, postgres_url: str
) -> None:
    """All leases have expired then, and their owners live: each renews its own before any counts as abandoned."""
    async with pair(postgres_url, delay=0.03) as (first, second):
        name = await queued(first)
        here, there = (asyncio.create_task(followed(each, name)) for each in (first, second))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(postgres.stop)
        await asyncio.sleep(1.2)
        await asyncio.to_thread(postgres.start)
        assert (await here)[-1]["type"] == "response.completed"
        assert await there == await here
