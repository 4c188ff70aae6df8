"""An answer depends on its request alone.

The same seed gives the same tokens and the same logprobs, bit for bit, whatever else is in the batch, however prompts
are cut, after prefix hits, preemptions and pauses, with proposed tokens and without, and however many rows of logits
are in memory at a time. It holds for each way to compute by itself: compiled kernels, torch (`batch_invariant`), and
each rounding of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engines.conftest import Driver, build_engine, tiny_model
from engines.native.kinds import KINDS, add, prompts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline.engines.native import runner
from plumbline.engines.native.scheduling import snapshots
from plumbline.engines.native.slots import Slots
from plumbline.engines.sampling.rows import SamplingRows
from plumbline.engines.sampling.sampler import Sampler

BACKENDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "compiled": ({}, {}),
    "compiled bf16": ({"dtype": torch.bfloat16}, {}),
    "int8": ({"bits": 8}, {}),
    "int4": ({"bits": 4}, {}),
    "experts": ({"experts": True}, {}),
    "torch": ({"compiled": False}, {"batch_invariant": True}),
    "hybrid": ({"hybrid": True}, {"num_snapshots": 3}),
}
"""Arguments of `tiny_model`, and changes of the engine's config."""
ANY_PROMPT = prompts | st.lists(st.integers(2, 95), min_size=1, max_size=60)
SAMPLING = st.fixed_dictionaries({
    "temperature": st.sampled_from([0.0, 0.3, 1.0]),
    "seed": st.integers(0, 2**62),
    "max_tokens": st.integers(1, 50),
    "ignore_eos": st.booleans(),
    "stop_token_ids": st.sampled_from([frozenset(), frozenset({7})]),
    "top_p": st.sampled_from([1.0, 0.8]),
    "logprobs": st.sampled_from([None, 2]),
    "prompt_logprobs": st.sampled_from([None, None, 1]),
})  # fmt: skip
LIMITS = st.fixed_dictionaries({
    "max_num_batched_tokens": st.sampled_from([64, 65, 256]),
    "enable_prefix_caching": st.booleans(),
    "speculation": st.booleans(),
})  # fmt: skip
PLACES = st.sampled_from([
    {"max_num_seqs": 64, "num_blocks": 900},
    # Room for one sequence and a bit: the others have to give way again and again.
    {"max_num_seqs": 16, "num_blocks": 18, "expected_output_len": 1},
    {"max_num_seqs": 4, "num_blocks": 256, "max_num_batched_tokens": 4},
])  # fmt: skip
EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["abort", "pause", "resume"]), st.integers(0, 2)),
    max_size=10,
)
Request = tuple[list[int], str, dict[str, Any]]


@pytest.fixture(autouse=True)
def snapshots_of_short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LEAST", 1)


def build(backend: str, **changes: Any) -> Driver:
    model, config = BACKENDS[backend]
    return build_engine(tiny_model(**model), **{"max_model_len": 140, **config, **changes})


def remembered(driver: Driver) -> set[str]:
    """Return the requests that the engine keeps something for proposals of."""
    speculator = driver.core.scheduler.speculator
    return set() if speculator is None else {*speculator._lookups, *speculator._doubts}


def alone(backend: str, request: Request) -> Driver:
    """Answer one request, with its prompt in one piece and one token in a step."""
    driver = build(backend, speculation=False, enable_prefix_caching=False, max_num_batched_tokens=256)
    prompt, kind, sampling = request
    add(driver, "0", prompt, kind, **sampling)
    driver.run()
    return driver


def check(
    backend: str,
    requests: list[Request],
    neighbours: int = 0,
    warm: bool = False,
    events: list[tuple[int, str, int]] = [],  # noqa: B006 - never changed
    **limits: Any,
) -> Driver:
    """Answer requests among neighbours, and compare each answer with that of the request alone.

    Args:
        backend: of `BACKENDS`.
        requests: prompts, kinds and sampling parameters.
        neighbours: further requests, which begin after each other.
        warm: whether all prompts were computed before.
        events: steps to wait, and what happens to which request then.
        limits: changes of the engine's config.
    """
    driver = build(backend, **limits)
    if warm:
        for number, (prompt, _, _) in enumerate(requests):
            driver.add(f"warm-{number}", prompt, max_tokens=1)
        driver.run()
    kinds = sorted(KINDS)
    for number in range(neighbours):
        prompt, kind = [2 + number % 9] * (1 + number % 7), kinds[number % len(kinds)]
        add(
            driver,
            f"neighbour-{number}",
            prompt,
            kind,
            temperature=0.7,
            seed=number,
            max_tokens=3 + number % 12,
        )
        if number % 16 == 15:
            driver.step()
    for number, (prompt, kind, sampling) in enumerate(requests):
        add(driver, str(number), prompt, kind, **sampling)
    for steps, event, number in events:
        for _ in range(steps):
            driver.step()
            driver.core.check_integrity()
        (driver.abort if event == "abort" else getattr(driver.core, event))(str(number))
        assert not remembered(driver) & {state.request.request_id for state in driver.core.scheduler.paused}
    for number in range(len(requests)):
        driver.core.resume(str(number))
    driver.run()
    assert not remembered(driver)
    for number, request in enumerate(requests):
        whole, name = alone(backend, request), str(number)
        tokens, reason = driver.tokens[name], driver.finished[name]
        if reason == "abort":
            assert tokens == whole.tokens["0"][: len(tokens)]
            assert driver.logprobs[name] == whole.logprobs["0"][: len(driver.logprobs[name])]
        else:
            assert (tokens, reason) == (whole.tokens["0"], whole.finished["0"])
            assert driver.logprobs[name] == whole.logprobs["0"]
            assert driver.prompt_logprobs.get(name) == whole.prompt_logprobs.get("0")
    return driver


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=EXPLORED or 5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=st.lists(
        st.tuples(ANY_PROMPT, st.sampled_from(sorted(KINDS)), SAMPLING), min_size=1, max_size=3
    ),
    neighbours=st.sampled_from([0, 0, 6, 63]),
    warm=st.booleans(),
    limits=LIMITS,
    places=PLACES,
    events=EVENTS,
    rows=st.sampled_from([1, 3, 64]),
)
def test_an_answer_depends_on_its_request_alone(
    backend: str,
    requests: list[Request],
    neighbours: int,
    warm: bool,
    limits: dict[str, Any],
    places: dict[str, Any],
    events: list[tuple[int, str, int]],
    rows: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Rows whose logits are computed at a time.
        patch.setattr(runner, "_LOGITS_AT_ONCE", 0)
        patch.setattr(runner, "_FEWEST_ROWS", rows)
        check(backend, requests, neighbours, warm, events, **limits | places)


def _seed_of_slot(whole: Any) -> Any:
    def assign(self: Any, state: Any) -> None:
        whole(self, state)
        self.seed[state.slot] = state.slot

    return assign


def _keep_old_table(whole: Any) -> Any:
    def assign(self: Any, state: Any) -> None:
        known = self._num_blocks.copy()
        whole(self, state)
        self._num_blocks[state.slot] = known[state.slot]

    return assign


FAULTS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "draws depend on the slot": (SamplingRows, "assign", _seed_of_slot),
    "a slot keeps the blocks of the request before": (Slots, "assign", _keep_old_table),
    "penalties forget what was drawn before a preemption": (
        Sampler, "_counts", lambda whole: lambda self, token_ids: whole(self, [])),
}  # fmt: skip


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_the_law_finds_faults(monkeypatch: pytest.MonkeyPatch, fault: str | None) -> None:
    if fault is not None:
        owner, name, change = FAULTS[fault]
        monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    requests = [
        (
            [number] * 8 + [9] * 16,
            kind,
            {"temperature": 0.5, "seed": number, "max_tokens": 50, "ignore_eos": True},
        )
        for number, kind in enumerate(["plain", "bias", "rewards", "rewards"], start=2)
    ]
    try:
        driver = check("compiled", requests, warm=True, num_blocks=18, expected_output_len=1)
        assert driver.core.scheduler.num_preemptions
        assert driver.core.scheduler.prefix_hits
        speculator = driver.core.scheduler.speculator
        assert speculator is not None
        assert speculator.num_accepted
        found = False
    except (AssertionError, RuntimeError):
        found = True
    assert found == (fault is not None)
