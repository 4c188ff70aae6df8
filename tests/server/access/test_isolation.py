"""Laws of records that belong to a key: for every other key they do not exist (ST-03).

- Each operation on one of them, by its id, is a 404 for another key, and changes nothing.
- No list of another key has them, and no request of another key continues from them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.models import answer_with, scripted, served
from support.servers.api_calls import native_server
from support.servers.asgi import Server, serving

from plumbline._generated import OPERATIONS

OWN, OTHER = ({"authorization": f"Bearer {key}"} for key in ("own", "other"))
RESPONSES = "/v1/responses"
RESPONSE: dict[str, Any] = {"model": "test-model", "input": "hi", "max_output_tokens": 16}
CHAT: dict[str, Any] = {
    "model": "test-model",
    "messages": [{"role": "user", "content": "hi"}],
    "store": True,
    "metadata": {"a": "b"},
}
ITEM = {"type": "message", "role": "user", "content": "hello"}
CHANGES: dict[str, Any] = {"metadata": {"changed": "yes"}, "items": [ITEM]}
"""Fields of the requests that change a record; each takes the ones that it knows."""


async def made(server: Server) -> dict[str, str]:
    """Make a record of each kind; returns their ids by the names that paths have."""
    response = (await server.post(RESPONSES, RESPONSE, headers=OWN)).json
    chat = (await server.post("/v1/chat/completions", CHAT, headers=OWN)).json
    conversation = (await server.post("/v1/conversations", {"items": [ITEM]}, headers=OWN)).json
    items = (await server.get(f"/v1/conversations/{conversation['id']}/items", headers=OWN)).json
    return {
        "response_id": response["id"],
        "completion_id": chat["id"],
        "conversation_id": conversation["id"],
        "item_id": items["data"][0]["id"],
    }


async def test_every_operation_on_a_record_of_another_key_is_a_404_and_changes_nothing(
    tmp_path: Path,
) -> None:
    async with serving(
        served(scripted(answer_with("fine"))), store=str(tmp_path / "s.db"), api_keys=("own", "other")
    ) as server:
        ids = await made(server)
        owned = [each for each in OPERATIONS if set(re.findall(r"\{(\w+)\}", each.path)) & ids.keys()]
        assert len(owned) >= 14
        paths = {each: each.path.format_map(ids) for each in owned}
        read = [path for each, path in paths.items() if each.method == "GET"]
        answers = [await server.get(path, headers=OWN) for path in read]
        assert {answer.status for answer in answers} == {200}
        before = [answer.json for answer in answers]
        for each, path in paths.items():
            body = {name: CHANGES[name] for name in _known(each.path)} if each.method == "POST" else None
            answer = await server.request(each.method, path, body, headers=OTHER)
            assert answer.status == 404, (each.id, answer.body)
            assert not any(value.encode() in answer.body for value in ("fine", "hello")), each.id
        assert [(await server.get(path, headers=OWN)).json for path in read] == before


def _known(path: str) -> list[str]:
    """Return the fields that a request to change a record takes."""
    if path.endswith("/cancel"):
        return []
    return ["items"] if path.endswith("/items") else ["metadata"]


async def test_no_list_and_no_request_of_another_key_has_them(tmp_path: Path) -> None:
    async with serving(
        served(scripted(answer_with("fine"))), store=str(tmp_path / "s.db"), api_keys=("own", "other")
    ) as server:
        ids = await made(server)
        assert len((await server.get("/v1/chat/completions", headers=OWN)).json["data"]) == 1
        assert (await server.get("/v1/chat/completions", headers=OTHER)).json["data"] == []
        for fields in (
            {"previous_response_id": ids["response_id"]},
            {"conversation": ids["conversation_id"]},
            {"input": [{"type": "item_reference", "id": ids["item_id"]}]},
        ):
            assert (await server.post(RESPONSES, {**RESPONSE, **fields}, headers=OTHER)).status in (400, 404)
            assert (await server.post(RESPONSES, {**RESPONSE, **fields}, headers=OWN)).status == 200, fields


@pytest.mark.parametrize("shared", [False, True])
async def test_no_key_learns_from_the_prefix_cache_what_another_has_sent(shared: bool) -> None:
    body = {
        **CHAT,
        "store": False,
        "messages": [{"role": "user", "content": "a secret " * 40}],
        "max_tokens": 2,
    }

    async def cached(headers: dict[str, str], **more: Any) -> int:
        usage = (await server.post("/v1/chat/completions", {**body, **more}, headers=headers)).json["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    async with native_server(api_keys=("own", "other"), share_prefix_cache=shared) as server:
        assert await cached(OWN) == 0
        assert await cached(OWN) > 0
        assert (await cached(OTHER) > 0) is shared
        assert await cached(OTHER) > 0
        # A salt of the client's is one of its own.
        assert await cached(OWN, cache_salt="a") == 0
        assert (await cached(OTHER, cache_salt="a") > 0) is shared


async def test_what_is_sealed_for_one_key_is_refused_from_another() -> None:
    async with serving(served(scripted(answer_with("fine"))), api_keys=("own", "other")) as server:
        answer = await server.post(
            "/v1/responses/compact", {"model": "test-model", "input": "remember this"}, headers=OWN
        )
        assert answer.status == 200, answer.body
        body = {**RESPONSE, "input": [*answer.json["output"], {"role": "user", "content": "go on"}]}
        found = [await server.post(RESPONSES, body, headers=headers) for headers in (OWN, OTHER)]
    assert [each.status for each in found] == [200, 400]
    assert "for another client" in found[1].json["error"]["message"]
