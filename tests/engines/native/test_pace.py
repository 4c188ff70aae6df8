"""Laws of the pace: running streams wait a bounded time for the prompts of others, whatever the machine."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.weights.model_families import CASES, Case

from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.models import describe, random_model
from plumbline.engines.native.scheduling.pace import PromptBudget, PromptPace, RowCost, attention_share
from plumbline.engines.native.scheduling.scheduler import Scheduler
from plumbline.engines.request import PlacedImage, RequestState
from plumbline.port.engine import GenerateRequest, SamplingParams

shares = st.sampled_from([0.0, 1e-4, 1e-3, 0.1])


@given(share=shares, start=st.integers(0, 100_000), units=st.floats(0, 1e6))
def test_the_tokens_of_an_allowance_are_the_most_that_it_pays_for(
    share: float, start: int, units: float
) -> None:
    pace = PromptPace(share)
    count = pace.tokens(start, units)
    assert count >= 8
    assert count == 8 or pace.cost(start, count) <= units * (1 + 1e-6) + 1e-6
    assert pace.cost(start, count + 2) > units


@given(
    unit=st.floats(1e-6, 1e-3),
    steps=st.lists(st.tuples(st.integers(64, 1024), st.booleans()), min_size=1, max_size=20),
)
def test_steps_that_a_gpu_still_computes_teach_what_awaited_ones_do(
    unit: float, steps: list[tuple[int, bool]]
) -> None:
    """A launch takes 1 us, and the time of all that is queued is in the step that waits."""
    pace, queued = PromptPace(0.0), 0.0
    for units, awaited in steps:
        queued += units * unit
        launch = min(1e-6, queued)
        pace.observe(units, False, queued if awaited else launch, awaited=awaited)
        queued = 0.0 if awaited else queued - launch
    learned = [awaited for _, awaited in steps]
    assert pace.knows(False) == any(learned)
    if any(learned):
        assert pace.allowance(True, False) == pytest.approx(0.08 / unit, rel=1e-6)


def state(number: int, tokens: int, scored: bool = False) -> RequestState:
    request = GenerateRequest(
        request_id=str(number),
        prompt_token_ids=[1] * tokens,
        sampling=SamplingParams(max_tokens=50, prompt_logprobs=1 if scored else None),
    )
    return RequestState(request, arrival=number, eos_token_ids=frozenset(), max_model_len=20_000)


@settings(deadline=None)
@given(
    unit=st.floats(1e-6, 2e-3),
    scoring=st.floats(1, 5),
    share=shares.filter(lambda share: share < 0.01),
    prompts=st.lists(st.tuples(st.integers(1, 9000), st.booleans()), min_size=1, max_size=4),
)
def test_a_stream_waits_a_bounded_time_beside_any_prompts(
    unit: float, scoring: float, share: float, prompts: list[tuple[int, bool]]
) -> None:
    """On a machine whose units take `unit` seconds, and `scoring` times as long where a prompt is scored."""
    pace = PromptPace(share)
    config = EngineConfig(
        max_model_len=20_000, num_blocks=10_000, max_num_batched_tokens=1024, max_num_seqs=8
    )
    scheduler = Scheduler(config, pace)
    stream = state(0, 1)
    scheduler.add(stream)
    for number, (tokens, scored) in enumerate(prompts, start=1):
        scheduler.add(state(number, tokens, scored))
    steps = unknown = 0
    while any(
        each.num_tokens - each.num_computed_tokens > 1 for each in (*scheduler.running, *scheduler.waiting)
    ):
        plan = scheduler.plan()
        seconds = plan.prompt_units * unit * (scoring if plan.scores else 1)
        if stream.num_computed_tokens:
            assert any(entry.state is stream for entry in plan.entries)
        least = 8 * (1 + share * 20_000) * len(plan.entries) * unit * scoring
        if seconds > 0.1 + least:
            unknown += 1
        pace.observe(plan.prompt_units, plan.scores, seconds + 1e-4)
        for entry in plan.entries:
            scheduler.advance(entry)
            if entry.draws:
                entry.state.append(1)
                entry.state.finish_reason = None
        steps += 1
    # Only the first steps of each kind, whose time is unknown, may take longer.
    assert unknown <= 2
    assert steps < 20_000


def test_an_image_may_take_what_is_kept_for_short_prompts_and_then_others_get_nothing() -> None:
    long, short, further = state(1, 40), state(2, 10), state(3, 40)
    long.images = (PlacedImage(0, torch.zeros(28, 1), b"picture", whole=True),)
    budget = PromptBudget(None, 32, streams=False)
    budget.keep([short])
    assert budget.affordable(long, 0, 32) == 28
    budget.spend(long, 0, 28)
    assert budget.affordable(further, 0, 4) == 0
    assert budget.affordable(short, 0, 4) == 4


def test_without_streams_a_prompt_takes_whole_steps() -> None:
    pace = PromptPace(0.0)
    pace.observe(64.0, False, 0.0064)
    assert pace.allowance(streams=False, scored=False) > 9000
    assert 700 < pace.allowance(streams=True, scored=False) < 1000


@given(outlier=st.floats(0.1, 1000), tokens=st.integers(1, 200))
def test_one_slow_step_is_forgotten_however_short_the_prompts_are(outlier: float, tokens: int) -> None:
    """As after a pause of the whole process."""
    pace = PromptPace(0.0)
    pace.observe(64.0, False, 64 * 1e-4)
    pace.observe(64.0, False, outlier)
    for _ in range(80):
        count = min(tokens, pace.tokens(0, pace.allowance(streams=True, scored=False)))
        pace.observe(float(count), False, count * 1e-4)
    assert pace.allowance(streams=True, scored=False) >= 8


@settings(max_examples=30)
@given(
    fixed=st.floats(1e-5, 1e-2),
    row=st.floats(1e-6, 1e-3),
    requests=st.integers(1, 8),
    proposed=st.lists(st.integers(0, 16), min_size=1, max_size=20),
)
def test_the_cost_of_a_proposed_token_is_learned_from_the_time_of_steps(
    fixed: float, row: float, requests: int, proposed: list[int]
) -> None:
    """A step takes a fixed time and some for each row: a row more costs its share of what a token costs without."""
    cost = RowCost(8)
    assert 0 < cost.tokens(requests) < 1
    cost.observe(requests, 0, fixed + row * requests)
    for count in [*proposed, *[4] * 150]:
        cost.observe(requests, count, fixed + row * (requests + count))
    assert cost.tokens(requests) == pytest.approx(row * requests / (fixed + row * requests), abs=0.02)
    cost.observe(9, 4, 1.0)
    unknown = RowCost(8)
    unknown.observe(requests, 4, 1.0)
    assert unknown.tokens(requests) == RowCost(8).tokens(requests)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), requests=st.sampled_from([1, 4, 8]), cost=st.sampled_from([0.3, 1.0]))
def test_steps_that_something_holds_up_hardly_change_the_cost_of_a_proposed_token(
    seed: int, requests: int, cost: float
) -> None:
    """One step of ten takes up to four times as long; one of five has a proposed token."""
    choose, learned = Random(seed), RowCost(8)
    for number in range(1500):
        proposed = int(number % 5 == 0)
        seconds = 1 + cost * proposed / requests + choose.random() * 3 * (choose.random() < 0.1)
        learned.observe(requests, proposed, seconds)
    assert learned.tokens(requests) == pytest.approx(cost, abs=0.15)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in ("arcee", "mistral")], ids=lambda case: case.name
)
def test_a_token_is_multiplied_with_all_weights_of_its_layers(case: Case) -> None:
    """With gates and without; attention multiplies with the query and the value of each head."""
    model = random_model(describe(case.config().to_dict()))
    weights = sum(place.layer.shape[0] * place.layer.shape[1] for place in model.places)
    assert attention_share(model.description) == pytest.approx(3 * 2 * 48 / weights)
