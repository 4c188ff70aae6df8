"""Laws of the life cycle of requests, in every core, after any sequence of moves.

- A request is in one queue, and holds memory of the model only while it runs.
- A request ends with one last chunk, also if a step fails midway, and gets no chunk after it.
- A paused request gets no chunk.
- The order of both queues is (priority, arrival).
- Once all requests have ended, nothing is held.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from transformers import GPT2Config, GPT2LMHeadModel

from plumbline.engines.llama_cpp.core import LlamaCppCore
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.null_runner import NullRunner
from plumbline.engines.threaded.request_core import RequestCore
from plumbline.engines.transformers.core import TransformersCore
from plumbline.port.engine import EngineInfo, FinishReason, GenerateRequest, SamplingParams, TokenChunk

from .conftest import config
from .llama_cpp.checking_cache import make_cache

PLACES = 3


class Made(NamedTuple):
    """A core, and how many requests hold memory of the model in it."""

    core: RequestCore
    num_held: Callable[[], int]


def native() -> Made:
    # Blocks for one long sequence and a bit, so that requests are preempted.
    settings = config(
        max_model_len=64, num_blocks=8, max_num_seqs=PLACES, max_num_batched_tokens=16, expected_output_len=1
    )
    core = EngineCore(settings, NullRunner(96), frozenset())

    def num_held() -> int:
        held = [state for state in core._states.values() if state.block_ids or state.slot >= 0]
        assert len(core._slots._free) + sum(state.slot >= 0 for state in held) == PLACES
        assert held or not core.scheduler.pool.num_used
        return len(held)

    return Made(core, num_held)


def llama_cpp(streams: bool | None) -> Made:
    cache = make_cache(streams=streams, places=PLACES, num_cells=100)
    core = LlamaCppCore(cache)

    def num_held() -> int:
        assert len(core._rows._free) + len(core._places._running) == PLACES  # type: ignore[attr-defined]
        return PLACES - len(core._rows._free)

    return Made(core, num_held)


def transformers() -> Made:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = {"vocab_size": 50, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, n_positions=64, **sizes))
    info = EngineInfo(name="t", model="m", vocab_size=50, max_model_len=64, eos_token_ids=frozenset())
    core = TransformersCore(model, info, PLACES, cache_bytes=2 * 8 * 4 * 100)
    return Made(core, lambda: len(core._batch.rows) + len(core._caches))


CORES: dict[str, Callable[[], Made]] = {
    "native": native,
    "llama.cpp, a pool": lambda: llama_cpp(streams=False),
    "llama.cpp, streams": lambda: llama_cpp(streams=True),
    "llama.cpp, by the requests": lambda: llama_cpp(streams=None),
    "transformers": transformers,
}


class Run:
    """A core, and what the readers of its requests see."""

    def __init__(self, made: Made) -> None:
        self.core, self.num_held = made
        self.reasons: dict[str, FinishReason | None] = {}
        self.paused: set[str] = set()

    def add(self, prompt: int, limit: int, priority: int) -> None:
        name = str(len(self.reasons))
        sampling = SamplingParams(temperature=0.0, max_tokens=limit, ignore_eos=True)
        tokens = [2 + len(self.reasons)] * prompt
        self.core.add(
            GenerateRequest(request_id=name, prompt_token_ids=tokens, sampling=sampling, priority=priority)
        )
        self.reasons[name] = None

    def step(self, fails_at: int | None = None) -> None:
        """Run a step; it fails before its draw number `fails_at`, if it comes so far."""
        take, draws = self.core._take, 0

        def failing(*arguments: Any) -> None:
            nonlocal draws
            if draws == fails_at:
                raise RuntimeError("out of luck")
            draws += 1
            take(*arguments)

        self.core._take = failing  # type: ignore[assignment, method-assign]
        try:
            outputs = self.core.step()
        except RuntimeError:
            outputs = self.core.recover("it failed")
        finally:
            self.core._take = take  # type: ignore[method-assign]
        self.take(outputs)

    def take(self, outputs: list[tuple[str, TokenChunk]]) -> None:
        for name, chunk in outputs:
            assert self.reasons[name] is None, "a chunk after the last one"
            assert name not in self.paused
            self.reasons[name] = chunk.finish_reason

    def check(self) -> None:
        core, queues = self.core, self.core.queues
        core.check_integrity()
        assert {name for name, reason in self.reasons.items() if reason is None} == core._states.keys()
        assert {state.request.request_id for state in queues.paused} == self.paused
        for queue in (queues.running, queues.waiting, queues.held_back):
            assert queue == sorted(queue, key=lambda state: state.key)
        assert self.num_held() == len(queues.running) <= PLACES


adds = st.tuples(st.just("add"), st.integers(1, 25), st.sampled_from([1, 2, 3, 50, 50]), st.integers(0, 2))
steps = st.tuples(st.just("step"), st.sampled_from([None, None, None, 0, 1, 2]))
others = st.tuples(st.sampled_from(["abort", "pause", "resume"]), st.integers(0, 6))
runs = st.tuples(st.just("run"), st.sampled_from([0, 1, 5, 40]))
# A long run fills the memory, so that requests are preempted.
moves = st.tuples(
    st.lists(adds, max_size=4),
    st.lists(adds | others | steps, max_size=4),
    st.tuples(runs),
    st.lists(steps, max_size=3),
)


@pytest.mark.parametrize("make", CORES.values(), ids=CORES)
@settings(max_examples=EXPLORED or 8, deadline=None)
@given(rounds=st.lists(moves, min_size=1, max_size=4))
def test_any_sequence_of_moves_loses_nothing(make: Callable[[], Made], rounds: list[Any]) -> None:
    run = Run(make())
    for move, *arguments in chain.from_iterable(chain.from_iterable(rounds)):
        if move == "add":
            run.add(*arguments)
        elif move == "step":
            run.step(*arguments)
        elif move == "run":
            for _ in range(*arguments):
                run.step()
                run.check()
        else:
            name = str(arguments[0])
            known = run.reasons.get(name, "unknown") is None
            run.paused -= {name}
            if move == "abort":
                run.take(run.core.abort(name))
            elif move == "pause":
                run.core.pause(name)
                run.paused |= {name} if known else set()
            else:
                run.core.resume(name)
        run.check()
    for name in [*run.paused]:
        run.core.resume(name)
    run.paused.clear()
    for _ in range(2000):
        if run.core.has_work:
            run.step()
            run.check()
    assert not run.core.has_work
    assert None not in run.reasons.values()
