"""Laws of the prefix cache of models with states; test_reproducibility.py compares answers with and without it.

* The next turn of a conversation goes on behind the last whole block of the one before.
* Prompts that share a beginning go on behind it from the third one on: the second finds out where it ends.
* Answers do not depend on it, whatever a state is made of.
* No more states are kept than there are rows, the latest used ones; without rows there is no prefix cache.
"""

from __future__ import annotations

import json

import pytest
import torch
from engines.conftest import Driver, build_engine, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from support.weights.model_families import CASES

from plumbline.engines.native.models import describe, random_model
from plumbline.engines.native.scheduling import snapshots
from plumbline.engines.native.scheduling.snapshots import StateSnapshots
from plumbline.engines.request import RequestState
from plumbline.port.engine import GenerateRequest, SamplingParams
from plumbline_kernels.cpu.library import load


@pytest.fixture(autouse=True)
def of_short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LEAST", 16)


def cached(driver: Driver, name: str, prompt: list[int]) -> int:
    """Answer a request alone; returns the tokens that the cache had."""
    driver.add(name, prompt, max_tokens=3, ignore_eos=True)
    driver.run()
    return driver.cached[name]


def test_the_next_turn_goes_on_behind_the_last_block_of_the_one_before() -> None:
    driver = build_engine(tiny_model(hybrid=True), num_snapshots=2, block_size=8)
    prompt = list(range(2, 45))
    assert cached(driver, "first", prompt) == 0
    assert cached(driver, "second", [*prompt, *driver.tokens["first"], *range(60, 75)]) == 40
    assert cached(driver, "short", prompt[:15]) == 0


def test_a_shared_beginning_is_found_by_the_second_prompt_and_used_by_the_third() -> None:
    driver = build_engine(tiny_model(hybrid=True), num_snapshots=9, block_size=8)
    shared = list(range(2, 45))
    assert [cached(driver, str(end), [*shared, *[end] * 30]) for end in (50, 51, 52)] == [0, 0, 40]


@pytest.mark.parametrize("name", [
    "lfm2", "lfm2-compiled", "falcon_h1", "falcon_h1-compiled", "olmo_hybrid-compiled", "jamba"
])  # fmt: skip
def test_answers_are_the_same_with_and_without_cached_states_of_every_kind(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    description = describe(json.loads(case.config().to_json_string()))
    model = random_model(
        description, seed=3, dtype=torch.float32, library=load() if case.is_compiled else None
    )
    prompt, found = list(range(2, 45)), []
    for rows in (0, 3):
        driver = build_engine(model, num_snapshots=rows, block_size=8)
        turns = cached(driver, "first", prompt), cached(driver, "second", [*prompt, *range(50, 75)])
        assert turns == (0, 40 if rows else 0)
        found.append(driver.tokens)
    assert found[0] == found[1]


def test_without_rows_there_is_no_prefix_cache() -> None:
    driver = build_engine(tiny_model(hybrid=True), num_snapshots=0)
    assert [cached(driver, name, list(range(2, 90))) for name in "ab"] == [0, 0]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=30), st.integers(1, 4))
def test_the_latest_used_states_are_kept_in_rows_of_their_own(names: list[int], count: int) -> None:
    kept, rows = StateSnapshots(10, count, 8), dict[int, int]()
    latest: list[int] = []
    for name in names:
        hashes = [b"beginning", bytes([name])]
        request = GenerateRequest(
            request_id="a", prompt_token_ids=[name] * 17, sampling=SamplingParams(max_tokens=1)
        )
        state = RequestState(request, arrival=1, eos_token_ids=frozenset(), max_model_len=200)
        known = kept.begin(state, hashes)
        assert (known == 2) == (name in latest)
        assert state.snapshot == (rows[name] if known else None)
        state.num_computed_tokens, state.block_hashes = 16, hashes
        if (row := kept.keep(state)) is not None:
            assert not known
            rows[name] = row
        latest = [*(other for other in latest if other != name), name][-count:]
        assert len(kept) == len(latest)
        assert len({rows[other] for other in latest}) == len(latest)
        assert all(10 <= rows[other] < 10 + count for other in latest)
    kept.clear()
    assert not len(kept)
