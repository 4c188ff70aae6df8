"""An engine honours what it declares and refuses the rest by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.servers.pocket import text_model
from support.weights.engine_features import DECLARED, feature_table
from support.weights.engines import Harness, Reference

from plumbline.port.engine import (
    SAMPLER_ORDER,
    Dry,
    Mirostat,
    ProcessorCall,
    RefusedRequestError,
    SamplerChain,
    ThinkingBudget,
)

from .conftest import PROMPTS, reference_of

SAMPLED: dict[str, Any] = {
    "allowed_token_ids": {"allowed_token_ids": frozenset({5, 6})},
    "bad_words": {"bad_words": ((5,),)},
    "banned_strings": {"banned_strings": ("zebra",)},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "grammar": {"grammar": 'start: "a"'},
    "ignore_eos": {"ignore_eos": True},
    "logit_bias": {"logit_bias": {5: 1.0}},
    "logits_processors": {"processors": (ProcessorCall("only", "logits_processors", (5,)),)},
    "logprob_token_ids": {"logprobs": 1, "logprob_token_ids": (5,)},
    "logprobs": {"logprobs": 1},
    "min_p": {"min_p": 0.1},
    "min_tokens": {"min_tokens": 2},
    "presence_penalty": {"presence_penalty": 0.5},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "return_hidden_states": {"hidden_state": True},
    "stop_token_ids": {"stop_token_ids": frozenset({5})},
    "thinking_budget": {"thinking_budget": ThinkingBudget(max_tokens=3, begin=((5,),), end=(6,))},
    "top_k": {"top_k": 5},
    "dry_multiplier": {"chain": SamplerChain(dry=Dry(multiplier=0.8))},
    "dynatemp_range": {"chain": SamplerChain(dynatemp_range=0.5)},
    "mirostat": {"chain": SamplerChain(mirostat=Mirostat(version=2))},
    "repeat_last_n": {"chain": SamplerChain(repeat_last_n=5), "repetition_penalty": 1.1},
    "samplers": {"chain": SamplerChain(order=SAMPLER_ORDER[::-1])},
    "tfs": {"chain": SamplerChain(tfs=0.5)},
    "top_a": {"chain": SamplerChain(top_a=0.5)},
    "top_n_sigma": {"chain": SamplerChain(top_n_sigma=1.0)},
    "typical_p": {"chain": SamplerChain(typical_p=0.5)},
    "xtc_probability": {"chain": SamplerChain(xtc_probability=0.5)},
}
"""A request for each feature."""


def test_an_engine_declares_what_the_documentation_says(engine: Harness) -> None:
    ours = dict.fromkeys(
        ("native", "native_adapter", "native_experts", "native_quantised", "remote"), "plumbline"
    )
    name = (ours | {"llama_cpp_pool": "llama_cpp"}).get(engine.kind.name, engine.kind.name)
    more = frozenset() if engine.adapter is None else frozenset({"adapters"})
    assert engine.features == DECLARED[name] | more


def test_an_adapter_or_rounded_weights_change_what_is_computed(engine: Harness, reference: Reference) -> None:
    """Otherwise the other laws would say nothing about it."""
    if engine.adapter is None and engine.kind.reference is text_model:
        pytest.skip("the model is as it is")
    logits = [found.logits(PROMPTS[0]) for found in (reference, reference_of(None))]
    assert np.abs(logits[0] - logits[1]).max() > 0.1


def test_each_feature_is_tried() -> None:
    assert SAMPLED.keys() == frozenset[str]().union(*DECLARED.values())


def test_the_documentation_has_the_table_of_features() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "engines.md").read_text("utf-8")
    assert "\n".join(feature_table()) in page


@pytest.mark.parametrize("feature", SAMPLED)
def test_a_feature_is_honoured_or_refused_by_name(engine: Harness, feature: str) -> None:
    wanted = engine.request(PROMPTS[0], max_tokens=3, temperature=1.0, seed=1, **SAMPLED[feature])
    if feature in engine.features:
        found = engine.answers(wanted)[0]
        assert found.reason in ("stop", "length")
        assert feature != "logits_processors" or found.token_ids == [5] * 3
        return
    with pytest.raises(RefusedRequestError) as refusal:
        engine.answers(wanted)
    assert refusal.value.param == feature


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ([], {}),
        ([10**9], {}),
        ([-1], {}),
        ([5], {"logit_bias": {10**9: 1.0}}),
        ([5], {"allowed_token_ids": frozenset()}),
        ([5], {"allowed_token_ids": frozenset({10**9})}),
    ],
    ids=str,
)
def test_what_cannot_be_computed_is_refused(
    engine: Harness, prompt: list[int], sampling: dict[str, Any]
) -> None:
    with pytest.raises(RefusedRequestError):
        engine.answer(prompt, **sampling)
    assert engine.answer(PROMPTS[0]).reason == "stop"


def test_stats_count_what_was_done(engine: Harness) -> None:
    before = engine.stats()
    found = engine.answer(PROMPTS[0], max_tokens=15, ignore_eos=True)
    engine.run(engine.idle())
    after = engine.stats()
    assert after.alive
    assert after.generation_tokens - before.generation_tokens == len(found.token_ids) == 15
    assert after.prompt_tokens - before.prompt_tokens == len(PROMPTS[0])
    assert after.num_running == after.num_waiting == 0
    assert 0 <= after.kv_cache_usage <= 1
