"""A tiny random model and ways to drive an engine core step by step."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch

from plumbline.engines.constraints.grammar import GrammarVocabulary, LarkCompiler, Matcher
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.graphs import Capture, LaunchRecorder
from plumbline.engines.native.models import Transformer, describe, random_model
from plumbline.engines.native.null_runner import NullRunner
from plumbline.engines.native.runner import ModelRunner
from plumbline.port.engine import FinishReason, GenerateRequest, SamplingParams, TokenLogprob
from plumbline_kernels.cpu.library import load

VOCAB = 96
EOS = frozenset({1})
ENDS = EOS | {2}
TOKENS = [b"", b"<eos>", b"<eot>", *(bytes([byte]) for byte in range(32, 126) if byte != ord("`"))]
"""The tiny model's tokens: two ends and 93 printable characters."""


def encode(text: str) -> list[int]:
    return [TOKENS.index(char.encode()) for char in text]


VOCABULARY = GrammarVocabulary(TOKENS, ENDS, EOS, encode)
COMPILER = LarkCompiler(VOCABULARY)


def matcher(grammar: str) -> Matcher:
    return asyncio.run(COMPILER.compile(grammar))


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}

HYBRID = {
    "model_type": "qwen3_5_text",
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}


@cache
def tiny_model(
    dtype: torch.dtype = torch.float32,
    compiled: bool = True,
    bits: int = 0,
    experts: bool = False,
    hybrid: bool = False,
    turned: bool = False,
) -> Transformer:
    """Return a model of two layers, with weights so large that the argmax is not a matter of rounding.

    The first layer of a hybrid one is a delta net. The tokens of images of a turned one have three positions, and its
    first layer takes a further part of their rows.
    """
    torch.set_num_threads(1)
    config = describe(
        {
            "model_type": "qwen3_moe" if experts else "qwen3_vl_text" if turned else "qwen3",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 64,
            "vocab_size": VOCAB,
            "max_position_embeddings": 512,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            **(EXPERTS if experts else {}),
            **(HYBRID if hybrid else {}),
        }
    )
    model = random_model(config, seed=3, dtype=dtype, library=load() if compiled else None, bits=bits)
    model.given_parts = int(turned)
    return model


class Driver:
    """An engine core with the outcome of every request collected."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.logprobs: dict[str, list[TokenLogprob]] = defaultdict(list)
        self.prompt_logprobs: dict[str, tuple[TokenLogprob | None, ...]] = {}
        self.cached: dict[str, int] = {}
        self.finished: dict[str, FinishReason] = {}

    def add(
        self, name: str, prompt: Sequence[int], *, matcher: Matcher | None = None, **sampling: Any
    ) -> None:
        """Queue a request; sampling defaults to greedy."""
        images = sampling.pop("images", ())
        fields = ("cache_salt", "priority", "adapter", "client")
        extra = {key: sampling.pop(key) for key in fields if key in sampling}
        params = SamplingParams(**{"temperature": 0.0, **sampling})
        self.core.add(
            GenerateRequest(request_id=name, prompt_token_ids=list(prompt), sampling=params, **extra),
            matcher,
            images,
        )

    def step(self) -> None:
        """One step."""
        self._take(self.core.step())

    def abort(self, name: str) -> None:
        """End a request from outside."""
        self._take(self.core.abort(name))

    def run(self, limit: int = 5000) -> None:
        """Step until nothing is left; the books must balance then."""
        for _ in range(limit):
            if not self.core.has_work:
                self.core.scheduler.check_integrity()
                assert self.core.scheduler.pool.num_used == 0
                return
            self.step()
        raise AssertionError(f"still at work after {limit} steps")

    def _take(self, outputs: Any) -> None:
        for name, chunk in outputs:
            assert name not in self.finished, "a chunk after the last one"
            if name not in self.cached:
                self.cached[name] = chunk.num_cached_tokens
            self.tokens[name] += chunk.token_ids
            self.logprobs[name] += chunk.logprobs or ()
            if chunk.prompt_logprobs is not None:
                self.prompt_logprobs[name] = chunk.prompt_logprobs
            if chunk.finish_reason is not None:
                self.finished[name] = chunk.finish_reason


def config(**changes: Any) -> EngineConfig:
    """Return a small engine config with enough blocks for every request."""
    values: dict[str, Any] = {
        "max_model_len": 256,
        "block_size": 8,
        "num_blocks": 256,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
    }
    return EngineConfig(**{**values, **changes})


def build_engine(model: Transformer, recorder: LaunchRecorder | None = None, **changes: Any) -> Driver:
    """Return an engine on a model, with graphs of decodes by a recorder; keyword arguments change its config."""
    limits = config(**changes)
    runner = ModelRunner(
        model,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        device=torch.device("cpu"),
        num_states=limits.max_num_seqs + limits.num_snapshots,
        capture=None
        if recorder is None
        else Capture(recorder, limits.max_num_seqs, limits.blocks_per_sequence, limits.batch_invariant),
        exact=limits.batch_invariant,
    )
    # A clock that stands still bounds nothing by time, so the steps of a test are always the same.
    return Driver(EngineCore(limits, runner, EOS, clock=lambda: 0.0, texts=TOKENS))


@pytest.fixture
def model() -> Transformer:
    """The tiny model, compiled in fp32."""
    return tiny_model()


@pytest.fixture
def engine() -> Callable[..., Driver]:
    """Builds an engine on the tiny model; keyword arguments change its config."""
    return partial(build_engine, tiny_model())


@pytest.fixture
def null_engine() -> Callable[..., Driver]:
    """Builds an engine without a model, for laws of scheduling alone."""

    def build(**changes: Any) -> Driver:
        return Driver(EngineCore(config(**changes), NullRunner(VOCAB), frozenset()))

    return build
