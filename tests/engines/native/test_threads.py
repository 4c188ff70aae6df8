"""The number of threads is the one with which decode steps are fastest.

* All threads are taken unless fewer are clearly faster; what disturbs some of the steps does not matter.
* The measurement takes a third of a second at most, whatever a step costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engines.conftest import build_engine, tiny_model
from hypothesis import given
from hypothesis import strategies as st

from plumbline.engines.native.models import Transformer
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.native.threads import candidates, fastest
from plumbline_kernels.attention import AttentionBatch


class Machine:
    """Take as long as `cost` says for a step of rows and threads; count the steps."""

    def __init__(self, cost: Callable[[int, int, int], float]) -> None:
        self.cost, self.now, self.steps = cost, 0.0, 0

    def step(self, rows: int, threads: int) -> None:
        self.now += self.cost(rows, threads, self.steps)
        self.steps += 1

    def choose(self, most: int) -> int:
        return fastest(candidates(most), self.step, lambda: self.now)


def test_candidates_are_one_two_and_all() -> None:
    assert [candidates(most) for most in (1, 2, 3, 64)] == [(1,), (2, 1), (3, 2, 1), (64, 2, 1)]


@pytest.mark.parametrize(
    ("most", "wait", "chosen"),
    [(64, 0.0, 64), (64, 1e-6, 64), (64, 2e-5, 2), (64, 1.5e-4, 1), (2, 1e-6, 2), (2, 1e-3, 1)],
)
def test_waiting_for_each_other_decides(most: int, wait: float, chosen: int) -> None:
    """A step works 0.1 ms for each row, divided among threads, each of which waits for all others."""
    machine = Machine(lambda rows, threads, _: 1e-4 * rows / threads + wait * (threads - 1))
    assert machine.choose(most) == chosen


@given(disturbed=st.integers(2, 4), offset=st.integers(0, 3))
def test_disturbed_steps_do_not_matter(disturbed: int, offset: int) -> None:
    """Two threads are faster, and one step of some takes twenty times as long with them."""
    machine = Machine(
        lambda rows, threads, number: (
            1e-4 * rows / threads * (20 if threads == 2 and number % (disturbed * 2 + 1) == offset else 1)
        )
    )
    assert machine.choose(2) == 2


def test_a_gain_that_is_small_is_none() -> None:
    assert Machine(lambda _, threads, __: 1e-3 if threads == 1 else 1.05e-3).choose(2) == 2


@given(
    work=st.floats(1e-6, 1.0),
    most=st.sampled_from([1, 2, 8, 64]),
    wait=st.floats(0, 1e-3),
)
def test_the_start_is_hardly_later(work: float, most: int, wait: float) -> None:
    """Beside the first two steps of a large model, which its first request would take."""
    machine = Machine(lambda rows, threads, _: work * rows / threads + wait * threads)
    machine.choose(most)
    assert machine.now <= 0.4 or machine.steps <= 3


@pytest.mark.parametrize("bits", [0, 8])
def test_the_number_changes_no_bit(bits: int) -> None:
    """Prompts of 60 tokens in one step are worth several threads in every operation."""
    model = tiny_model(bits=bits)
    assert model.library is not None
    found, before = [], model.library.threads
    for threads in (1, 2, 7):
        model.library.threads = threads
        driver = build_engine(model, max_num_batched_tokens=256, num_blocks=512)
        for number in range(4):
            prompt = [(7 * number + 3 * place) % 90 + 2 for place in range(60)]
            driver.add(
                str(number), prompt, max_tokens=8, temperature=0.7, seed=number, logprobs=3, prompt_logprobs=1
            )
        driver.run()
        found.append((driver.tokens, driver.logprobs, driver.prompt_logprobs))
    model.library.threads = before
    assert found[0] == found[1] == found[2]


def test_a_measured_step_stays_within_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block may be longer than the table of rotations, and kernels do not check positions."""
    model, positions = tiny_model(), []
    forward = Transformer.forward

    def watched(self: Transformer, ids: torch.Tensor, batch: AttentionBatch, *rest: Any) -> torch.Tensor:
        positions.append(int(batch.positions.max()))
        return forward(self, ids, batch, *rest)

    monkeypatch.setattr(Transformer, "forward", watched)
    runner = ModelRunner(model, num_blocks=1, block_size=1024, device=torch.device("cpu"))
    assert model.library is not None
    runner.decode(1, model.library.threads)
    assert positions == [model.description.context_length - 1]


def test_a_measured_step_leaves_answers_as_they_are() -> None:
    """It writes to the cache, which requests overwrite."""
    answers = []
    for measured in (False, True):
        driver = build_engine(tiny_model(dtype=torch.bfloat16))
        if measured:
            driver.core._runner.decode(8, 1)  # type: ignore[attr-defined]
        driver.add("a", [5, 6, 7], max_tokens=20)
        driver.run()
        answers.append(driver.tokens["a"])
    assert answers[0] == answers[1]
