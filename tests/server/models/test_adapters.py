"""Laws of adapters: named as models, loaded only from where the operator allows it, gone once they are unloaded."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from support.models import GatedEngine, scripted, scripted_info, served, text_chunks, until
from support.servers.asgi import Server, serving

from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import RefusedRequestError
from plumbline.server.settings import Settings, SettingsError, read_loras

CHAT, LOAD, UNLOAD = "/v1/chat/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
INFO = scripted_info(features=frozenset({"adapters"}))
REQUESTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two adapters, and one beside it."""
    for name in ("inside/one", "inside/two", "outside"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "adapter_config.json").write_text("{}", "utf-8")
    return tmp_path


def naming() -> Any:
    """A model that answers with the name of the adapter of the request."""
    return served(scripted(lambda request: text_chunks(request, str(request.adapter)), info=INFO))


async def text(server: Server, path: str, model: str) -> tuple[str, str]:
    """The model that an answer names, and its text."""
    answer = await server.post(path, {"model": model, **REQUESTS[path]})
    assert answer.status == 200, answer.body
    found = answer.json
    if "choices" in found:
        choice = found["choices"][0]
        return found["model"], choice["text"] if "text" in choice else choice["message"]["content"]
    return found["model"], found["output"][0]["content"][0]["text"]


async def test_the_model_of_a_request_chooses_the_adapter(folder: Path) -> None:
    loras = tuple((name, str(folder / "inside" / name)) for name in ("one", "two"))
    async with serving(naming(), loras=loras) as server:
        for path in REQUESTS:
            assert await text(server, path, "test-model") == ("test-model", "None")
            for name in ("one", "two"):
                assert await text(server, path, name) == (name, name)
            answer = await server.post(path, {"model": "three", **REQUESTS[path]})
            assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")
        listed = (await server.get("/v1/models")).json["data"]
        assert [(each["id"], each.get("parent")) for each in listed] == [
            ("test-model", None),
            ("one", "test-model"),
            ("two", "test-model"),
        ]
        assert (await server.get("/v1/models/two")).json["parent"] == "test-model"


async def test_requests_load_and_unload_where_the_operator_allows_it(folder: Path) -> None:
    async with serving(naming(), lora_dir=str(folder / "inside")) as server:
        answer = await server.post(LOAD, {"lora_name": "mine", "lora_path": "one"})
        assert answer.status == 200, answer.body
        assert b"'mine' added" in answer.body
        assert await text(server, CHAT, "mine") == ("mine", "mine")
        whole = {"lora_name": "other", "lora_path": str(folder / "inside" / "two")}
        assert (await server.post(LOAD, whole)).status == 200
        assert (await server.post(UNLOAD, {"lora_name": "mine"})).status == 200
        assert (await server.post(CHAT, {"model": "mine", **REQUESTS[CHAT]})).status == 404
        assert (await server.post(UNLOAD, {"lora_name": "mine"})).status == 404
        assert await text(server, CHAT, "other") == ("other", "other")


async def test_no_path_leads_out_of_the_folder(folder: Path) -> None:
    os.symlink(folder / "outside", folder / "inside" / "link")
    os.symlink(folder / "inside" / "loop", folder / "inside" / "loop")
    paths = ["../outside", str(folder / "outside"), "link", "/", ".", "one/../../outside", "missing", "one\0"]
    paths += ["loop", "n" * 1000, "one/" * 200 + "..", "~/outside"]
    async with serving(naming(), lora_dir=str(folder / "inside")) as server:
        messages = set()
        for path in paths:
            answer = await server.post(LOAD, {"lora_name": "a", "lora_path": path})
            assert (answer.status, answer.json["error"]["param"]) == (400, "lora_path"), path
            messages.add(answer.json["error"]["message"].partition(" is not an adapter")[2])
        assert len(messages) == 1, "what there is outside of the folder does not change the answer"


class _Broken(ScriptedEngine):
    """Cannot read any adapter, and says where that is."""

    async def load_adapter(self, name: str, folder: Path) -> None:
        raise RefusedRequestError(f"{folder}/adapter_model.safetensors is damaged")


async def test_no_error_says_where_an_adapter_is(folder: Path) -> None:
    engine = _Broken(INFO, lambda request: ())
    async with serving(served(engine), lora_dir=str(folder / "inside")) as server:
        for path in ("one", str(folder / "inside" / "one"), "two/../one"):
            answer = await server.post(LOAD, {"lora_name": "a", "lora_path": path})
            message = answer.json["error"]["message"]
            assert (answer.status, message) == (400, f"'{path}'/adapter_model.safetensors is damaged")


async def test_where_there_are_keys_only_an_admin_loads_and_unloads(folder: Path) -> None:
    load, unload = {"lora_name": "a", "lora_path": "one"}, {"lora_name": "a"}
    user, admin = {"authorization": "Bearer one"}, {"x-admin-key": "root"}
    inside = str(folder / "inside")
    async with serving(naming(), lora_dir=inside, api_keys=("one",), admin_api_keys=("root",)) as server:
        for path, body in ((LOAD, load), (UNLOAD, unload)):
            assert (await server.post(path, body, headers=user)).status == 401
            assert (await server.post(f"/{path}/", body, headers=user)).status == 401
            assert (await server.post(path, body, headers=admin)).status == 200
    async with serving(naming(), lora_dir=inside, api_keys=("one",)) as server:
        answer = await server.post(LOAD, load, headers=user)
        assert (answer.status, answer.error["code"]) == (403, "unsupported_operation")
    async with serving(naming(), lora_dir=inside, admin_api_keys=("root",)) as server:
        assert (await server.post(LOAD, load)).status == 401
        assert (await server.post(LOAD, load, headers=admin)).status == 200


async def test_a_model_that_was_unloaded_is_loaded_again_for_its_adapter(folder: Path) -> None:
    settings = {"loras": (("one", str(folder / "inside" / "one")),), "admin_api_keys": ("root",)}
    async with serving(naming(), **settings) as server:
        assert (await server.post("/v1/model/unload", headers={"x-admin-key": "root"})).status == 200
        assert await text(server, CHAT, "one") == ("one", "one")


async def test_names_that_are_taken_are_refused(folder: Path) -> None:
    async with serving(naming(), lora_dir=str(folder / "inside")) as server:
        assert (await server.post(LOAD, {"lora_name": "a", "lora_path": "one"})).status == 200
        for name in ("a", "test-model"):
            answer = await server.post(LOAD, {"lora_name": name, "lora_path": "two"})
            assert (answer.status, answer.json["error"]["param"]) == (400, "lora_name")
        more = {"lora_name": "a", "lora_path": "two", "load_inplace": True}
        assert (await server.post(LOAD, more)).json["error"]["param"] == "load_inplace"
        both = [server.post(LOAD, {"lora_name": "b", "lora_path": "two"}) for _ in range(2)]
        assert sorted(answer.status for answer in await asyncio.gather(*both)) == [200, 400]


async def test_without_a_folder_requests_load_nothing(folder: Path) -> None:
    for settings in ({}, {"loras": (("one", str(folder / "inside" / "one")),)}):
        async with serving(naming(), **settings) as server:
            for path, body in (
                (LOAD, {"lora_name": "x", "lora_path": "one"}),
                (UNLOAD, {"lora_name": "one"}),
            ):
                answer = await server.post(path, body)
                assert (answer.status, answer.json["error"]["code"]) == (404, "unsupported_operation")
    async with serving(served(scripted()), lora_dir=str(folder / "inside")) as server:
        answer = await server.post(LOAD, {"lora_name": "x", "lora_path": "one"})
        assert answer.status == 400
        assert "adapters" in answer.json["error"]["message"]


async def test_an_unloaded_adapter_finishes_what_it_began(folder: Path) -> None:
    engine = GatedEngine(lambda request: text_chunks(request, str(request.adapter)), info=INFO)
    async with serving(served(engine), lora_dir=str(folder / "inside")) as server:
        assert (await server.post(LOAD, {"lora_name": "a", "lora_path": "one"})).status == 200
        running = server.open("POST", CHAT, {"model": "a", **REQUESTS[CHAT]})
        await until(lambda: engine.num_running)
        unloading = asyncio.ensure_future(server.post(UNLOAD, {"lora_name": "a"}))
        await until(lambda: "a" not in engine.adapters)
        assert (await server.post(CHAT, {"model": "a", **REQUESTS[CHAT]})).status == 404
        engine.let()
        answer = await running.answer()
        assert answer.json["choices"][0]["message"]["content"] == "a"
        assert (await unloading).status == 200


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    assert read_loras(("a=b", "c=d=e")) == (("a", "b"), ("c", "d=e"))
    for wrong in (("a",), ("=b",), ("a=",), ("a=b", "a=c")):
        with pytest.raises(SettingsError, match="--lora"):
            read_loras(wrong)
    for changes, option in (
        ({"lora_dir": str(tmp_path / "none")}, "--lora-dir"),
        ({"lora_dir": str(tmp_path), "api_servers": 2}, "--lora-dir"),
        ({"max_loras": 0}, "--max-loras"),
        ({"loras": (("a", "b"), ("c", "d")), "max_loras": 1}, "--max-loras"),
        ({"device_memory": 1.5}, "--device-memory"),
        ({"media_timeout": 0.0}, "--media-timeout"),
    ):
        with pytest.raises(SettingsError, match=option):
            Settings(**changes)
