"""A full queue is a 429, and `/health` reports a dead or stuck engine (HTTP-05, HTTP-13)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.asgi import serving
from support.bodies import BODIES, each_api
from support.models import GatedEngine, scripted, served, until

from plumbline.engines.port import EngineStats


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


class SickEngine(GatedEngine):
    """An engine that reports the stats that the test wants."""

    facts: dict[str, Any] = {}  # noqa: RUF012

    def stats(self) -> EngineStats:
        return msgspec.structs.replace(super().stats(), **self.facts)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({}, 200),
        ({"alive": False}, 503),
        ({"seconds_since_step": 31.0}, 503),
        ({"seconds_since_step": 29.0}, 200),
    ],
)
async def test_health_reports_a_dead_or_stuck_engine(facts: dict[str, Any], status: int) -> None:
    engine = SickEngine()
    async with serving(served(engine), stuck_after=30.0) as server:
        engine.facts = facts
        answer = await server.get("/health")

        assert answer.status == status
        assert answer.json == {"status": "ok" if status == 200 else "failing"}
        engine.facts = {}
