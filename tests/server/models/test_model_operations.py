"""Laws of the operations that load and unload models, TabbyAPI's and llama.cpp's.

- Only an admin key loads and unloads. Without one the operations are off, also where no other request needs a key.
- A model that is unloaded finishes its requests first. The next request loads it again.
- llama.cpp's operations answer at once; TabbyAPI's end when the model is loaded, or say why it is not.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from support.models import scripted, served, until
from support.servers.asgi import Answer, Server, read_events, serving
from support.servers.shelf import CHAT, Shelf, body, listed, statuses, text, waits

from plumbline.server.settings import Settings, SettingsError

ADMIN = {"x-admin-key": "root"}
OPERATIONS: dict[str, Any] = {
    "/models/load": {"model": "a"},
    "/models/unload": {"model": "a"},
    "/v1/model/load": {"name": "a"},
    "/v1/model/unload": None,
}
each_operation = pytest.mark.parametrize("path", OPERATIONS)


@each_operation
async def test_without_admin_keys_the_operations_are_off(path: str) -> None:
    async with serving(listed(Shelf("a"))) as server:
        answer = await server.post(path, OPERATIONS[path], headers=ADMIN)
        assert (answer.status, answer.error["code"]) == (403, "unsupported_operation")
        assert "--admin-api-key" in answer.error["message"]
    async with serving(listed(Shelf("a")), api_keys=("one",)) as server:
        assert (await server.post(path, OPERATIONS[path], headers=ADMIN)).status == 401
        answer = await server.post(path, OPERATIONS[path], headers={"authorization": "Bearer one"})
        assert answer.status == 403


@each_operation
@pytest.mark.parametrize("api_keys", [(), ("one",)])
async def test_an_admin_key_is_needed(path: str, api_keys: tuple[str, ...]) -> None:
    shelf = Shelf("a")
    async with serving(listed(shelf), api_keys=api_keys, admin_api_keys=("other", "root")) as server:
        wrong: tuple[Any, ...] = (
            {}, {"x-admin-key": "one"}, {"x-admin-key": ""}, {"authorization": "Bearer one"},
            {"authorization": "root"}, {"x-api-key": "root"},
        )  # fmt: skip
        for headers in wrong:
            answer = await server.post(path, OPERATIONS[path], headers=headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key"), headers
            assert "x-admin-key" in answer.error["message"]
        assert shelf.engines["a"] == []
        for headers in (ADMIN, {"authorization": "Bearer root"}):
            assert (await server.post(path, OPERATIONS[path], headers=headers)).status == 200


@each_operation
@pytest.mark.parametrize("spelled", ["{}/", "/{}", "{}//", "/.{}", "{}/.", "{}?a", "{}%2F", "{}%20"])
async def test_no_spelling_of_a_path_gets_around_the_admin_key(path: str, spelled: str) -> None:
    shelf = Shelf("a")
    for keys in ((), ("root",)):
        async with serving(listed(shelf), admin_api_keys=keys) as server:
            answer = await server.post(spelled.format(path), OPERATIONS[path])
            assert answer.status in (401, 403, 404, 405), answer.body
            assert shelf.engines["a"] == []


async def test_an_admin_key_is_an_api_key() -> None:
    async with serving(served(scripted()), api_keys=("one",), admin_api_keys=("root",)) as server:
        for key, status in (("one", 200), ("root", 200), ("two", 401)):
            answer = await server.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert answer.status == status
    async with serving(served(scripted()), admin_api_keys=("root",)) as server:
        assert (await server.get("/v1/models")).status == 200, "only loading and unloading need the key"


def test_admin_keys_that_cannot_work_are_refused() -> None:
    with pytest.raises(SettingsError, match="--admin-api-key must not be empty"):
        Settings(admin_api_keys=("",))
    with pytest.raises(SettingsError, match="--admin-api-key needs --api-servers 1"):
        Settings(admin_api_keys=("a",), api_servers=2)


async def test_llama_cpp_s_operations_answer_at_once() -> None:
    shelf = Shelf("a", "b")
    shelf.open.clear()
    async with serving(listed(shelf), admin_api_keys=("root",)) as server:
        for _ in range(2):
            answer = await server.post("/models/load", {"model": "a"}, headers=ADMIN)
            assert answer.json == {"success": True}
        assert (await statuses(server))["a"] == ("loading", None)
        shelf.open.set()
        await until(lambda: shelf.engines["a"])
        while (await statuses(server))["a"] != ("loaded", None):
            await asyncio.sleep(0)
        assert (await server.post("/models/load", {"model": "a"}, headers=ADMIN)).json == {"success": True}
        assert len(shelf.engines["a"]) == 1
        assert (await server.get("/models")).json == (await server.get("/v1/models")).json
        assert (await server.post("/models/unload", {"model": "a"}, headers=ADMIN)).json == {"success": True}
        while (await statuses(server))["a"] != ("unloaded", None):
            await asyncio.sleep(0)


async def test_tabbyapi_s_load_ends_when_the_model_is_there() -> None:
    shelf = Shelf("a", "b")
    shelf.open.clear()
    async with serving(listed(shelf), admin_api_keys=("root",), keep_alive_interval=0.005) as server:
        assert (await server.get("/v1/model")).error["code"] == "model_not_loaded"
        exchange = server.open("POST", "/v1/model/load", {"name": "b"}, headers=ADMIN)
        writes = exchange.writes()
        first, comment = await anext(writes), await anext(writes)
        assert comment.startswith(b":")
        shelf.open.set()
        events = read_events([first, *[write async for write in writes]])
        part = {"model_type": "model", "module": 1, "modules": 1}
        assert [event.json for event in events] == [
            part | {"status": "processing"},
            part | {"status": "finished"},
        ]
        assert (await server.get("/v1/model")).json["id"] == "b"
        assert (await server.get("/v1/model/list")).json == (await server.get("/v1/models")).json


async def test_a_load_that_fails_has_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf("a")
    shelf.broken = {"a"}
    async with serving(listed(shelf), admin_api_keys=("root",)) as server:
        answer = await server.post("/v1/model/load", {"name": "a"}, headers=ADMIN)
        assert answer.events[-1].json["error"]["message"].endswith("/secret/a has no weights")
        with caplog.at_level(logging.ERROR):
            await server.post("/models/load", {"model": "a"}, headers=ADMIN)
            await until(lambda: "/secret/a has no weights" in caplog.text)
        assert await statuses(server) == {"a": ("unloaded", True)}


async def test_an_unloaded_model_finishes_its_requests_and_is_loaded_again() -> None:
    shelf = Shelf("a", gated=True)
    async with serving(listed(shelf), admin_api_keys=("root",)) as server:
        first = server.open("POST", CHAT, body(CHAT, "a", stream=True))
        await until(lambda: shelf.engines["a"] and shelf.engines["a"][0].num_running)
        unloading = server.open("POST", "/v1/model/unload", None, headers=ADMIN)
        assert await waits(unloading)
        later = server.open("POST", CHAT, body(CHAT, "a"))
        assert await waits(later)
        shelf.engines["a"][0].let()
        assert text(await first.answer()) == "I am a."
        assert (await unloading.answer()).json == {"success": True}
        await until(lambda: len(shelf.engines["a"]) == 2)
        shelf.engines["a"][1].let()
        assert text(await later.answer()) == "I am a."


async def test_a_server_with_one_model_can_unload_it() -> None:
    async with serving(served(scripted()), admin_api_keys=("root",)) as server:
        assert (await server.post("/v1/model/unload", None, headers=ADMIN)).status == 200
        assert (await server.get("/health")).status == 200
        (model,) = (await server.get("/v1/models")).json["data"]
        assert set(model) == {"id", "object", "created", "owned_by"}
        assert (await server.post(CHAT, body(CHAT, "test-model"))).status == 200


@pytest.mark.parametrize("path", [path for path, sent in OPERATIONS.items() if sent])
async def test_an_unknown_model_is_a_404(path: str) -> None:
    async with serving(listed(Shelf("a")), admin_api_keys=("root",)) as server:
        sent = dict.fromkeys(OPERATIONS[path], "x")
        answer = await server.post(path, sent, headers=ADMIN)
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("field", ["max_seq_len", "cache_mode", "draft", "skip_queue"])
async def test_how_a_model_is_loaded_is_the_operators_choice(field: str) -> None:
    async with serving(listed(Shelf("a")), admin_api_keys=("root",)) as server:
        for path, sent in OPERATIONS.items():
            if sent:
                answer = await refused(server, path, {**sent, field: 1})
                assert field in answer.error["message"]


async def refused(server: Server, path: str, sent: Any) -> Answer:
    answer = await server.post(path, sent, headers=ADMIN)
    assert answer.status == 400
    return answer
