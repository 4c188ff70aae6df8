"""Laws of the engine: a request's tokens depend on the request alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline.engines.native import runner as runner_module
from plumbline.engines.native.runner import ModelRunner

Build = Callable[..., Any]
SETTINGS = settings(
    max_examples=EXPLORED or 10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

prompts = st.lists(st.integers(2, 95), min_size=1, max_size=60)


def alone(engine: Build, prompt: Sequence[int], **sampling: Any) -> list[int]:
    """The tokens of a request that has an engine for itself."""
    driver = engine()
    driver.add("alone", list(prompt), **sampling)
    driver.run()
    tokens: list[int] = driver.tokens["alone"]
    return tokens


def test_prefixes_are_shared_within_a_salt_only(engine: Build) -> None:
    driver = engine()
    prompt = list(range(2, 42))
    driver.add("a", prompt, max_tokens=2, cache_salt="x")
    driver.run()
    driver.add("same", prompt, max_tokens=2, cache_salt="x")
    driver.add("other", prompt, max_tokens=2, cache_salt="y")
    driver.add("none", prompt, max_tokens=2)
    driver.run()

    assert (driver.cached["same"], driver.cached["other"], driver.cached["none"]) == (32, 0, 0)


def test_unwritten_cache_changes_nothing(engine: Build) -> None:
    prompt = list(range(2, 31))
    expected = alone(engine, prompt, max_tokens=16)
    driver = engine()
    runner = driver.core._runner
    assert isinstance(runner, ModelRunner)
    for keys, values in runner._kv:
        keys.fill_(float("nan"))
        values.fill_(float("nan"))
    driver.add("nan", prompt, max_tokens=16)
    driver.run()

    assert driver.tokens["nan"] == expected


def test_an_unknown_abort_is_ignored(engine: Build) -> None:
    assert engine().core.abort("nobody") == []


def test_finish_reasons(engine: Build) -> None:
    greedy = alone(engine, range(2, 12), max_tokens=6, ignore_eos=True)
    driver = engine()
    driver.add("length", range(2, 12), max_tokens=6, ignore_eos=True)
    driver.add("stop", range(2, 12), max_tokens=6, ignore_eos=True, stop_token_ids=frozenset({greedy[2]}))
    driver.add("context", range(2, 62), ignore_eos=True)
    driver.run()

    assert driver.finished == {"length": "length", "stop": "stop", "context": "length"}
    assert driver.tokens["stop"] == greedy[: greedy.index(greedy[2]) + 1]
    assert len(driver.tokens["context"]) == 256 - 60


def test_min_tokens_puts_the_stop_off(engine: Build) -> None:
    greedy = alone(engine, range(2, 12), max_tokens=6, ignore_eos=True)
    driver = engine()
    driver.add("x", range(2, 12), max_tokens=20, min_tokens=9, stop_token_ids=frozenset({greedy[0]}))
    driver.run()

    assert len(driver.tokens["x"]) >= 9
    assert greedy[0] not in driver.tokens["x"][:9]


def test_bias_bans_and_allowed_ids(engine: Build) -> None:
    driver = engine()
    driver.add("forced", range(2, 12), max_tokens=5, temperature=1.0, logit_bias={40: 100.0})
    driver.add(
        "banned", range(2, 12), max_tokens=30, temperature=1.5, logit_bias=dict.fromkeys(range(48), -100.0)
    )
    driver.add(
        "allowed", range(2, 12), max_tokens=30, temperature=2.0, allowed_token_ids=frozenset({5, 6, 7})
    )
    driver.run()

    assert driver.tokens["forced"] == [40] * 5
    assert min(driver.tokens["banned"]) >= 48
    assert set(driver.tokens["allowed"]) <= {5, 6, 7}


@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 2.0}]
)
def test_penalties_make_repetition_rarer(engine: Build, penalty: dict[str, float]) -> None:
    plain = alone(engine, range(2, 12), max_tokens=60, ignore_eos=True)
    penalised = alone(engine, range(2, 12), max_tokens=60, ignore_eos=True, **penalty)

    assert len(set(penalised)) > len(set(plain))


def test_logprobs_are_those_of_the_model(engine: Build) -> None:
    """LP-04: greedy draws the most likely token, and its logprob is the one in the alternatives."""
    driver = engine()
    driver.add("x", range(2, 12), max_tokens=8, logprobs=3)
    driver.add("bare", range(2, 12), max_tokens=8, logprobs=0)
    driver.run()

    assert [entry.token_id for entry in driver.logprobs["x"]] == driver.tokens["x"]
    for entry, bare in zip(driver.logprobs["x"], driver.logprobs["bare"], strict=True):
        assert entry.top[0] == (entry.token_id, entry.logprob)
        assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)
        assert len({token for token, _ in entry.top}) == 3
        assert entry.logprob < 0
        assert bare.top == ()
        assert bare.logprob == pytest.approx(entry.logprob, abs=1e-5)


@SETTINGS
@given(steps=st.integers(1, 5), neighbours=st.integers(0, 9))
def test_prompt_logprobs_are_whole_after_a_pause(engine: Build, steps: int, neighbours: int) -> None:
    """Streams that began during the pause take their share of each step, so the prompt is cut elsewhere."""
    prompt = list(range(2, 82))
    whole, driver = engine(), engine(max_num_batched_tokens=16, max_num_seqs=16)
    whole.add("scored", prompt, max_tokens=1, prompt_logprobs=1)
    whole.run()
    driver.add("scored", prompt, max_tokens=1, prompt_logprobs=1)
    for _ in range(steps):
        driver.step()
    driver.core.pause("scored")
    for number in range(neighbours):
        driver.add(str(number), [3], max_tokens=20, ignore_eos=True)
    driver.step()
    driver.core.resume("scored")
    driver.run()
    assert driver.prompt_logprobs["scored"] == whole.prompt_logprobs["scored"]


@SETTINGS
@given(prompt=st.lists(st.integers(2, 95), min_size=2, max_size=90), budget=st.integers(16, 64))
def test_prompt_logprobs_are_whole_however_the_prompt_is_cut(
    engine: Build, prompt: list[int], budget: int
) -> None:
    """CMP-04: one entry per prompt token, the first without a logprob; `max_tokens=0` draws nothing."""
    driver = engine(max_num_batched_tokens=budget)
    driver.add("warm", prompt, max_tokens=1)
    driver.run()
    driver.add("scored", prompt, max_tokens=0, prompt_logprobs=2)
    driver.run()

    assert driver.tokens["scored"] == []
    assert driver.finished["scored"] == "length"
    first, *rest = driver.prompt_logprobs["scored"]
    assert first is None
    assert [entry.token_id for entry in rest if entry is not None] == prompt[1:]
    # The model's own forward pass over the whole prompt is the oracle.
    whole = engine(max_num_batched_tokens=256)
    whole.add("whole", prompt, max_tokens=0, prompt_logprobs=2)
    whole.run()
    for left, right in zip(rest, whole.prompt_logprobs["whole"][1:], strict=True):
        assert left is not None
        assert right is not None
        assert left.logprob == pytest.approx(right.logprob, abs=1e-4)


@pytest.mark.parametrize("requests", [1, 33, 64])
def test_no_more_logits_are_in_memory_at_a_time_than_are_planned(
    engine: Build, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    monkeypatch.setattr(runner_module, "_LOGITS_AT_ONCE", 0)
    driver = engine(max_num_seqs=64)
    runner, sizes = driver.core._runner, set()
    assert isinstance(runner, ModelRunner)
    compute = runner._model.compute_logits

    def computed(hidden: torch.Tensor, exact: bool = False) -> torch.Tensor:
        logits = compute(hidden, exact)
        sizes.add(logits.nbytes)
        return logits

    monkeypatch.setattr(runner._model, "compute_logits", computed)
    for number in range(requests):
        driver.add(str(number), [2 + number, 3], max_tokens=3, ignore_eos=True)
    driver.run()
    assert max(sizes) == runner.logits_bytes(requests) <= runner.logits_bytes(64)


def test_priority_decides_who_waits(null_engine: Build) -> None:
    driver = null_engine(max_num_seqs=1)
    driver.add("first", [1, 2], max_tokens=3)
    driver.step()
    driver.add("late", [1, 2], max_tokens=3, priority=1)
    driver.add("urgent", [1, 2], max_tokens=3, priority=-1)
    driver.run()

    assert list(driver.finished) == ["first", "urgent", "late"]


def test_a_long_prompt_does_not_stall_a_stream(null_engine: Build) -> None:
    driver = null_engine(max_num_batched_tokens=16)
    driver.add("stream", [1, 2], max_tokens=50)
    driver.step()
    driver.add("long", [5] * 200, max_tokens=1)
    before = len(driver.tokens["stream"])
    for _ in range(5):
        driver.step()

    assert len(driver.tokens["stream"]) == before + 5
    assert "long" not in driver.finished


@SETTINGS
@given(data=st.data())
def test_every_request_ends_whatever_the_sizes(null_engine: Build, data: st.DataObject) -> None:
    """No sizes of pool, budget and requests can bring the scheduler to a halt."""
    max_model_len = data.draw(st.integers(16, 96))
    driver = null_engine(
        max_model_len=max_model_len,
        num_blocks=-(-max_model_len // 8) + data.draw(st.integers(0, 6)),
        max_num_seqs=data.draw(st.integers(1, 8)),
        max_num_batched_tokens=data.draw(st.integers(8, 40)),
        expected_output_len=data.draw(st.integers(1, 50)),
    )
    sizes = st.tuples(st.integers(1, max_model_len - 1), st.integers(1, 60))
    for index, (length, output) in enumerate(data.draw(st.lists(sizes, min_size=1, max_size=12))):
        driver.add(str(index), [index] * length, max_tokens=output)
    driver.run()

    assert set(driver.finished.values()) == {"length"}


def test_a_failed_step_fails_its_requests_and_leaves_clean_books(engine: Build, monkeypatch: Any) -> None:
    driver = engine()
    driver.add("a", range(2, 30), max_tokens=5)
    driver.step()

    def broken(*_: Any) -> None:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(driver.core._runner, "forward", broken)
        with pytest.raises(RuntimeError, match="out of luck"):
            driver.step()
    driver._take(driver.core.recover("sorry"))
    assert driver.finished["a"] == "error"
    driver.add("b", range(2, 30), max_tokens=5)
    driver.run()
    assert driver.tokens["b"] == alone(engine, range(2, 30), max_tokens=5)


def test_the_sampled_distribution_is_the_softmax(engine: Build) -> None:
    """10,000 draws of one position against the probabilities that the engine reports (chi-square, fixed seeds)."""
    driver = engine(max_num_seqs=64, max_num_batched_tokens=512, max_num_waiting=20_000)
    prompt = [3, 4, 5]
    driver.add("ref", prompt, max_tokens=1, temperature=1.0, seed=0, logprobs=96)
    for index in range(4000):
        driver.add(str(index), prompt, max_tokens=1, temperature=1.0, seed=index)
    driver.run(limit=20_000)
    expected = torch.zeros(96)
    for token, logprob in driver.logprobs["ref"][0].top:
        expected[token] = torch.tensor(logprob).exp()
    counts = torch.bincount(
        torch.tensor([driver.tokens[str(index)][0] for index in range(4000)]), minlength=96
    ).float()
    likely = expected * 4000 >= 5
    statistic = ((counts - expected * 4000) ** 2 / (expected * 4000))[likely].sum().item()
    # The 99.99 % quantile of chi-square with k degrees of freedom is below k + 4 sqrt(2k) + 15.
    degrees = int(likely.sum())
    assert statistic < degrees + 4 * (2 * degrees) ** 0.5 + 15


def test_only_a_request_that_was_never_computed_can_be_ended_as_unbegun(engine: Build) -> None:
    """Neither one whose prompt is computed in part, nor one that was preempted."""
    driver = engine(max_num_batched_tokens=64)
    core = driver.core
    driver.add("x", range(2, 90), max_tokens=4)
    core.step()
    assert core.abort_unbegun("x") == core.abort_unbegun("unknown") == []
    (state,) = core.queues.running
    core._preempt(state)
    assert core.abort_unbegun("x") == []
    driver.add("y", range(2, 12), max_tokens=4)
    assert [chunk.finish_reason for _, chunk in core.abort_unbegun("y")] == ["abort"]
    core.check_integrity()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_request_whose_logits_are_nan_ends_with_an_error_and_others_go_on(
    engine: Build, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    expected = alone(engine, range(2, 12), max_tokens=6, ignore_eos=True)
    driver = engine()
    sampler = driver.core._runner._sampler
    pick = sampler.pick

    def spoiled(logits: torch.Tensor, states: list[Any], *rest: Any) -> torch.Tensor:
        for row, state in enumerate(states):
            if state.request.request_id == "bad" and state.num_output_tokens == 2:
                logits[row] = float("nan")
        return pick(logits, states, *rest)  # type: ignore[no-any-return]

    monkeypatch.setattr(sampler, "pick", spoiled)
    driver.add("good", range(2, 12), max_tokens=6, ignore_eos=True)
    driver.add("bad", range(3, 12), max_tokens=6, ignore_eos=True, temperature=temperature, logprobs=2)
    driver.run()

    assert driver.finished == {"good": "length", "bad": "error"}
    assert driver.tokens["good"] == expected
    assert len(driver.tokens["bad"]) == 2
