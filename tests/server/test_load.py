"""A full queue, health and metrics (HTTP-*, ERR-*)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.asgi import Answer, serving
from support.bodies import BODIES, each_api
from support.models import GatedEngine, said, scripted, served, until

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


class Sick(GatedEngine):
    """An engine that says of itself what the test wants."""

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
async def test_health_tells_a_dead_or_stuck_engine(facts: dict[str, Any], status: int) -> None:
    engine = Sick()
    async with serving(served(engine), stuck_after=30.0) as server:
        engine.facts = facts
        answer = await server.get("/health")

        assert answer.status == status
        assert answer.json == {"status": "ok" if status == 200 else "failing"}
        engine.facts = {}


def families(answer: Answer) -> dict[str, Any]:
    assert answer.header("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    return {family.name: family for family in text_string_to_metric_families(answer.body.decode())}


def value(found: dict[str, Any], name: str, **labels: str) -> float:
    samples = [s for family in found.values() for s in family.samples if s.name == name]
    return sum(s.value for s in samples if labels.items() <= s.labels.items())


OURS = [
    "num_requests_running", "num_requests_waiting", "prompt_tokens_total", "generation_tokens_total",
    "time_to_first_token_seconds_count", "inter_token_latency_seconds_count", "request_success_total",
    "e2e_request_latency_seconds_sum", "request_prompt_tokens_sum", "request_generation_tokens_sum",
]  # fmt: skip


async def test_metrics_are_an_exposition_with_both_names() -> None:
    engine = GatedEngine(said("one two three"))
    async with serving(served(engine)) as server:
        before = families(await server.get("/metrics"))
        exchange = server.open(
            "POST", "/v1/chat/completions", {**BODIES["/v1/chat/completions"], "stream": True}
        )
        await until(lambda: engine.num_running)
        during = families(await server.get("/metrics"))
        engine.let()
        await exchange.answer()
        await server.get("/v1/nowhere")
        after = families(await server.get("/metrics"))

        assert {sample.name for family in before.values() for sample in family.samples} >= {
            name
            for ours in OURS
            if ours != "request_success_total"
            for name in (f"plumbline_{ours}", f"vllm:{ours}")
        }
        assert value(before, "plumbline_num_requests_running") == 0
        assert value(during, "plumbline_num_requests_running") == 1
        assert value(after, "plumbline_num_requests_running") == 0
        assert value(after, "plumbline_http_requests_open") == 1, "the scrape itself"
        assert value(after, "plumbline_request_success_total", finished_reason="stop") == 1
        for name in OURS:
            assert value(after, f"plumbline_{name}") == value(after, f"vllm:{name}"), name
        assert value(after, "plumbline_time_to_first_token_seconds_count") == 1
        num_deltas = len(list(said("one two three")(SimpleRequest))) - 1
        assert value(after, "plumbline_inter_token_latency_seconds_count") == num_deltas - 1
        assert value(after, "plumbline_errors_total", status="404") == 1
        assert value(after, "plumbline_http_requests_total", path="other", status="404") == 1
        assert value(after, "plumbline_http_requests_total", path="/v1/chat/completions", status="200") == 1


class SimpleRequest:
    """As much of a request as a script looks at."""

    class sampling:  # noqa: N801
        logprobs = None
        prompt_logprobs = None


async def test_paths_of_clients_make_no_time_series() -> None:
    async with serving(served(scripted())) as server:
        for path in (
            "/v1/models/a",
            "/v1/models/b%2Fc",
            "/v1/responses/x",
            "/v1/responses/y/input_items",
            "/z",
        ):
            await server.get(path)
        found = families(await server.get("/metrics"))
        paths = {s.labels["path"] for s in found["plumbline_http_requests"].samples if "path" in s.labels}

        assert paths == {"/v1/models/{id}", "/v1/responses/{id}", "/v1/responses/{id}/input_items", "other"}


async def test_a_client_that_left_is_counted_as_such() -> None:
    engine = GatedEngine()
    async with serving(served(engine)) as server:
        exchange = server.open("POST", "/v1/responses", BODIES["/v1/responses"])
        await until(lambda: engine.num_running)
        exchange.leave()
        await exchange.finished()
        found = families(await server.get("/metrics"))

        assert value(found, "plumbline_http_requests_total", path="/v1/responses", status="499") == 1
        assert value(found, "plumbline_num_requests_running") == 0
