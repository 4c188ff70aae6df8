"""What the operator wrote beside a key: the models that it may use, and the bytes that it may keep.

- A model that is not among those of a key does not exist for it: in lists, in descriptions, in requests of any API,
  also without a name. Other keys notice nothing.
- A key that keeps as many bytes as it may is refused whatever it would store, until it deletes something.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.models import answer_with, scripted, served
from support.servers.asgi import Server, serving

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/responses/compact": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 20},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
}
OPTIONAL = {"/v1/responses", "/v1/responses/input_tokens", "/tokenize", "/detokenize"}
KEYS = ("all", "some models=first,other", "none models=other", "last models=second")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def names(server: Server, path: str, key: str) -> list[str]:
    return [model["id"] for model in (await server.get(path, headers=bearer(key))).json["data"]]


@pytest.mark.parametrize("path", BODIES)
async def test_a_model_of_other_keys_does_not_exist(path: str) -> None:
    model = served(scripted(answer_with("one")), names=("first", "second"))
    async with serving(model, api_keys=KEYS) as server:
        for key, name, status in (
            ("all", "second", 200),
            ("some", "first", 200),
            ("some", "second", 404),
            ("none", "first", 404),
            ("none", "other", 404),  # It may be used, and is not there.
        ):
            answer = await server.post(path, {**BODIES[path], "model": name}, headers=bearer(key))
            assert answer.status == status, (key, name, answer.body)
            if status == 404:
                unknown = await server.post(path, {**BODIES[path], "model": "unknown"}, headers=bearer(key))
                alike = {**unknown.error, "message": unknown.error["message"].replace("unknown", name)}
                assert answer.error == alike
        named = await server.post(path, {**BODIES[path], "model": "second"}, headers=bearer("last"))
        assert b"first" not in named.body, "the answer names the model by a name of other keys"
        if path in OPTIONAL:
            statuses = [
                (await server.post(path, BODIES[path], headers=bearer(key))).status
                for key in ("some", "none")
            ]
            assert statuses == [200, 400]


async def test_lists_have_the_models_of_the_key() -> None:
    model = served(scripted(), names=("first", "second"))
    async with serving(model, api_keys=KEYS, page=True) as server:
        for path in ("/v1/models", "/models"):
            assert await names(server, path, "all") == ["first", "second"]
            assert await names(server, path, "some") == ["first"]
            assert await names(server, path, "none") == []
        assert (await server.get("/v1/models/second", headers=bearer("some"))).status == 404
        assert (await server.get("/v1/models/first", headers=bearer("some"))).status == 200
        assert (await server.get("/v1/model", headers=bearer("none"))).status == 400
        for key, expected in (("all", [["first", "second"]]), ("some", [["first"]]), ("none", [])):
            status = (await server.get("/page/status", headers=bearer(key))).json
            assert [each["names"] for each in status["models"]] == expected


@pytest.mark.parametrize(
    ("create", "delete"),
    [
        (("/v1/responses", {"model": "test-model", "input": "x" * 300}), "/v1/responses/"),
        (
            (
                "/v1/chat/completions",
                {"model": "test-model", "messages": [{"role": "user", "content": "x" * 300}], "store": True},
            ),
            "/v1/chat/completions/",
        ),
        (("/v1/conversations", {"items": [{"role": "user", "content": "x" * 300}]}), "/v1/conversations/"),
    ],
)
async def test_a_key_stores_no_more_bytes_than_it_may(
    create: tuple[str, dict[str, Any]], delete: str, tmp_path: Path
) -> None:
    path, body = create
    store = str(tmp_path / "s.db")
    keys = ("mine stored=200", "other stored=1MiB", "free")
    async with serving(served(scripted(answer_with("one"))), store=store, api_keys=keys) as server:
        made = await server.post(path, body, headers=bearer("mine"))
        assert made.status == 200, made.body
        server_has = made.json["id"]
        for each, extra in BODIES.items():
            if each in ("/v1/responses", "/v1/chat/completions"):
                stored = {**extra, "model": "test-model", "store": True}
                refused = await server.post(each, stored, headers=bearer("mine"))
                assert (refused.status, refused.error["code"]) == (429, "stored_bytes_limit_reached")
                assert refused.header("x-should-retry") == "false"
                assert "Delete responses, conversations or chat completions" in refused.error["message"]
                kept = await server.post(each, {**stored, "store": False}, headers=bearer("mine"))
                assert kept.status == 200
                for key in ("other", "free"):
                    assert (await server.post(each, stored, headers=bearer(key))).status == 200
        assert (await server.post("/v1/conversations", {}, headers=bearer("mine"))).status == 429
        if path == "/v1/conversations":
            items = f"{path}/{server_has}/items"
            assert (await server.post(items, body, headers=bearer("mine"))).status == 429
        gone = await server.request("DELETE", f"{delete}{server_has}", headers=bearer("mine"))
        assert gone.status == 200
        assert (await server.post("/v1/conversations", {}, headers=bearer("mine"))).status == 200
