"""Laws of a server without room for another request.

- A request that would be refused is refused before it is read: no body is waited for, parsed, rendered or tokenised.
- The refusal is a whole answer: 429, envelope, `Retry-After`, request id, the limits of its key, a count.
- It costs a key nothing of its share.
- Whatever does not generate is answered, and so is every request as soon as there is room.
- What is being rendered has its place already: of many that come at once no more are rendered than there is room for.
- Who has waited too long is refused, but not later choices and prompts of an answer, and not in the background.
- Of several models a full one refuses its own requests, before they are rendered.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.bodies import BODIES, each_api
from support.models import GatedEngine, hold_steps, served, tiny_engine, until
from support.servers.asgi import Exchange, Server, serving
from support.servers.shelf import CHAT, Shelf, body

from plumbline.text.render import Renderer


@asynccontextmanager
async def full(engine: GatedEngine, **settings: Any) -> Any:
    """Serve an engine of one place, which a request has."""
    key = {"authorization": "Bearer other"} if "api_keys" in settings else {}
    async with serving(served(engine), **settings) as server:
        first = server.open("POST", "/v1/completions", BODIES["/v1/completions"], headers=key)
        await until(lambda: engine.num_running)
        yield server
        engine.let()
        assert (await first.answer()).status == 200


async def unsent(server: Server, path: str) -> Exchange:
    """Send the headers of a request, and nothing of its body."""
    exchange = Exchange()
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-length", b"10")],
        "client": ("test", 1),
        "server": ("test", 80),
        "state": {},
    }

    async def receive() -> Any:
        raise AssertionError("the body was read")

    await server.app(scope, receive, exchange.sent.put)
    return exchange


@each_api
async def test_a_request_is_refused_before_its_body_is_read(path: str) -> None:
    """HTTP-05, HTTP-03."""
    engine = GatedEngine(max_inflight=1)
    async with full(engine) as server:
        exchange = await unsent(server, path)
        await exchange.begin()
        headers = dict(exchange.headers)
        assert exchange.status == 429
        assert int(headers["retry-after"]) >= 1
        assert headers["x-request-id"].startswith("req_")
        answer = await server.post(path, b"{")
        assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
        counted = (await server.get("/metrics")).body.decode()
        assert f'plumbline_http_requests_total{{path="{path}",status="429"}} 2.0' in counted


async def test_what_does_not_generate_is_answered() -> None:
    async with full(GatedEngine(max_inflight=1)) as server:
        assert (await server.post("/tokenize", {"model": "test-model", "prompt": "hi"})).status == 200
        assert (await server.get("/v1/models")).status == 200
        assert (await server.get("/health/ready")).status == 200
        assert (await server.post("/v1/completion", {})).status == 404


async def test_a_refusal_costs_a_key_nothing() -> None:
    engine = GatedEngine(max_inflight=1)
    async with full(engine, api_keys=("other", "one requests=3")) as server:
        asked = {"authorization": "Bearer one"}
        for _ in range(5):
            answer = await server.post(CHAT, BODIES[CHAT], headers=asked)
            assert (answer.status, answer.header("x-ratelimit-remaining-requests")) == (429, "3")
            assert "in flight" in answer.error["message"]
        assert (await server.post(CHAT, BODIES[CHAT], headers={"authorization": "Bearer x"})).status == 401


async def test_there_is_room_again_at_once() -> None:
    engine = GatedEngine(max_inflight=1)
    async with full(engine) as server:
        assert (await server.post(CHAT, BODIES[CHAT])).status == 429
        engine.let()
        await until(lambda: not engine.num_running)
        assert (await server.post(CHAT, BODIES[CHAT])).status == 200


async def test_a_full_model_refuses_before_it_renders_and_others_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shelf = Shelf("a", "b")
    async with serving(shelf.catalog(capacity=2)) as server:
        for name in "ab":
            assert (await server.post(CHAT, body(CHAT, name))).status == 200
        shelf.engines["a"][0]._max_inflight = 0
        assert (await server.post(CHAT, body(CHAT, "b"))).status == 200

        def render(*_: Any) -> Any:
            raise AssertionError("a prompt was rendered")

        monkeypatch.setattr(Renderer, "token_ids", render)
        assert (await server.post(CHAT, body(CHAT, "a"))).status == 429


async def test_of_many_that_come_at_once_only_those_with_room_are_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = GatedEngine(max_inflight=1)
    render, rendered = Renderer.token_ids, []

    def counted(*given: Any) -> Any:
        rendered.append(given)
        return render(*given)

    monkeypatch.setattr(Renderer, "token_ids", counted)
    async with serving(served(engine)) as server:
        exchanges = [server.open("POST", CHAT, BODIES[CHAT]) for _ in range(20)]
        await until(lambda: engine.num_running)
        engine.let()
        statuses = [(await exchange.answer()).status for exchange in exchanges]
    assert sorted(statuses) == [200] + [429] * 19
    assert len(rendered) == 1


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/completions", {"prompt": ["a", "b", "c"]}),
        ("/v1/completions", {"n": 3}),
        ("/v1/completions", {"n": 2, "use_beam_search": True}),
        ("/v1/responses", {"background": True}),
    ],
)
async def test_an_answer_that_has_begun_or_that_nobody_waits_for_waits_for_its_turn(
    path: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """One sequence at a time, 2 ms a token, and nobody may wait for more than 10 ms."""
    engine = tiny_engine(max_num_seqs=1)
    forward = engine._keeper.core._runner.forward  # type: ignore[attr-defined]

    def slow(inputs: Any) -> None:
        time.sleep(0.002)
        forward(inputs)

    engine._keeper.core._runner.forward = slow  # type: ignore[attr-defined]
    engine.admission.max_queue_seconds = 0.01
    async with serving(served(engine), store=str(tmp_path / "kept.db")) as server:
        hindered = {"prompt": "x", "model": "test-model", "max_tokens": 100, "ignore_eos": True}
        other = None
        if "background" in more:
            let = hold_steps(engine)
            other = asyncio.create_task(server.post("/v1/completions", hindered))
            await until(lambda: engine.stats().num_running)
        size = (
            {"max_output_tokens": 16} if path == "/v1/responses" else {"max_tokens": 12, "ignore_eos": True}
        )
        answer = await server.post(path, {**BODIES[path], **size, **more})
        assert answer.status == 200, answer.error
        if other is not None:
            await asyncio.sleep(0.1)
            let.set()
            assert (await other).status == 200

            async def ended() -> str:
                return str((await server.get(f"{path}/{answer.json['id']}")).json["status"])

            while (status := await ended()) in ("queued", "in_progress"):
                await asyncio.sleep(0.01)
            assert status in ("completed", "incomplete")
