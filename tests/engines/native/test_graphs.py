"""Laws of decode steps that are recorded as graphs and launched before the last tokens are known.

* The tokens of all kinds of requests are those of an engine that does neither.
* A graph reads and writes the same memory in every step of its bucket, and rows without a request write nothing.
* What a step in flight writes is in no block that the prefix cache knows, whoever ends, pauses or fails meanwhile.
* A request that waits is admitted as soon as without graphs, and clients share places.
* The host takes the tokens of a step when it has launched the next one, and never computes one more than that in vain.

On a CPU there are no graphs: the recorder of these tests runs the call again. The launches of the kernels are compared
in tests/kernels/interpreted_graphs.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from engines.conftest import EOS, TOKENS, Driver, config, tiny_model
from engines.native.kinds import KINDS, add, prompts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.graphs import Capture, bucket_sizes
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.native.scheduling.kv_blocks import BlockPool
from plumbline.engines.sampling.sampler import TokensInFlight

CPU = torch.device("cpu")
POOLS: WeakKeyDictionary[ModelRunner, BlockPool] = WeakKeyDictionary()
"""The blocks that a runner writes to."""


class Rerunning:
    """Records a call by keeping it; a replay runs it and writes the result where the first one was."""

    def __init__(self) -> None:
        self.results: list[Tensor] = []
        self.replays = 0

    def record(self, call: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        result = call().clone()
        self.results.append(result)

        def replay() -> None:
            self.replays += 1
            result.copy_(call())

        return result, replay


def build(recorder: Rerunning | None, **changes: Any) -> Driver:
    hybrid, compiled = changes.pop("hybrid", False), changes.pop("compiled", False)
    limits = config(**changes)
    capture = None if recorder is None else Capture(recorder, limits.max_num_seqs, limits.blocks_per_sequence)
    runner = ModelRunner(
        tiny_model(compiled=compiled, hybrid=hybrid),
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        device=CPU,
        num_states=limits.max_num_seqs,
        capture=capture,
    )
    driver = Driver(EngineCore(limits, runner, EOS, clock=lambda: 0.0, texts=TOKENS))
    POOLS[runner] = driver.core.scheduler.pool
    return driver


requests = st.tuples(st.sampled_from(sorted(KINDS)), prompts, st.sampled_from([0.0, 1.0]), st.integers(1, 20))
events = st.lists(
    st.one_of(requests, st.integers(1, 4), st.sampled_from(["abort", "pause", "resume"])), max_size=9
)


@pytest.fixture(autouse=True)
def writes_are_to_unknown_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check at each launch, and when its tokens have come, that the prefix cache knows no block that it writes to."""
    launch, wait = ModelRunner.launch, TokensInFlight.wait
    in_flight: dict[int, Callable[[], None]] = {}

    def launching(runner: ModelRunner, inputs: Any, slots: Any) -> TokensInFlight:
        blocks = (inputs.batch.slot_mapping // slots._block_size).tolist()
        pool = POOLS[runner]

        def check() -> None:
            assert [pool._hashes[block] for block in blocks] == [None] * len(blocks)

        check()
        tokens = launch(runner, inputs, slots)
        in_flight[id(tokens)] = check
        return tokens

    def waiting(tokens: TokensInFlight) -> Any:
        in_flight.pop(id(tokens))()
        return wait(tokens)

    monkeypatch.setattr(ModelRunner, "launch", launching)
    monkeypatch.setattr(TokensInFlight, "wait", waiting)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events, st.sampled_from([{}, {"max_num_seqs": 3}, {"num_blocks": 40}, {"hybrid": True}]))
def test_tokens_are_those_of_an_engine_without_graphs(happening: list[Any], changes: dict[str, Any]) -> None:
    recorder = Rerunning()
    plain, graphs = build(None, **changes), build(recorder, **changes)
    names: list[str] = []
    stopped: set[str] = set()
    for event in happening:
        match event:
            case int():
                for driver in (plain, graphs):
                    for _ in range(event):
                        driver.step() if driver.core.has_work else None
            case "abort" if names:
                stopped.add(names[-1])
                for driver in (plain, graphs):
                    driver.abort(names[-1])
            case "pause" | "resume" if names:
                for driver in (plain, graphs):
                    getattr(driver.core, event)(names[0])
            case (kind, prompt, temperature, most):
                names.append(f"{kind} {len(names)}")
                for driver in (plain, graphs):
                    add(
                        driver,
                        names[-1],
                        prompt,
                        kind,
                        temperature=temperature,
                        max_tokens=most,
                        seed=len(names),
                    )
    for driver in (plain, graphs):
        if names:
            driver.core.resume(names[0])
        driver.run()
    for name in set(names) - stopped:
        assert graphs.tokens[name] == plain.tokens[name]
        assert graphs.finished[name] == plain.finished[name]


@pytest.mark.parametrize("kind", ["plain", "two", "bias", "late"])
def test_a_draw_ahead_of_the_host_is_the_same(kind: str) -> None:
    """These kinds need nothing from the host, so all their steps but the first are launched ahead."""
    outcomes = []
    for recorder in (None, Rerunning()):
        driver = build(recorder)
        add(driver, "a", list(range(2, 12)), kind, temperature=1.0, seed=7, max_tokens=12)
        driver.run()
        outcomes.append(driver.tokens["a"])
    assert outcomes[0] == outcomes[1]


def test_a_bucket_has_one_memory_and_rows_without_a_request_write_nothing() -> None:
    recorder = Rerunning()
    driver = build(recorder, hybrid=True)
    runner = driver.core._runner
    assert isinstance(runner, ModelRunner)
    assert runner.graphs is not None
    states = [torch.full_like(each, 3.0).copy_(each) for pair in runner._kv for each in pair]
    runner.graphs.record_all()
    assert len(recorder.results) == len(bucket_sizes(16)) == 6
    for before, now in zip(states, (each for pair in runner._kv for each in pair), strict=True):
        assert torch.equal(before[:16], now[:16])  # All but the state that no request has.
    for name in "abc":
        driver.add(name, range(2, 12), max_tokens=9, ignore_eos=True)
    driver.run()

    assert recorder.replays >= 8
    assert len(recorder.results) == 6
    assert driver.tokens["a"] == driver.tokens["b"] == driver.tokens["c"]


def test_the_host_is_one_step_behind_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = build(Rerunning())
    seen: list[str] = []
    launch, wait = ModelRunner.launch, TokensInFlight.wait

    def launching(*arguments: Any) -> TokensInFlight:
        seen.append("launch")
        return launch(*arguments)

    def waiting(tokens: TokensInFlight) -> Any:
        seen.append("wait")
        return wait(tokens)

    monkeypatch.setattr(ModelRunner, "launch", launching)
    monkeypatch.setattr(TokensInFlight, "wait", waiting)
    driver.add("a", range(2, 12), max_tokens=5, ignore_eos=True)
    driver.run()
    assert seen == ["launch", "launch", "wait", "launch", "wait", "launch", "wait", "wait"]

    # Of two requests one ends by its token: one step has a row in vain, and the other goes on.
    greedy = driver.tokens["a"]
    seen.clear()
    driver.add("b", range(2, 12), max_tokens=20, ignore_eos=True, stop_token_ids=frozenset({greedy[2]}))
    driver.add("c", range(2, 12), max_tokens=20, ignore_eos=True)
    driver.run()
    assert driver.tokens["b"] == greedy[: greedy.index(greedy[2]) + 1]
    assert seen.count("launch") == seen.count("wait") == 19
    assert driver.core.has_work is False


def test_a_request_that_waits_is_admitted_when_a_place_is_free() -> None:
    """While all places are taken the others run ahead; the step in flight does not delay an end."""
    driver = build(Rerunning(), max_num_seqs=2)
    for name, most in (("a", 6), ("b", 30), ("c", 5)):
        driver.add(name, range(2, 12), max_tokens=most, ignore_eos=True)
    for _ in range(14):
        driver.step()
    assert driver.finished == {"a": "length", "c": "length"}
    driver.run()


def test_clients_share_places_while_the_host_is_behind() -> None:
    """Each preemption needs a plan, and so does the admission to the place that it frees."""
    driver = build(Rerunning(), max_num_seqs=4)
    for name in ("a0", "a1", "a2", "a3"):
        driver.add(name, range(2, 12), max_tokens=60, ignore_eos=True, client="a")
    for _ in range(4):
        driver.step()
    for name in ("b0", "b1"):
        driver.add(name, range(2, 12), max_tokens=60, ignore_eos=True, client="b")
    for _ in range(16):
        driver.step()
    running = Counter(state.request.client for state in driver.core.scheduler.running)
    assert running == {"a": 2, "b": 2}
    driver.run()
    assert driver.tokens["b1"] == driver.tokens["a3"]


def test_a_request_is_admitted_as_soon_as_it_fits() -> None:
    """The predicted peak falls with each token of a running request, so a place may be free before one ends."""
    driver = build(Rerunning(), max_model_len=192, num_blocks=12, block_size=16, expected_output_len=256)
    driver.add("a", range(2, 12), max_tokens=100, ignore_eos=True)
    driver.step()
    driver.add("b", range(2, 12), max_tokens=110, ignore_eos=True)
    for _ in range(20):
        driver.step()
    assert "b" not in driver.tokens
    for _ in range(50):
        driver.step()
    assert "b" in driver.tokens
    assert "a" not in driver.finished
    driver.run()


def test_a_step_without_its_requests_cannot_fail_others(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = build(Rerunning())
    driver.add("a", range(2, 12), max_tokens=9, ignore_eos=True)
    for _ in range(3):
        driver.step()
    driver.abort("a")

    def broken(tokens: TokensInFlight) -> Any:
        raise RuntimeError("the device has failed")

    driver.add("b", range(2, 12), max_tokens=9, ignore_eos=True)
    with monkeypatch.context() as patch:
        patch.setattr(TokensInFlight, "wait", broken)
        driver.step()
    driver.run()
    assert driver.tokens["b"][:2] == driver.tokens["a"]


def test_a_step_that_fails_leaves_nothing_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = build(Rerunning())
    driver.add("a", range(2, 12), max_tokens=9, ignore_eos=True)
    driver.run()
    driver.add("b", range(2, 12), max_tokens=9, ignore_eos=True)
    for _ in range(4):
        driver.step()

    def broken(tokens: TokensInFlight) -> Any:
        raise RuntimeError("the device has failed")

    with monkeypatch.context() as patch:
        patch.setattr(TokensInFlight, "wait", broken)
        with pytest.raises(RuntimeError, match="device"):
            driver.step()
    driver._take(driver.core.recover("It failed."))
    assert driver.finished["b"] == "error"
    driver.add("c", range(2, 12), max_tokens=9, ignore_eos=True)
    driver.run()
    assert driver.tokens["c"] == driver.tokens["a"]


@pytest.mark.parametrize("most", [1, 2, 3, 16, 17, 40, 256])
def test_buckets_take_every_number_of_requests(most: int) -> None:
    sizes = bucket_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] >= most
    assert all(
        min(size for size in sizes if size >= rows) < max(2 * rows, rows + 16) for rows in range(1, most + 1)
    )


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(st.tuples(prompts, st.sampled_from([0.0, 0.5])), min_size=1, max_size=4),
    most=st.integers(20, 40),
)
def test_graphs_verify_proposed_tokens(asked: list[tuple[list[int], float]], most: int) -> None:
    """As on a GPU, where each proposed token is a decode of its own: the tokens are those without proposals."""
    outcomes = []
    for recorder in (None, Rerunning()):
        driver = build(recorder, compiled=True, speculation=recorder is not None)
        driver.core._slots._apart = recorder is not None
        for number, (prompt, temperature) in enumerate(asked):
            driver.add(
                str(number), prompt * 4, temperature=temperature, max_tokens=most, seed=7, ignore_eos=True
            )
        driver.run()
        outcomes.append(driver.tokens)
    assert outcomes[0] == outcomes[1]
    assert recorder is not None
    speculator = driver.core.scheduler.speculator
    assert speculator is not None
    if speculator.num_accepted:
        assert recorder.replays


@pytest.mark.parametrize("max_num_seqs", [16, 1])
def test_a_step_of_proposals_is_one_graph(max_num_seqs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not a prompt, nor more rows than were recorded, which would be launched kernel by kernel."""
    driver = build(Rerunning(), compiled=True, max_num_seqs=max_num_seqs)
    driver.core._slots._apart = True
    takes = ModelRunner._takes_graph
    eager: list[int] = []

    def taking(runner: ModelRunner, inputs: Any) -> bool:
        taken = takes(runner, inputs)
        eager.extend([] if taken else [len(inputs.token_ids)])
        return taken

    monkeypatch.setattr(ModelRunner, "_takes_graph", taking)
    driver.add("a", [5, 6, 7] * 8, temperature=0.0, max_tokens=60, ignore_eos=True)
    driver.run()
    speculator = driver.core.scheduler.speculator
    assert speculator is not None
    assert speculator.num_accepted > 10
    assert set(eager) == {24}, "only the prompt"
