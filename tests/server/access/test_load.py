"""A full queue is a 429, and `/health` reports a dead or stuck engine (HTTP-05, HTTP-13)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from support.bodies import BODIES, each_api
from support.models import GatedEngine, scripted, served, slow_down, tiny_engine, until
from support.servers.asgi import serving

from plumbline.port.engine import EngineStats


@each_api
@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_queue_is_a_429(path: str, stream: bool) -> None:
    """HTTP-05: the envelope and `Retry-After`, before any stream begins."""
    engine = GatedEngine(max_inflight=1)
    async with serving(served(engine)) as server:
        first = server.open("POST", path, BODIES[path])
        await until(lambda: engine.num_running)
        answer = await server.post(path, {**BODIES[path], "stream": stream})

        assert answer.status == 429
        assert int(answer.header("retry-after") or 0) >= 1
        assert answer.error["code"] == "rate_limit_exceeded"
        engine.let()
        assert (await first.answer()).status == 200
        assert (await server.post(path, {**BODIES[path], "stream": stream})).status == 200


async def test_more_choices_than_can_ever_run_are_the_requests_mistake() -> None:
    """HTTP-13: a 429 would be tried again for ever, after all prompts have been tokenised for nothing."""
    async with serving(served(scripted()), max_num_seqs=2, max_num_waiting=2) as server:
        completion, chat = BODIES["/v1/completions"], BODIES["/v1/chat/completions"]
        for path, body, param in (
            ("/v1/completions", {**completion, "prompt": ["a"] * 3, "n": 2}, "prompt"),
            ("/v1/completions", {**completion, "best_of": 5}, "n"),
            ("/v1/chat/completions", {**chat, "n": 5}, "n"),
        ):
            answer = await server.post(path, body)
            assert (answer.status, answer.error["param"], answer.error["code"]) == (
                400,
                param,
                "invalid_value",
            )
        answer = await server.post("/v1/completions", {**completion, "prompt": ["a", "b"], "n": 2})
        assert len(answer.json["choices"]) == 4


async def test_more_choices_than_a_client_may_have_are_the_requests_mistake() -> None:
    """HTTP-13: what the engine admits counts, not what the settings would allow another one."""
    engine = tiny_engine(max_num_seqs=4, max_num_waiting=4, max_seqs_per_client=6)
    async with serving(served(engine)) as server:
        body = {**BODIES["/v1/chat/completions"], "max_completion_tokens": 2}
        answer = await server.post("/v1/chat/completions", {**body, "n": 7})
        assert (answer.status, answer.error["param"]) == (400, "n")
        assert len((await server.post("/v1/chat/completions", {**body, "n": 6})).json["choices"]) == 6


async def test_a_client_that_has_its_share_gets_a_429_and_others_do_not() -> None:
    """HTTP-05: one key cannot fill the queue for the others."""
    engine = tiny_engine(max_num_seqs=2, max_num_waiting=8, max_seqs_per_client=3)
    slow_down(engine)
    async with serving(served(engine), api_keys=("a", "b")) as server:
        path = "/v1/chat/completions"
        body = {**BODIES[path], "stream": True, "ignore_eos": True, "max_completion_tokens": 400}
        first = {"authorization": "Bearer a"}
        streams = [server.open("POST", path, body, headers=first) for _ in range(3)]
        await until(lambda: engine.stats().num_running + engine.stats().num_waiting == 3)
        refused = await server.post(path, body, headers=first)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.header("retry-after") or 0) >= 1
        other = await server.post(
            path, {**body, "max_completion_tokens": 2}, headers={"authorization": "Bearer b"}
        )
        assert other.status == 200
        # It did not wait for one of the first client's streams to end.
        assert engine.stats().num_running + engine.stats().num_waiting == 3
        for stream in streams:
            stream.leave()


async def test_a_request_that_does_not_fit_whole_leaves_nothing_behind() -> None:
    """HTTP-05 with `n`: of four choices three fit; none may go on."""
    engine = GatedEngine(max_inflight=3)
    async with serving(served(engine)) as server:
        for stream in (True, False):
            body = {**BODIES["/v1/chat/completions"], "n": 4, "stream": stream}
            assert (await server.post("/v1/chat/completions", body)).status == 429
            assert engine.num_running == 0
            assert await server.tasks_left() == set()
        assert engine.num_given == 0


async def test_a_request_that_would_wait_too_long_is_a_429_at_once() -> None:
    """HTTP-05: the engine runs one request at a time, 50 ms each; of 100 at once it admits what it can in a second."""
    engine = tiny_engine(max_num_seqs=1)
    engine.admission.max_queue_seconds = 1.0
    slow_down(engine)
    body = {**BODIES["/v1/chat/completions"], "max_tokens": 5, "ignore_eos": True}
    async with serving(served(engine)) as server:
        for _ in range(4):  # It learns from requests that wait.
            assert {
                answer.status
                for answer in await asyncio.gather(
                    *(server.post("/v1/chat/completions", body) for _ in range(2))
                )
            } == {200}
        answers = await asyncio.gather(*(server.post("/v1/chat/completions", body) for _ in range(100)))
        statuses = Counter(answer.status for answer in answers)
        assert set(statuses) == {200, 429}
        assert statuses[429] >= 20
        refused = [answer for answer in answers if answer.status == 429]
        assert any("would wait about" in answer.error["message"] for answer in refused)
        assert all(int(answer.header("retry-after") or 0) >= 1 for answer in refused)
        assert (await server.post("/v1/chat/completions", body)).status == 200


class SickEngine(GatedEngine):
    """An engine that reports the stats that the test wants."""

    facts: dict[str, Any] = {}  # noqa: RUF012

    def stats(self) -> EngineStats:
        return msgspec.structs.replace(super().stats(), **self.facts)


@pytest.mark.parametrize(
    ("facts", "ready", "live"),
    [
        ({}, 200, 200),
        ({"alive": False}, 503, 503),
        # A restart would end requests that a long step may still answer.
        ({"seconds_since_step": 31.0}, 503, 200),
        ({"seconds_since_step": 29.0}, 200, 200),
    ],
)
async def test_health_reports_a_dead_or_stuck_engine(facts: dict[str, Any], ready: int, live: int) -> None:
    engine = SickEngine()
    async with serving(served(engine), stuck_after=30.0) as server:
        engine.facts = facts
        for path, status in (("/health", ready), ("/health/ready", ready), ("/health/live", live)):
            answer = await server.get(path)

            assert answer.status == status
            assert answer.json["status"] == ("ok" if status == 200 else "failing")
            assert ("engine" in " ".join(answer.json.get("reasons", []))) is (status == 503)
        engine.facts = {}


async def test_health_and_metrics_report_images_that_hang() -> None:
    """Requests without images are answered, so the server stays ready."""
    engine = SickEngine()
    async with serving(served(engine)) as server:
        for number, status in ((0, "ok"), (2, "degraded"), (0, "ok")):
            engine.facts = {"num_hanging_images": number}
            for path in ("/health", "/health/ready"):
                answer = await server.get(path)
                assert (answer.status, answer.json["status"]) == (200, status)
                assert ("images" in " ".join(answer.json.get("reasons", []))) is (number > 0)
            line = f'plumbline_engine_hanging_images{{model_name="test-model"}} {number}.0'
            assert line in (await server.get("/metrics")).body.decode().splitlines()
