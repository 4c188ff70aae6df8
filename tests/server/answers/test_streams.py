"""Streams: framing, clients that leave, failures in the middle, silence (SSE-*, HTTP-11, HTTP-12, ERR-10 to ERR-12)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import pytest
from support.models import (
    RENDERER,
    GatedEngine,
    answer_with,
    scripted,
    served,
    slow_down,
    tiny_engine,
    until,
)
from support.servers.asgi import Event, Server, serving

from plumbline.answer.text.render import Renderer
from plumbline.answer.turn import Prompt
from plumbline.port.engine import GenerateRequest, TokenChunk

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "test-model", "messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"model": "test-model", "prompt": "hello", "max_tokens": 100},
    "/v1/responses": {"model": "test-model", "input": "hello"},
}

each_api = pytest.mark.parametrize("path", BODIES)


def streamed(path: str, **changes: Any) -> dict[str, Any]:
    return {**BODIES[path], "stream": True, **changes}


def done(events: list[Event]) -> list[Event]:
    """Check the end of a stream and take it away (SSE-06, SSE-07)."""
    assert [event.data for event in events].count("[DONE]") == 1
    assert events[-1] == Event(None, "[DONE]")
    return events[:-1]


@each_api
async def test_a_stream_is_one_write_per_event(path: str) -> None:
    """SSE-01, SSE-02: each event is one JSON object in `data:`, closed by a blank line, sent by itself."""
    async with serving(served(scripted())) as server:
        exchange = server.open("POST", path, streamed(path))
        writes = [write async for write in exchange.writes()]

        assert all(write.endswith(b"\n\n") and write.count(b"\n\n") == 1 for write in writes)
        assert writes[-1] == b"data: [DONE]\n\n"
        assert all(write.startswith((b"data: {", b"event: ")) for write in writes[:-1])


@each_api
async def test_a_stream_has_its_content_type_and_forbids_buffering(path: str) -> None:
    """HTTP-02, HTTP-15."""
    async with serving(served(scripted())) as server:
        answer = await server.post(path, streamed(path))

        assert answer.status == 200
        assert str(answer.header("content-type")).partition(";")[0] == "text/event-stream"
        assert answer.header("cache-control") == "no-cache"
        assert answer.header("x-accel-buffering") == "no"
        assert answer.header("content-length") is None


async def test_events_of_responses_are_named_by_their_type() -> None:
    """SSE-03, SSE-04."""
    async with serving(served(scripted())) as server:
        events = done((await server.post("/v1/responses", streamed("/v1/responses"))).events)

        assert events
        assert all(event.name == event.json["type"] for event in events)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_chunks_have_no_names(path: str) -> None:
    """SSE-05, SSE-10: data only, and `error` only on failures."""
    async with serving(served(scripted())) as server:
        events = done((await server.post(path, streamed(path))).events)

        assert events
        assert all(event.name is None and "error" not in event.json for event in events)


async def test_characters_are_never_split() -> None:
    """SSE-09: the euro sign is two tokens here, the emoji three."""
    text = "1 € and 🎉 and ü"
    async with serving(served(scripted(answer_with(text)))) as server:
        events = done((await server.post("/v1/chat/completions", streamed("/v1/chat/completions"))).events)
        deltas = [event.json["choices"][0]["delta"].get("content", "") for event in events]

        assert "".join(deltas) == text
        assert "€" in deltas
        assert "🎉" in deltas


@each_api
async def test_the_first_event_arrives_before_the_last_token_is_made(path: str) -> None:
    """HTTP-15."""
    engine = GatedEngine()
    async with serving(served(engine)) as server:
        exchange = server.open("POST", path, streamed(path))
        writes = exchange.writes()
        engine.let(1)
        await anext(writes)
        assert engine.num_running == 1
        engine.let()
        assert [write async for write in writes][-1] == b"data: [DONE]\n\n"


@each_api
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("given", [0, 3])
@pytest.mark.parametrize("interval", [0.0, 60.0])
async def test_a_client_that_leaves_ends_its_request(
    path: str, stream: bool, given: int, interval: float
) -> None:
    """HTTP-11: at whatever moment it leaves, nothing of it runs afterwards."""
    engine = GatedEngine()
    async with serving(served(engine), keep_alive_interval=interval) as server:
        exchange = server.open("POST", path, {**BODIES[path], "stream": stream})
        engine.let(given)
        await until(lambda: engine.num_running and engine.num_given == given)
        exchange.leave()
        await exchange.finished()

        assert engine.num_running == 0
        assert engine.aborted == engine.started
        engine.let()
        assert await server.tasks_left() == set()
        assert engine.num_given == given


@pytest.mark.parametrize("stream", [True, False])
async def test_prompts_of_a_client_that_has_left_are_not_rendered(stream: bool) -> None:
    """HTTP-11: a worker thread cannot be stopped, but the prompts after the one that it is at are dropped."""
    renderer = GatedRenderer(RENDERER.tokenizer, RENDERER.template)
    engine = GatedEngine()
    async with serving(served(engine, renderer=renderer)) as server:
        body = {**BODIES["/v1/completions"], "prompt": ["hello"] * 5, "stream": stream}
        exchange = server.open("POST", "/v1/completions", body)
        await until(lambda: renderer.rendered)
        exchange.leave()
        await exchange.finished()
        renderer.gate.set()

        assert await server.tasks_left() == set()
        assert (renderer.rendered, engine.started) == (1, [])


class GatedRenderer(Renderer):
    """Renders when it is let."""

    rendered = 0

    def token_ids(self, prompt: Prompt, most: int | None = None) -> list[int]:
        self.rendered += 1
        self.gate.wait(20)
        return super().token_ids(prompt, most)

    @cached_property
    def gate(self) -> threading.Event:
        return threading.Event()


@each_api
@pytest.mark.parametrize("moment", ["before the status", "after the first write"])
async def test_a_stream_without_a_reader_is_closed(path: str, moment: str) -> None:
    """HTTP-11: the response is made, and the client is gone before its first byte could be sent."""
    engine = GatedEngine()
    async with serving(served(engine), keep_alive_interval=0.001) as server:
        exchange = server.open("POST", path, streamed(path))
        await until(lambda: engine.num_running)
        if moment == "after the first write":
            await anext(
                exchange.writes()
            )  # The patience of `prime` has ended; nothing has been generated yet.
        exchange.leave()
        await exchange.finished()

        assert engine.num_running == 0
        assert engine.num_given == 0
        assert await server.tasks_left() == set()


@pytest.mark.parametrize("stream", [True, False])
async def test_every_choice_ends_when_the_client_leaves(stream: bool) -> None:
    """HTTP-11 with `n` and several prompts."""
    engine = GatedEngine()
    async with serving(served(engine)) as server:
        body = {"model": "test-model", "prompt": ["a", "b"], "n": 3, "stream": stream}
        exchange = server.open("POST", "/v1/completions", body)
        await until(lambda: engine.num_running == 6)
        engine.let(2)
        await until(lambda: engine.num_given == 2)
        exchange.leave()
        await exchange.finished()

        assert engine.num_running == 0
        assert sorted(engine.aborted) == sorted(engine.started)
        assert len(set(engine.started)) == 6


async def test_leaving_frees_the_blocks_of_our_engine() -> None:
    """HTTP-11: killing the client in mid-stream frees the blocks of the request."""
    engine = tiny_engine()
    async with serving(served(engine)) as server:
        for stream in (True, False):
            body = {**BODIES["/v1/completions"], "ignore_eos": True, "max_tokens": 400, "stream": stream}
            exchange = server.open("POST", "/v1/completions", body)
            await until(lambda: engine.stats().generation_tokens)
            exchange.leave()
            await exchange.finished()
            await until(lambda: engine.stats().num_running == 0 and engine.stats().kv_cache_usage == 0.0)
        assert (await server.post("/v1/completions", BODIES["/v1/completions"])).status == 200


def breaking(after: int) -> Any:
    """A script that fails after some tokens."""

    def script(request: GenerateRequest) -> Iterable[TokenChunk]:
        yield from [*answer_with("hello world and more")(request)][:after]
        yield TokenChunk(finish_reason="error", error="The engine failed while it computed this request.")

    return script


def raising(after: int) -> Any:
    """A script with a bug."""

    def script(request: GenerateRequest) -> Iterable[TokenChunk]:
        yield from [*answer_with("hello world and more")(request)][:after]
        raise ZeroDivisionError("a secret of the server in /some/path.py")

    return script


@each_api
@pytest.mark.parametrize("script", [breaking(0), raising(0)], ids=["failed", "bug"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_the_first_token_is_a_status(path: str, script: Any, stream: bool) -> None:
    """HTTP-12, ERR-13: an HTTP error, not a stream with status 200; no secrets."""
    async with serving(served(scripted(script))) as server:
        answer = await server.post(path, {**BODIES[path], "stream": stream})

        assert answer.status == 500
        assert answer.error["type"] == "server_error"
        assert "secret" not in answer.error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("script", [breaking(2), raising(2)], ids=["failed", "bug"])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_failure_in_mid_stream_is_one_error_event(path: str, script: Any, n: int) -> None:
    """ERR-12: one `data: {"error": …}` event with the four keys, then the end; ERR-13: no secrets."""
    async with serving(served(scripted(script))) as server:
        answer = await server.post(path, streamed(path, n=n))
        events = done(answer.events)
        errors = [event.json for event in events if "error" in event.json]

        assert answer.status == 200
        assert len(events) > 1
        assert errors == [events[-1].json]
        assert set(errors[0]) == {"error"}
        assert set(errors[0]["error"]) == {"message", "type", "param", "code"}
        assert errors[0]["error"]["type"] == "server_error"
        assert "secret" not in errors[0]["error"]["message"]
        assert all(event.json["choices"][0]["finish_reason"] is None for event in events[:-1])


@pytest.mark.parametrize("script", [breaking(2), raising(2)], ids=["failed", "bug"])
async def test_a_failure_in_mid_response_is_an_error_and_a_failed_response(script: Any) -> None:
    """ERR-10, ERR-11: an `error` event with flat and nested fields, then `response.failed`."""
    async with serving(served(scripted(script))) as server:
        events = done((await server.post("/v1/responses", streamed("/v1/responses"))).events)
        error, failed = events[-2].json, events[-1].json

        assert [event.name for event in events[-2:]] == ["error", "response.failed"]
        assert [event.json["sequence_number"] for event in events] == list(range(len(events)))
        assert error["message"] == error["error"]["message"]
        assert error["code"] == error["error"]["code"] == "server_error"
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"] == {"code": "server_error", "message": error["message"]}
        assert failed["response"]["completed_at"] is None
        assert [item["status"] for item in failed["response"]["output"]] == ["incomplete"]
        assert "secret" not in str(failed)


@each_api
@pytest.mark.parametrize("stream", [True, False])
async def test_stopping_the_engine_ends_what_runs(path: str, stream: bool) -> None:
    """A request that the shutdown aborts is a 503 before the first token, and an error event after it."""
    engine = GatedEngine()
    async with serving(served(engine)) as server:
        exchange = server.open("POST", path, {**BODIES[path], "stream": stream})
        engine.let(1)
        await until(lambda: engine.num_given == 1)
        await engine.stop()
        engine.let()
        answer = await exchange.answer()

        if stream:
            last = done(answer.events)[-1].json
            failure = last["response"]["error"] if path == "/v1/responses" else last["error"]
            assert "shutting down" in failure["message"]
        else:
            assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
        refused = await server.post(path, BODIES[path])
        assert (refused.status, refused.error["code"]) == (503, "engine_unavailable")


@each_api
async def test_a_silent_stream_gets_comments(path: str) -> None:
    """SSE-08: keep-alives are comment lines, and the events are the same as without them."""
    engine = GatedEngine()
    async with serving(served(engine), keep_alive_interval=0.001) as server:
        exchange = server.open("POST", path, streamed(path))
        seen: list[bytes] = []
        async for write in exchange.writes():
            seen.append(write)
            if seen.count(b": keep-alive\n\n") == 3:
                engine.let()
        assert seen.count(b": keep-alive\n\n") >= 3
        quiet = await server.post(path, streamed(path))

        assert contents(read(seen)) == contents(done(quiet.events))


def read(writes: list[bytes]) -> list[Event]:
    from support.servers.asgi import read_events

    return done(read_events(writes))


def contents(events: list[Event]) -> list[tuple[str | None, list[str]]]:
    """What two streams of the same answer share: names and keys."""
    return [(event.name, sorted(event.json)) for event in events]


@pytest.mark.parametrize("interval", [0.0, 60.0])
@pytest.mark.parametrize("num", [200])
async def test_two_hundred_streams_do_not_mix(interval: float, num: int) -> None:
    """HTTP-14: no cross-talk of ids, text or usage."""
    async with serving(served(scripted()), keep_alive_interval=interval) as server:
        answers = await asyncio.gather(*(ask(server, f"number {i} {'x' * (i % 7)}") for i in range(num)))

        assert [text for _, text, _ in answers] == [
            f"You said: number {i} {'x' * (i % 7)}" for i in range(num)
        ]
        assert len({request_id for request_id, _, _ in answers}) == num
        assert all(usage["completion_tokens"] > 0 for _, _, usage in answers)


async def ask(server: Server, words: str, **changes: Any) -> tuple[str, str, dict[str, Any]]:
    body = {
        "model": "test-model",
        "messages": [{"role": "user", "content": words}],
        "stream": True,
        "stream_options": {"include_usage": True},
        **changes,
    }
    events = done((await server.post("/v1/chat/completions", body)).events)
    chunks = [event.json for event in events]
    assert len({chunk["id"] for chunk in chunks}) == 1
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    return chunks[0]["id"], text, chunks[-1]["usage"]


async def test_our_engine_answers_many_as_it_answers_one() -> None:
    """HTTP-14, CHAT-11: an answer does not depend on other requests."""
    async with serving(served(tiny_engine())) as server:
        options = {"temperature": 0.8, "seed": 5, "max_completion_tokens": 12}
        alone = [await ask(server, f"number {i}", **options) for i in range(6)]
        together = await asyncio.gather(*(ask(server, f"number {i % 6}", **options) for i in range(36)))

        for i, (_, text, usage) in enumerate(together):
            assert (text, usage["completion_tokens"]) == (
                alone[i % 6][1],
                alone[i % 6][2]["completion_tokens"],
            )


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_while_waiting_frees_the_place_in_the_queue(stream: bool) -> None:
    """HTTP-11, HTTP-05 with the native engine: one request runs, one waits, the third is a 429."""
    engine = tiny_engine(max_num_seqs=1, max_num_waiting=1)
    slow_down(engine)
    path = "/v1/completions"
    long = {**BODIES[path], "ignore_eos": True, "max_tokens": 450}
    async with serving(served(engine)) as server:
        first = server.open("POST", path, {**long, "stream": True})
        await anext(first.writes())
        second = server.open("POST", path, {**long, "stream": stream})
        await until(lambda: engine.stats().num_waiting == 1)
        refused = await server.post(path, {**BODIES[path], "stream": stream})
        assert (refused.status, refused.header("retry-after")) == (429, "1")
        second.leave()
        await second.finished()
        await until(lambda: engine.stats().num_waiting == 0)
        first.leave()
        await first.finished()

        assert (await server.post(path, BODIES[path])).status == 200
        await until(lambda: engine.stats().kv_cache_usage == 0.0)
