"""Metrics count what happened, under our names and under vLLM's.

Laws:
    1. Every aliased or engine number has the same samples under both names.
    2. Label values come back from the exposition as they were, whatever characters they have.
    3. After every request has been answered none is open, and each is counted once by path and status.
    4. Observed events pass unchanged; of each choice every delta but the first is one inter-token interval.
    5. The engine's counters are read at the scrape.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support.bodies import BODIES
from support.models import GatedEngine, answer_with, scripted, scripted_info, served, until
from support.servers.asgi import serving

from plumbline.answer.events import ChoiceEvent, Finish, Progress, TextDelta, Usage
from plumbline.answer.road.phases import Phases
from plumbline.contract.wire.call import Call
from plumbline.port.engine import EngineStats
from plumbline.server.observe.answer_record import AnswerRecord
from plumbline.server.observe.metrics import CONTENT_TYPE, Metrics
from plumbline.server.observe.page import page

STATS = EngineStats(
    alive=True,
    seconds_since_step=0.0,
    num_running=3,
    num_waiting=2,
    kv_cache_usage=0.5,
    num_preemptions=1,
    prefix_cache_queries=20,
    prefix_cache_hits=10,
    prompt_tokens=100,
    generation_tokens=50,
    num_steps=7,
)

BOTH_NAMES = [
    "num_requests_running", "num_requests_waiting", "num_preemptions_total", "prompt_tokens_total",
    "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
    "time_to_first_token_seconds_count", "inter_token_latency_seconds_count", "request_success_total",
    "e2e_request_latency_seconds_sum", "request_prompt_tokens_sum", "request_generation_tokens_sum",
]  # fmt: skip
"""Samples that have the same name after `plumbline_` and after `vllm:`."""


def a_call() -> Call:
    async def nobody_leaves() -> None:
        await asyncio.Event().wait()

    return Call("r", "r", {}, None, nobody_leaves)


class CountingEngine:
    """As much of an engine as metrics look at."""

    info = scripted_info()

    def __init__(self, stats: EngineStats = STATS) -> None:
        self.now = stats

    def stats(self) -> EngineStats:
        return self.now


class Counted(Metrics):
    """Metrics of a server with one model."""

    def __init__(self, model: str, engine: Any) -> None:
        super().__init__()
        self.observe = self.begin_model(model, engine).observe


def metrics(model: str = "m", engine: Any = None) -> Counted:
    return Counted(model, engine or CountingEngine())


def scrape(body: bytes) -> dict[str, Any]:
    """The families of an exposition, by name."""
    return {family.name: family for family in text_string_to_metric_families(body.decode())}


def value(families: dict[str, Any], name: str, **labels: str) -> float:
    """The sum of the samples of this name that have these labels."""
    samples = [s for family in families.values() for s in family.samples if s.name == name]
    assert samples, f"no sample is called {name}"
    return float(sum(s.value for s in samples if labels.items() <= s.labels.items()))


async def play(events: list[ChoiceEvent]) -> AsyncGenerator[ChoiceEvent, None]:
    for event in events:
        yield event


def observe(made: Counted, events: list[ChoiceEvent]) -> list[ChoiceEvent]:
    async def run() -> list[ChoiceEvent]:
        return [event async for event in made.observe(play(events), AnswerRecord(a_call(), []))]

    return asyncio.run(run())


@st.composite
def answers(draw: st.DrawFn) -> list[ChoiceEvent]:
    """The events of one request, with those of its choices in any order."""
    choices = draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    order = draw(st.permutations([index for index, deltas in enumerate(choices) for _ in range(deltas + 1)]))
    left = Counter({index: deltas + 1 for index, deltas in enumerate(choices)})
    events: list[ChoiceEvent] = []
    for index in order:
        left[index] -= 1
        usage = Usage(prompt_tokens=10, completion_tokens=choices[index])
        events.append((index, TextDelta("a") if left[index] else Finish("stop", usage)))
    return events


@given(st.lists(answers(), max_size=3))
def test_both_names_have_the_same_samples(requests: list[list[ChoiceEvent]]) -> None:
    """Law 1."""
    made = metrics()
    for events in requests:
        observe(made, events)
    found = scrape(made.render())

    ours = {
        name: family for name, family in found.items() if f"vllm:{name.removeprefix('plumbline_')}" in found
    }
    assert {f"plumbline_{re.sub('_(total|count|sum)$', '', name)}" for name in BOTH_NAMES} <= set(ours)
    assert value(found, "plumbline_kv_cache_usage_ratio") == value(found, "vllm:kv_cache_usage_perc") == 0.5
    for name, family in ours.items():
        alias = f"vllm:{name.removeprefix('plumbline_')}"
        assert found[alias].type == family.type
        assert [(s.name.replace(alias, name), s.labels, s.value) for s in found[alias].samples] == [
            (s.name, s.labels, s.value) for s in family.samples
        ]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.text('ab"\\\n{},', min_size=1))
def test_label_values_are_escaped(model: str, path: str) -> None:
    """Law 2: quotes, backslashes and line ends would otherwise break the exposition."""
    made = metrics(model)
    made.opened()
    made.closed(path, 200, "")
    body = made.render()

    # The parser splits lines as Python does; the format knows LF only.
    labels = [f'model_name="{_escaped(model)}"', f'path="{_escaped(path)}"']
    lines = body.decode().split("\n")
    assert any(labels[0] in line for line in lines if line.startswith("plumbline_num_requests_running"))
    assert any(labels[1] in line for line in lines if line.startswith("plumbline_http_requests_total"))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@given(st.lists(st.tuples(st.sampled_from(["/a", "/b"]), st.sampled_from([200, 400, 404, 499, 500]))))
def test_every_request_is_counted_once(requests: list[tuple[str, int]]) -> None:
    """Law 3."""
    made = metrics()
    for _ in requests:
        made.opened()
    assert value(scrape(made.render()), "plumbline_http_requests_open") == len(requests)
    for path, status in requests:
        made.closed(path, status, "c")
    found = scrape(made.render())

    assert value(found, "plumbline_http_requests_open") == 0
    for (path, status), count in Counter(requests).items():
        assert value(found, "plumbline_http_requests_total", path=path, status=str(status)) == count
    for status, count in Counter(status for _, status in requests if status >= 400).items():
        assert value(found, "plumbline_errors_total", status=str(status)) == count


def test_a_stream_that_fails_counts_as_an_error_without_a_status() -> None:
    made = metrics()
    made.failed_midway("server_error")

    found = scrape(made.render())
    assert value(found, "plumbline_errors_total", status="stream", code="server_error") == 1


@given(st.lists(st.builds(Phases, *[st.floats(0, 9)] * 4), max_size=4))
def test_the_phases_of_a_choice_are_timed_if_it_ran(phases: list[Phases]) -> None:
    made = metrics()
    record = AnswerRecord(a_call(), [], phases)

    async def run() -> None:
        async for _ in made.observe(play([]), record):
            pass

    asyncio.run(run())
    found = scrape(made.render())
    ran = [each for each in phases if each.first]
    for name, seconds in (
        ("queue", [each.scheduled - each.began for each in ran]),
        ("prefill", [each.first - each.scheduled for each in ran]),
        ("decode", [each.ended - each.first for each in ran]),
    ):
        family = f"plumbline_request_{name}_time_seconds"
        assert value(found, f"{family}_count") == len(ran)
        assert value(found, f"{family}_sum") == pytest.approx(sum(seconds))


@given(answers())
def test_events_pass_unchanged_and_are_timed(events: list[ChoiceEvent]) -> None:
    """Law 4."""
    made = metrics()
    assert observe(made, events) == events
    found = scrape(made.render())
    deltas = Counter(index for index, event in events if isinstance(event, TextDelta))
    choices = {index for index, _ in events}

    assert value(found, "plumbline_time_to_first_token_seconds_count") == bool(deltas)
    assert value(found, "plumbline_inter_token_latency_seconds_count") == deltas.total() - len(deltas)
    assert value(found, "plumbline_e2e_request_latency_seconds_count") == len(choices)
    assert value(found, "plumbline_request_success_total", finished_reason="stop") == len(choices)
    assert value(found, "plumbline_request_generation_tokens_sum") == deltas.total()
    # The prompt is counted once, however many choices there are.
    assert value(found, "plumbline_request_prompt_tokens_sum") == 10


def test_a_report_of_progress_is_no_delta() -> None:
    made = metrics()
    deltas: list[ChoiceEvent] = [(0, event) for n in (1, 2) for event in (Progress(n), TextDelta("a"))]
    observe(made, deltas)
    assert value(scrape(made.render()), "plumbline_inter_token_latency_seconds_count") == 1


async def test_a_stream_that_is_left_closes_its_source() -> None:
    closed = False

    async def source() -> AsyncGenerator[ChoiceEvent, None]:
        nonlocal closed
        try:
            while True:
                yield 0, TextDelta("a")
        finally:
            closed = True

    observed = metrics().observe(source(), AnswerRecord(a_call(), []))
    await anext(observed)
    await observed.aclose()

    assert closed


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("num_running", "num_requests_running"),
        ("num_waiting", "num_requests_waiting"),
        ("kv_cache_usage", "kv_cache_usage_ratio"),
        ("prompt_tokens", "prompt_tokens_total"),
        ("generation_tokens", "generation_tokens_total"),
        ("num_preemptions", "num_preemptions_total"),
        ("prefix_cache_queries", "prefix_cache_queries_total"),
        ("prefix_cache_hits", "prefix_cache_hits_total"),
        ("alive", "engine_alive"),
    ],
)
def test_engine_counters_are_read_at_the_scrape(field: str, name: str) -> None:
    """Law 5."""
    engine = CountingEngine()
    made = metrics("m", engine)
    before = value(scrape(made.render()), f"plumbline_{name}")
    engine.now = msgspec.structs.replace(STATS, **{field: 0})

    assert before == float(getattr(STATS, field))
    assert value(scrape(made.render()), f"plumbline_{name}") == 0


# Over HTTP


async def test_a_request_is_counted_while_it_runs_and_when_it_is_done() -> None:
    engine = GatedEngine(answer_with("one two three"))
    async with serving(served(engine)) as server:
        body = {**BODIES["/v1/chat/completions"], "stream": True}
        before = scrape((await server.get("/metrics")).body)
        exchange = server.open("POST", "/v1/chat/completions", body)
        await until(lambda: engine.num_running)
        during = scrape((await server.get("/metrics")).body)
        engine.let()
        await exchange.answer()
        await server.get("/v1/nowhere")
        answer = await server.get("/metrics")
        after = scrape(answer.body)

        assert answer.header("content-type") == f"{CONTENT_TYPE}; charset=utf-8"
        assert {sample.name for family in before.values() for sample in family.samples} >= {
            name
            for ours in BOTH_NAMES
            if ours != "request_success_total"
            for name in (f"plumbline_{ours}", f"vllm:{ours}")
        }
        assert not any(name.startswith("plumbline_store_") for name in after)
        assert value(before, "plumbline_num_requests_running") == 0
        assert value(during, "plumbline_num_requests_running") == 1
        assert value(after, "plumbline_num_requests_running") == 0
        assert value(after, "plumbline_http_requests_open") == 1, "the scrape itself"
        assert value(after, "plumbline_request_success_total", finished_reason="stop") == 1
        for name in BOTH_NAMES:
            assert value(after, f"plumbline_{name}") == value(after, f"vllm:{name}"), name
        assert value(after, "plumbline_time_to_first_token_seconds_count") == 1
        num_deltas = len(list(answer_with("one two three")(NoLogprobs))) - 1  # type: ignore[arg-type]
        assert value(after, "plumbline_inter_token_latency_seconds_count") == num_deltas - 1
        assert value(after, "plumbline_errors_total", status="404") == 1
        for phase in ("render", "queue", "prefill", "decode"):
            assert value(after, f"plumbline_request_{phase}_time_seconds_count") == 1
        assert value(after, "plumbline_http_requests_total", path="other", status="404") == 1
        assert value(after, "plumbline_http_requests_total", path="/v1/chat/completions", status="200") == 1


class NoLogprobs:
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
        found = scrape((await server.get("/metrics")).body)
        paths = {s.labels["path"] for s in found["plumbline_http_requests"].samples if "path" in s.labels}

        assert paths == {"/v1/models/{id}", "/v1/responses/{id}", "/v1/responses/{id}/input_items", "other"}


async def test_a_client_that_left_is_counted_as_such() -> None:
    engine = GatedEngine()
    async with serving(served(engine)) as server:
        exchange = server.open("POST", "/v1/responses", BODIES["/v1/responses"])
        await until(lambda: engine.num_running)
        exchange.leave()
        await exchange.finished()
        found = scrape((await server.get("/metrics")).body)

        assert value(found, "plumbline_http_requests_total", path="/v1/responses", status="499") == 1
        assert value(found, "plumbline_num_requests_running") == 0


async def test_sizes_of_the_store_are_metrics(tmp_path: Path) -> None:
    settings = {"store": str(tmp_path / "s.db"), "store_max_responses_per_key": 7}
    async with serving(served(scripted()), **settings) as server:
        await server.post("/v1/responses", BODIES["/v1/responses"])
        await server.post("/v1/conversations", {})
    async with serving(served(scripted()), **settings) as server:
        while not value(found := scrape((await server.get("/metrics")).body), "plumbline_store_responses"):
            await asyncio.sleep(0.01)  # The first sweep counts.
        assert value(found, "plumbline_store_responses") == 1
        assert value(found, "plumbline_store_conversations") == 1
        assert value(found, "plumbline_store_chat_completions") == 0
        assert value(found, "plumbline_store_bytes") > 100
        assert value(found, "plumbline_store_pending_writes") == 0
        assert value(found, "plumbline_store_failed_writes_total") == 0
        assert value(found, "plumbline_store_failing") == 0
        assert value(found, "plumbline_store_transaction_seconds_count", operation="write") > 0
        assert value(found, "plumbline_store_transaction_seconds_sum", operation="write") > 0
        assert value(found, "process_resident_memory_bytes") > 0
        assert value(found, "plumbline_store_max_responses_per_key") == 7


async def test_the_page_has_every_family() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text("utf-8")
    assert text == await page(), "run `nox -s generate`"
