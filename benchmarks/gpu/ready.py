"""Start the engine on a small model and serve requests of all kinds: after the start no kernel may be compiled."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import torch
from transformers import AutoConfig

from benchmarks.gpu.operations import Maker
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.engine_config import GPU_BLOCK_SIZE, EngineConfig
from plumbline.engines.native.graphs import Capture, CudaRecorder
from plumbline.engines.native.models import describe, random_model
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.native.warm import warm_up
from plumbline.port.engine import GenerateRequest
from plumbline.port.sampling_params import SamplingParams
from plumbline_kernels._backend import num_compiled

__all__ = ["FAMILIES", "ready"]

_EXPERTS = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 64}
FAMILIES: dict[str, dict[str, Any]] = {"qwen3": {}, "qwen3_moe": _EXPERTS}


def ready(make: Maker, family: str, *, tiny: bool = False) -> dict[str, Any]:
    """Return how long the start took, and how many kernels it and the requests compiled.

    Args:
        make: has the device and the type.
        family: one of `FAMILIES`.
        tiny: serve few short requests, for the interpreter.
    """
    heads = (
        {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16} if tiny else {"head_dim": 128}
    )
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256}
    config = AutoConfig.for_model(family, **shape, **heads, **FAMILIES[family])
    model = random_model(
        describe(json.loads(config.to_json_string())), seed=1, dtype=make.dtype, device=make.device
    )
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 4} if tiny else {"max_num_seqs": 64}
    length, blocks = (64, 64) if tiny else (8192, 512)
    engine = EngineConfig(max_model_len=length, block_size=GPU_BLOCK_SIZE, num_blocks=blocks, **limits)
    is_gpu = make.device.type == "cuda"
    runner = ModelRunner(
        model,
        num_blocks=engine.num_blocks,
        block_size=engine.block_size,
        device=make.device,
        capture=Capture(CudaRecorder(), engine.max_num_seqs, engine.blocks_per_sequence) if is_gpu else None,
    )
    began, before = time.perf_counter(), num_compiled()
    if runner.graphs is not None:
        runner.graphs.record_all()
    warm_up(runner, engine)
    prepared, seconds = num_compiled() - before, time.perf_counter() - began
    core = EngineCore(engine, runner, frozenset())
    first = _serve(core, requests=2 if tiny else 64, longest=8 if tiny else 4000)
    return {
        "name": family,
        "prepared_kernels": prepared,
        "seconds_to_ready": round(seconds, 2),
        "late_variants": core.stats().late_variants,
        "failed_steps": core.stats().num_failed_steps,
        "first_token_ms": [round(1e3 * share, 1) for share in first],
        "passed": core.stats().late_variants == 0,
    }


def _serve(core: EngineCore, requests: int, longest: int) -> tuple[float, float]:
    """Serve requests that arrive one a step; returns the median and the longest time to the first token."""
    draw, born, first = random.Random(1), {}, []
    kinds: list[dict[str, Any]] = [
        {},
        {"frequency_penalty": 0.5},
        {"logprobs": 2},
        {"top_p": 0.9, "temperature": 0.8},
    ]
    waiting = requests
    while waiting or core.has_work:
        if waiting:
            waiting -= 1
            name = f"r{waiting}"
            born[name] = time.perf_counter()
            core.add(
                GenerateRequest(
                    request_id=name,
                    prompt_token_ids=[draw.randrange(256) for _ in range(draw.randint(1, longest))],
                    sampling=SamplingParams(
                        max_tokens=2 if longest < 10 else 64, ignore_eos=True, **kinds[waiting % len(kinds)]
                    ),
                )
            )
        for name, chunk in core.step():
            if chunk.token_ids and name in born:
                first.append(time.perf_counter() - born.pop(name))
    values = torch.tensor(first)
    return float(values.median()), float(values.max())
