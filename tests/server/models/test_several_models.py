"""Laws of a server with several models.

- Each request is answered by the model that it names.
- A request for a model that is not loaded waits for it; a stream begins meanwhile, and comments keep it alive.
- Requests in flight finish before their model leaves, and so do responses in the background.
- A load that fails fails the requests that wait for it, and no others; the next request tries again.
- How many requests wait for models is bounded.
"""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from pathlib import Path

import httpx2
import pytest
from support.bodies import BODIES, each_api
from support.models import until
from support.servers.asgi import Answer, Server, serving
from support.servers.live import live
from support.servers.shelf import (
    CHAT,
    MESSAGES,
    RELEASED,
    RESPONSES,
    Shelf,
    body,
    listed,
    statuses,
    text,
    waits,
)
from websockets.sync.client import connect

from plumbline.server.settings import Settings


@each_api
@pytest.mark.parametrize("stream", [False, True])
async def test_each_request_is_answered_by_the_model_that_it_names(path: str, stream: bool) -> None:
    shelf = Shelf("a", "b")
    async with serving(shelf.catalog()) as server:
        for name in "abba":
            answer = await server.post(path, body(path, name, stream=stream))
            assert text(answer) == f"I am {name}."
        requests = [server.post(path, body(path, name, stream=stream)) for name in "abab"]
        assert [text(answer) for answer in await asyncio.gather(*requests)] == ["I am a.", "I am b."] * 2


async def test_tokens_and_counts_are_those_of_the_named_model() -> None:
    async with serving(Shelf("a", "b").catalog(default="b")) as server:
        for name in "ab":
            ids = (await server.post("/tokenize", {"model": name, "prompt": "hello"})).json["tokens"]
            assert (await server.post("/detokenize", {"model": name, "tokens": ids})).json[
                "prompt"
            ] == "hello"
        assert (await server.post("/v1/responses/input_tokens", {"model": "a", "input": "hi"})).status == 200
        assert (await server.get("/tokenizer_info")).json == (
            await server.get("/tokenizer_info?model=a")
        ).json
        assert (await server.get("/tokenizer_info?model=c")).status == 404
    async with serving(Shelf("a", "b").catalog()) as server:
        assert (await server.get("/tokenizer_info")).status == 400
        assert (await server.get("/tokenizer_info?model=a")).status == 200


async def test_a_request_without_a_model_is_answered_by_the_default_one() -> None:
    async with serving(Shelf("a", "b").catalog(default="b")) as server:
        assert text(await server.post(RESPONSES, {"input": "hi"})) == "I am b."
    async with serving(Shelf("a", "b").catalog()) as server:
        answer = await server.post(RESPONSES, {"input": "hi"})
        assert (answer.status, answer.error["message"]) == (400, "you must provide a model parameter")


async def test_a_model_with_a_dead_engine_is_loaded_again() -> None:
    shelf = Shelf("a", "b")
    async with serving(shelf.catalog(capacity=2)) as server:
        for name in "ab":
            assert text(await server.post(CHAT, body(CHAT, name))) == f"I am {name}."
        shelf.engines["a"][0].dead = True
        assert not server.app.models.has_died()
        for name in "abab":
            assert text(await server.post(CHAT, body(CHAT, name))) == f"I am {name}."
        assert {name: len(engines) for name, engines in shelf.engines.items()} == {"a": 2, "b": 1}


async def test_an_unknown_model_is_a_404() -> None:
    async with serving(Shelf("a", "b").catalog(default="a")) as server:
        for path in BODIES:
            answer = await server.post(path, body(path, "c"))
            assert (answer.status, answer.error["code"]) == (404, "model_not_found"), path
        assert (await server.get("/v1/models/c")).status == 404


def test_a_server_of_an_empty_folder_knows_no_model() -> None:
    with live(Shelf().catalog, Settings()) as server:
        assert (
            httpx2.post(f"{server.url}{CHAT}", json=body(CHAT, "a")).json()["error"]["code"]
            == "model_not_found"
        )


async def test_an_unknown_model_is_told_which_ones_there_are() -> None:
    names = [f"model-{number:02}" for number in range(12)]
    async with serving(listed(Shelf(*names))) as server:
        message = (await server.post(CHAT, body(CHAT, "x"))).error["message"]
        assert message.endswith(f"This server has {', '.join(names[:10])} and 2 more.")


async def test_the_list_of_models_has_their_status() -> None:
    shelf = Shelf("a", "b", "c")
    shelf.broken = {"c"}
    async with serving(listed(shelf)) as server:
        assert await statuses(server) == {
            "a": ("unloaded", None),
            "b": ("unloaded", None),
            "c": ("unloaded", None),
        }
        await server.post(CHAT, body(CHAT, "a"))
        await server.post(CHAT, body(CHAT, "c"))
        shelf.open.clear()
        loading = server.open("POST", CHAT, body(CHAT, "b"))
        assert await waits(loading)
        assert await statuses(server) == {
            "a": ("unloaded", None),
            "b": ("loading", None),
            "c": ("unloaded", True),
        }
        shelf.open.set()
        await loading.answer()
        shelf.broken = set()
        await server.post(CHAT, body(CHAT, "c"))
        assert await statuses(server) == {
            "a": ("unloaded", None),
            "b": ("unloaded", None),
            "c": ("loaded", None),
        }
        (found,) = [model for model in (await server.get("/v1/models")).json["data"] if model["id"] == "c"]
        assert found == (await server.get("/v1/models/c")).json
        assert found["max_model_len"] == 2048


async def test_health_and_metrics_are_there_while_models_load() -> None:
    shelf = Shelf("a", "b")
    async with serving(shelf.catalog(2)) as server:
        await server.post(CHAT, body(CHAT, "a"))
        shelf.open.clear()
        loading = server.open("POST", CHAT, body(CHAT, "b"))
        assert await waits(loading)
        assert (await server.get("/health")).json == {"status": "ok"}
        assert b'plumbline_engine_alive{model_name="a"} 1.0' in (await server.get("/metrics")).body
        shelf.open.set()
        await loading.answer()
        found = (await server.get("/metrics")).body.decode()
        for name in "ab":
            assert f'plumbline_engine_alive{{model_name="{name}"}} 1.0' in found
            assert (
                f'plumbline_request_success_total{{finished_reason="stop",model_name="{name}"}} 1.0' in found
            )
        shelf.engines["b"][0].dead = True
        assert (await server.get("/health")).status == 503


async def test_a_model_that_loads_again_goes_on_counting() -> None:
    async with serving(Shelf("a", "b").catalog()) as server:
        for name in "aba":
            await server.post(CHAT, body(CHAT, name))
        found = (await server.get("/metrics")).body.decode()
        assert 'plumbline_request_success_total{finished_reason="stop",model_name="a"} 2.0' in found
        assert 'plumbline_engine_alive{model_name="b"}' not in found


@each_api
async def test_requests_in_flight_finish_before_their_model_leaves(path: str) -> None:
    shelf = Shelf("a", "b", gated=True)
    async with serving(shelf.catalog()) as server:
        first = server.open("POST", path, body(path, "a", stream=True))
        await until(lambda: shelf.engines["a"] and shelf.engines["a"][0].num_running)
        second = server.open("POST", path, body(path, "b"))
        assert await waits(second)
        later = server.open("POST", path, body(path, "a"))
        assert await waits(later)
        shelf.engines["a"][0].let()
        assert text(await first.answer()) == "I am a."
        await until(lambda: shelf.engines["b"])
        assert shelf.engines["a"][0].aborted == []
        shelf.engines["b"][0].let()
        assert text(await second.answer()) == "I am b."
        await until(lambda: len(shelf.engines["a"]) == 2)
        shelf.engines["a"][1].let()
        assert text(await later.answer()) == "I am a."


async def test_a_response_in_the_background_finishes_before_its_model_leaves(tmp_path: Path) -> None:
    shelf = Shelf("a", "b", gated=True)
    async with serving(shelf.catalog(), store=str(tmp_path / "s.db")) as server:
        queued = (await server.post(RESPONSES, body(RESPONSES, "a", background=True))).json
        other = server.open("POST", RESPONSES, body(RESPONSES, "b"))
        assert await waits(other)
        shelf.engines["a"][0].let()
        await until(lambda: shelf.engines["b"])
        shelf.engines["b"][0].let()
        assert text(await other.answer()) == "I am b."
        done = await server.get(f"/v1/responses/{queued['id']}")
        assert (done.json["status"], text(done)) == ("completed", "I am a.")


async def test_a_conversation_continues_with_another_model(tmp_path: Path) -> None:
    async with serving(Shelf("a", "b").catalog(), store=str(tmp_path / "s.db")) as server:
        first = (await server.post(RESPONSES, body(RESPONSES, "a"))).json
        more = {"previous_response_id": first["id"]}
        second = await server.post(RESPONSES, body(RESPONSES, "b", **more))
        assert (text(second), second.json["model"]) == ("I am b.", "b")
        conversation = (await server.post("/v1/conversations", {})).json["id"]
        for name in "ab":
            answer = await server.post(RESPONSES, body(RESPONSES, name, conversation=conversation))
            assert text(answer) == f"I am {name}."


@each_api
async def test_a_stream_for_a_model_that_loads_begins_with_comments(path: str) -> None:
    shelf = Shelf("a")
    shelf.open.clear()
    async with serving(shelf.catalog(), keep_alive_interval=0.005) as server:
        exchange = server.open("POST", path, body(path, "a", stream=True))
        whole = server.open("POST", path, body(path, "a"))
        writes = exchange.writes()
        early = [await anext(writes), await anext(writes)]
        assert all(write.startswith(b"event: ping" if path == MESSAGES else b":") for write in early)
        assert await waits(whole)
        shelf.open.set()
        rest = b"".join([write async for write in writes])
        assert exchange.status == 200
        streamed = Answer(200, exchange.headers, rest)
        assert text(streamed) == text(await whole.answer()) == "I am a."
        assert (streamed.events[-1].name or streamed.events[-1].data) in ("message_stop", "[DONE]")
        assert len(shelf.engines["a"]) == 1


@each_api
@pytest.mark.parametrize("interval", [0.0, 0.005])
async def test_a_load_that_fails_fails_its_requests_and_the_next_tries_again(
    path: str, interval: float
) -> None:
    shelf = Shelf("a", "b")
    shelf.broken = {"b"}
    shelf.open.clear()
    async with serving(shelf.catalog(2), keep_alive_interval=interval) as server:
        good = server.open("POST", path, body(path, "a"))
        bad = [server.open("POST", path, body(path, "b", stream=stream)) for stream in (False, True)]
        if interval:
            await bad[1].begin()
        shelf.open.set()
        assert text(await good.answer()) == "I am a."
        whole = await bad[0].answer()
        assert (whole.status, whole.error["code"]) == (529 if path == MESSAGES else 503, "engine_unavailable")
        assert whole.error["message"].startswith("The model 'b' could not be loaded.")
        assert whole.header("x-should-retry") == "false"
        writes = b"".join([write async for write in bad[1].writes()])
        streamed = Answer(bad[1].status, bad[1].headers, writes)
        assert b"secret" not in whole.body + writes
        if interval:
            event, *end = (event for event in streamed.events if event.name != "ping")
            assert (bad[1].status, [one.data for one in end]) == (
                200,
                [] if path == MESSAGES else ["[DONE]"],
            )
            assert event.json["error"]["message"] == whole.error["message"]
            assert (event.name, event.json.get("type")) == (
                ("error",) * 2 if path in (MESSAGES, RESPONSES) else (None, None)
            )
        else:
            assert streamed.error == whole.error
        shelf.broken = set()
        assert text(await server.post(path, body(path, "b"))) == "I am b."


@each_api
async def test_an_error_after_a_late_beginning_is_an_event(path: str) -> None:
    """The request is checked when its model is there."""
    shelf = Shelf("a")
    shelf.open.clear()
    async with serving(shelf.catalog(), keep_alive_interval=0.005) as server:
        field = {CHAT: "messages", MESSAGES: "messages", RESPONSES: "input"}.get(path, "prompt")
        long = json.loads(json.dumps(BODIES[path][field]).replace("hello", "hello " * 5000))
        exchange = server.open("POST", path, body(path, "a", stream=True) | {field: long})
        await exchange.begin()
        shelf.open.set()
        events = Answer(200, [], b"".join([write async for write in exchange.writes()])).events
        event, *end = (event for event in events if event.name != "ping")
        error = event.json["error"]
        assert exchange.status == 200
        assert error.get("param", field) == field
        assert "maximum context length" in error["message"]
        assert [one.data for one in end] == ([] if path == MESSAGES else ["[DONE]"])


async def test_requests_that_wait_for_models_are_bounded() -> None:
    shelf = Shelf("a", "b")
    shelf.open.clear()
    async with serving(shelf.catalog(), max_num_waiting=6, max_seqs_per_client=4) as server:
        requests = [server.open("POST", CHAT, body(CHAT, "ab"[number % 2])) for number in range(50)]
        refused = [await request.answer() for request in requests[4:]]
        assert {(answer.status, answer.error["code"]) for answer in refused} == {(429, "rate_limit_exceeded")}
        shelf.open.set()
        answers = [text(await request.answer()) for request in requests[:4]]
        assert answers == ["I am a.", "I am b."] * 2


async def test_a_client_that_leaves_waits_for_no_model() -> None:
    shelf = Shelf("a", "b", gated=True)
    async with serving(shelf.catalog(), keep_alive_interval=0.005) as server:
        first = server.open("POST", CHAT, body(CHAT, "a"))
        await until(lambda: shelf.engines["a"] and shelf.engines["a"][0].num_running)
        left = [server.open("POST", CHAT, body(CHAT, "b", stream=stream)) for stream in (False, True)]
        await left[1].begin()
        for exchange in left:
            exchange.leave()
        await asyncio.gather(*(exchange.finished() for exchange in left))
        shelf.engines["a"][0].let()
        await first.answer()
        await until(lambda: not shelf.engines["a"][0].num_running)
        assert shelf.engines["b"] == []
        assert text(await _again(server, shelf)) == "I am a."


async def _again(server: Server, shelf: Shelf) -> Answer:
    exchange = server.open("POST", CHAT, body(CHAT, "a"))
    await until(lambda: shelf.engines["a"][-1].num_running or len(shelf.engines["a"]) == 2)
    shelf.engines["a"][-1].let()
    return await exchange.answer()


async def test_a_model_that_left_is_freed() -> None:
    shelf = Shelf("a", "b")
    async with serving(shelf.catalog()) as server:
        await server.post(CHAT, body(CHAT, "a"))
        engine = weakref.ref(shelf.engines["a"].pop())
        RELEASED.clear()
        await server.post(CHAT, body(CHAT, "b"))
        assert RELEASED
        gc.collect()
        assert engine() is None


def test_a_websocket_takes_turns_of_several_models() -> None:
    with (
        live(Shelf("a", "b").catalog, Settings()) as server,
        connect(f"ws://127.0.0.1:{server.port}/v1/responses") as socket,
    ):
        for name in "ab":
            socket.send(json.dumps({"type": "response.create", "model": name, "input": "hi"}))
            events = [json.loads(socket.recv(timeout=20))]
            while events[-1]["type"] != "response.completed":
                events.append(json.loads(socket.recv(timeout=20)))
            response = events[-1]["response"]
            assert (response["model"], response["output"][0]["content"][0]["text"]) == (name, f"I am {name}.")


def test_a_server_stops_while_a_model_loads() -> None:
    shelf = Shelf("a")
    shelf.open.clear()
    with live(shelf.catalog, Settings(shutdown_timeout=0.05, keep_alive_interval=0.01)) as server:
        with httpx2.stream(
            "POST", f"{server.url}{CHAT}", json=body(CHAT, "a", stream=True), timeout=20
        ) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith(":")
            server.stop()
            rest = [line for line in lines if line.startswith("data: ")]
        assert json.loads(rest[0].removeprefix("data: "))["error"]["code"] == "engine_unavailable"
        server.thread.join(20)
        assert not server.thread.is_alive()
    shelf.open.set()
