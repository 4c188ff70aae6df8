"""Laws of batches in transformers: padding, joining, leaving and waiting again change no token."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from plumbline.engines.constraints.grammar import Matcher
from plumbline.engines.transformers.core import TransformersCore
from plumbline.port.engine import EngineInfo, GenerateRequest, SamplingParams

VOCAB, LIMIT = 120, 96
SIZES = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
ATTENTION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LIMIT,
    "initializer_range": 0.3,
    **SIZES,
}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**ATTENTION)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=LIMIT, **SIZES)),
    # A window of eight tokens: its cache forgets, so that nothing can be padded.
    "mistral": lambda: MistralForCausalLM(MistralConfig(sliding_window=8, **ATTENTION)),
    # Positions come from the mask, and `forward` does not take them.
    "bloom": lambda: BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=2, n_head=4, **SIZES)),
    # A state instead of a cache.
    "mamba": lambda: MambaForCausalLM(
        MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, **SIZES)
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    made = MODELS[request.param]().eval()
    made.generation_config.eos_token_id = None
    return made


class Run:
    """A core, stepped by hand."""

    def __init__(self, model: Any, places: int = 8, cache_bytes: int = 1 << 40) -> None:
        info = EngineInfo(
            name="transformers", model="m", vocab_size=VOCAB, max_model_len=LIMIT, eos_token_ids=frozenset()
        )
        self.core = TransformersCore(model, info, places, cache_bytes)
        self.tokens: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}

    def add(self, name: str, prompt: list[int], matcher: Matcher | None = None, **sampling: Any) -> None:
        self.tokens[name] = []
        wanted = SamplingParams(**({"temperature": 0.0, "max_tokens": 12} | sampling))
        self.core.add(GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=wanted), matcher)

    def step(self) -> None:
        for name, chunk in self.core.step():
            self.tokens[name] += chunk.token_ids
            if chunk.finish_reason is not None:
                self.reasons[name] = chunk.finish_reason

    def finish(self) -> None:
        for _ in range(2000):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("it never ends")


def alone(model: Any, prompt: list[int], number: int) -> list[int]:
    given = torch.tensor([prompt])
    made = model.generate(
        given, max_new_tokens=number, do_sample=False, attention_mask=torch.ones_like(given)
    )
    found: list[int] = made[0, len(prompt) :].tolist()
    return found


PROMPTS = [[5, 9, 77, 4], [1], [8, 8, 8, 20, 31, 40, 41, 3, 3, 60, 61], [99, 2], [7] * 20]


def test_tokens_in_a_batch_are_those_of_generate(model: Any) -> None:
    """Requests of several lengths, which come and end at several steps."""
    run = Run(model)
    numbers = [30, 4, 17, 9, 25]
    for index, (prompt, number) in enumerate(zip(PROMPTS, numbers, strict=True)):
        run.add(str(index), prompt, max_tokens=number)
        for _ in range(index):
            run.step()
    run.finish()
    for index, (prompt, number) in enumerate(zip(PROMPTS, numbers, strict=True)):
        assert run.tokens[str(index)] == alone(model, prompt, number)
        assert run.reasons[str(index)] == "length"


def test_plain_attention_is_computed_for_all_rows_at_once(model: Any) -> None:
    run = Run(model)
    for index, prompt in enumerate(PROMPTS):
        run.add(str(index), prompt, max_tokens=40)
    for _ in PROMPTS:
        run.step()
    before = run.core.stats().num_steps
    run.step()
    together = type(model).__name__ in ("LlamaForCausalLM", "GPT2LMHeadModel")
    assert run.core.stats().num_steps - before == (1 if together else len(PROMPTS))


def test_a_cache_above_its_bound_lets_the_newest_wait_and_changes_no_token(model: Any) -> None:
    """The first model's token takes 2 layers x 2 parts x 2 heads x 8 values x 4 bytes = 256 bytes."""
    if type(model).__name__ != "LlamaForCausalLM":
        pytest.skip("one model with a known size is enough")
    run = Run(model, cache_bytes=256 * 130)
    for index, prompt in enumerate(PROMPTS):
        run.add(str(index), prompt, max_tokens=40)
    most = 0
    while run.core.has_work:
        run.step()
        most = max(most, run.core.stats().num_running)
    assert run.core.stats().num_preemptions > 0
    assert 1 < most < len(PROMPTS)
    for index, prompt in enumerate(PROMPTS):
        assert run.tokens[str(index)] == alone(model, prompt, 40)


@pytest.mark.long
@settings(max_examples=EXPLORED or 8, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["abort", "pause", "resume", "add"]), st.integers(0, 4)), max_size=14
    )
)
def test_aborts_and_pauses_disturb_nobody(moves: list[tuple[str, int]]) -> None:
    run = Run(_llama(), places=3)
    for index, prompt in enumerate(PROMPTS):
        run.add(str(index), prompt)
    for number, (move, index) in enumerate(moves):
        run.step()
        name = str(index)
        if move == "abort":
            for ended, chunk in run.core.abort(name):
                run.reasons[ended] = str(chunk.finish_reason)
        elif move == "pause":
            run.core.pause(name)
        elif move == "resume":
            run.core.resume(name)
        else:
            run.add(f"more{number}", PROMPTS[index])
    for index in range(5):
        run.core.resume(str(index))
    run.finish()
    for name, tokens in run.tokens.items():
        prompt = PROMPTS[int(name) if name.isdigit() else moves[int(name.removeprefix("more"))][1]]
        wanted = _wanted(tuple(prompt))
        assert tokens == wanted[: len(tokens)]
        assert run.reasons[name] == "abort" or tokens == wanted


@cache
def _llama() -> Any:
    torch.manual_seed(5)
    made = MODELS["llama"]().eval()
    made.generation_config.eos_token_id = None
    return made


@cache
def _wanted(prompt: tuple[int, ...]) -> list[int]:
    return alone(_llama(), list(prompt), 12)
