"""Faults of the engine, as clients of each API see them, beside streams that they must not change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.models import served, tiny_engine, until
from support.servers.asgi import Answer, Server, serving
from support.servers.recovery import recovering
from support.servers.shelf import text

from plumbline.answer.text.render import Renderer
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.engine import NativeEngine
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.request import RequestState

_MARK = 37
"""The `max_tokens` of the request that the fault is about."""
_COMMON = {"model": "test-model", "ignore_eos": True, "temperature": 0}
_MESSAGES = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**_COMMON, "messages": _MESSAGES, "max_tokens": _MARK},
    "/v1/completions": {**_COMMON, "prompt": "hello", "max_tokens": _MARK},
    "/v1/responses": {**_COMMON, "input": "hello", "max_output_tokens": _MARK},
    "/v1/messages": {**_COMMON, "messages": _MESSAGES, "max_tokens": _MARK},
}
SHORT = {"model": "test-model", "prompt": "hello", "max_tokens": 1}
each_api = pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path == "/v1/responses" else [pytest.mark.long]) for path in BODIES],
)
stream_and_not = pytest.mark.parametrize("stream", [True, False])


def is_marked(state: RequestState) -> bool:
    return state.max_len - state.num_prompt_tokens == _MARK


def failure(answer: Answer, path: str, stream: bool) -> str:
    """Return the message of an answer that must be an error in the form of its API."""
    if not stream:
        assert answer.status in (500, 503)
        return str(answer.error["message"])
    assert answer.status == 200
    *_, error, before, last = answer.events
    if path == "/v1/responses":
        assert (error.name, before.name, last.data) == ("error", "response.failed", "[DONE]")
        assert before.json["response"]["status"] == "failed"
        return str(before.json["response"]["error"]["message"])
    if path == "/v1/messages":
        assert last.name == "error"
        return str(last.json["error"]["message"])
    assert last.data == "[DONE]"
    return str(before.json["error"]["message"])


@asynccontextmanager
async def bystanders(server: Server, engine: NativeEngine) -> AsyncIterator[None]:
    """Streams that run during the block; each must be what it is without a fault."""

    async def answer(number: int) -> list[str]:
        body = {**_COMMON, "messages": [{"role": "user", "content": f"story {number}"}], "max_tokens": 60}
        found = await server.post(
            "/v1/chat/completions", {**body, "stream": True, "temperature": 1.0, "seed": number}
        )
        return [
            event.json["choices"][0]["delta"].get("content", "")
            for event in found.events
            if event.data != "[DONE]"
        ]

    whole = [await answer(number) for number in range(3)]
    beside = [asyncio.ensure_future(answer(number)) for number in range(3)]
    await until(lambda: engine.stats().num_running == 3)
    yield
    assert await asyncio.gather(*beside) == whole


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that take 4 ms at least, so that streams are still running when a fault comes."""
    forward = ModelRunner.forward

    def slowly(runner: ModelRunner, inputs: Any) -> None:
        time.sleep(0.004)
        forward(runner, inputs)

    monkeypatch.setattr(ModelRunner, "forward", slowly)


@each_api
@stream_and_not
async def test_a_step_that_fails_ends_one_request_and_no_other(
    path: str, stream: bool, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = EngineCore._take

    def failing(core: EngineCore, state: RequestState, *rest: Any) -> None:
        if is_marked(state) and state.num_output_tokens == 5:
            raise RuntimeError("a secret of the server")
        take(core, state, *rest)

    monkeypatch.setattr(EngineCore, "_take", failing)
    engine = tiny_engine()
    async with serving(served(engine)) as server, bystanders(server, engine):
        answer = await server.post(path, {**BODIES[path], "stream": stream})
        assert failure(answer, path, stream) == "The engine failed while it computed this request."
        with recovering("A step raises an error"):
            assert (await server.post("/v1/completions", SHORT)).status == 200


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory")])
async def test_memory_that_is_short_at_an_admission_ends_one_request(
    error: Exception, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit = ModelRunner.admit

    def short(runner: ModelRunner, state: RequestState) -> None:
        if is_marked(state):
            raise error
        admit(runner, state)

    monkeypatch.setattr(ModelRunner, "admit", short)
    engine = tiny_engine()
    async with serving(served(engine)) as server, bystanders(server, engine):
        answer = await server.post("/v1/chat/completions", BODIES["/v1/chat/completions"])
        assert answer.status == 500
        with recovering("Memory is short when a request is admitted, or in a step"):
            assert (await server.post("/v1/completions", SHORT)).status == 200
    assert engine.stats().kv_cache_usage == 0.0


@each_api
@stream_and_not
async def test_a_thread_that_dies_ends_answers_in_the_form_of_their_api(
    path: str, stream: bool, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_engine()
    async with serving(served(engine)) as server:
        body = {**BODIES[path], "stream": stream}
        whole = await server.post(path, body)
        with monkeypatch.context() as patch:
            begun = engine.stats().generation_tokens + 5
            exchange = server.open("POST", path, body)
            await until(lambda: engine.stats().generation_tokens > begun)
            patch.setattr(EngineCore, "step", lambda _: 1 / 0)
            patch.setattr(EngineCore, "recover", lambda *_: 1 / 0)
            assert failure(await exchange.answer(), path, stream) == "The engine has failed."
        with recovering("The thread of the engine dies, or five steps fail in a row"):
            await until(lambda: engine.stats().num_restarts)
            assert (await server.get("/health/live")).status == 200
            answer = await server.post(path, body)
        assert text(answer) == text(whole)


@each_api
async def test_an_engine_that_is_beyond_repair_refuses_with_a_hint(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plumbline.engines.threaded.core_thread._FATAL_FAILURES", 1)
    monkeypatch.setattr(ModelRunner, "forward", lambda *_: 1 / 0)
    monkeypatch.setattr(ModelRunner, "renewed", lambda *_, **__: 1 / 0)
    engine = tiny_engine()
    async with serving(served(engine)) as server:
        assert (await server.post(path, BODIES[path])).status == 500
        await until(lambda: not engine.stats().alive)
        refused = await server.post(path, BODIES[path])
        assert (refused.status, refused.error["code"]) in {
            (503, "engine_unavailable"),
            (529, "engine_unavailable"),
        }
        assert refused.header("retry-after") == "10"
        assert (await server.get("/health/live")).status == 503


async def test_a_prompt_that_cannot_be_rendered_or_encoded_ends_one_request(
    slow: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors that nobody foresaw, such as a bug of a tokenizer; their text is in the log and not in the answer."""
    engine = tiny_engine()
    encode = Renderer.token_ids

    def failing(renderer: Renderer, *arguments: Any, **named: Any) -> Any:
        if "poison" in str(arguments):
            raise ValueError("a secret of the tokenizer")
        return encode(renderer, *arguments, **named)

    monkeypatch.setattr(Renderer, "token_ids", failing)
    async with serving(served(engine)) as server, bystanders(server, engine):
        body = {**BODIES["/v1/chat/completions"], "messages": [{"role": "user", "content": "poison"}]}
        answer = await server.post("/v1/chat/completions", body)
        assert answer.status == 500
        assert "secret" not in answer.error["message"]
        with recovering("A tokenizer or a template fails, or a template never ends"):
            assert (await server.post("/v1/completions", SHORT)).status == 200
    assert "a secret of the tokenizer" in caplog.text
