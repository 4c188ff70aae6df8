"""Laws of steps that fail, in every core.

- The request that makes steps fail ends with an error, wherever it fails.
- All others get the tokens that they get without it.
- A step that fails once, for no request in particular, costs no request its answer where steps have several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline.engines.llama_cpp.core import LlamaCppCore
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.request import RequestState
from plumbline.engines.threaded.request_core import RequestCore
from plumbline.port.engine import FinishReason, GenerateRequest, SamplingParams

from .conftest import config, tiny_model
from .llama_cpp.checking_cache import make_cache
from .test_request_core import transformers

MODEL = tiny_model()


def native() -> RequestCore:
    limits = config(max_model_len=64, num_blocks=16, max_num_seqs=3, max_num_batched_tokens=16)
    runner = ModelRunner(MODEL, num_blocks=16, block_size=limits.block_size, device=torch.device("cpu"))
    return EngineCore(limits, runner, frozenset())


CORES: dict[str, Callable[[], RequestCore]] = {
    "native": native,
    "llama.cpp": lambda: LlamaCppCore(make_cache(streams=None, places=3, num_cells=200)),
    "transformers": lambda: transformers().core,
}


def answers(
    core: RequestCore, prompts: Sequence[Sequence[int]], fails: Callable[[RequestState], bool]
) -> dict[str, tuple[list[int], FinishReason | None]]:
    """Run requests to their ends; a draw of which `fails` is true raises."""
    take = core._take

    def failing(state: RequestState, *rest: Any) -> None:
        if fails(state):
            raise RuntimeError("out of luck")
        take(state, *rest)

    core._take = failing  # type: ignore[assignment, method-assign]
    found: dict[str, tuple[list[int], FinishReason | None]] = {}
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=1.0, seed=number, max_tokens=6, ignore_eos=True)
        core.add(GenerateRequest(request_id=str(number), prompt_token_ids=list(prompt), sampling=sampling))
        found[str(number)] = ([], None)
    for _ in range(1000):
        if not core.has_work:
            break
        try:
            outputs = core.step()
        except RuntimeError:
            outputs = core.recover("it failed")
        core.check_integrity()
        for name, chunk in outputs:
            tokens, reason = found[name]
            assert reason is None, "a chunk after the last one"
            found[name] = ([*tokens, *chunk.token_ids], chunk.finish_reason)
    assert not core.has_work
    return found


prompts = st.lists(st.lists(st.integers(2, 40), min_size=1, max_size=20), min_size=2, max_size=6)


@pytest.mark.parametrize("make", CORES.values(), ids=CORES)
@settings(max_examples=EXPLORED or 5)
@given(prompts=prompts, bad=st.data())
def test_a_request_that_makes_steps_fail_takes_no_other_along(
    make: Callable[[], RequestCore], prompts: list[list[int]], bad: st.DataObject
) -> None:
    names = [str(number) for number in range(len(prompts))]
    culprits = bad.draw(st.sets(st.sampled_from(names), min_size=1, max_size=2))
    at = bad.draw(st.integers(0, 5))
    whole = answers(make(), prompts, lambda state: False)
    found = answers(
        make(), prompts, lambda state: state.request.request_id in culprits and state.num_output_tokens == at
    )
    for name in names:
        expected = (whole[name][0][:at], "error") if name in culprits else whole[name]
        assert found[name] == expected


@pytest.mark.parametrize("make", [CORES["native"], CORES["llama.cpp"]], ids=["native", "llama.cpp"])
@settings(max_examples=EXPLORED or 5)
@given(prompts=prompts, at=st.integers(0, 20))
def test_a_step_that_fails_once_changes_no_answer_of_several(
    make: Callable[[], RequestCore], prompts: list[list[int]], at: int
) -> None:
    draws = 0

    def fails(state: RequestState) -> bool:
        nonlocal draws
        draws += 1
        return draws == at + 1

    whole = answers(make(), prompts, lambda state: False)
    found = answers(make(), prompts, fails)
    # The last one that runs has no other beside it, so the failure is its own.
    assert sum(found[name] != whole[name] for name in found) <= 1
    for name, (tokens, reason) in found.items():
        assert (reason == "length" and tokens == whole[name][0]) or reason == "error"
