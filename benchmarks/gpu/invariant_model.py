"""Answers of whole models over batches, steps and speculation, for `benchmarks.gpu.invariant`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu.families import Kept
from benchmarks.gpu.timing import gpu_seconds
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.graphs import Capture, CudaRecorder
from plumbline.engines.native.models import Transformer, describe, random_model
from plumbline.engines.native.runner import ModelRunner
from plumbline.port.engine import GenerateRequest, SamplingParams
from plumbline_kernels.attention import AttentionBatch

__all__ = ["answers", "speculation", "step_times"]

SMALL = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 3072,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
TINY = SMALL | {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 32,
    "vocab_size": 96,
    "max_position_embeddings": 128,
}
EIGHTH = SMALL | {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 6,
    "vocab_size": 32000,
}
"""Six layers as an 8 B model has 32."""


def model_of(config: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Transformer:
    """Return a model with random weights, whose answers are not all alike."""
    model = random_model(describe(config), seed=1, dtype=dtype, device=device)
    model.embedding.mul_(25.0)
    return model


class _Asked:
    """An engine, and what it answers."""

    def __init__(self, model: Transformer, exact: bool, graphs: bool, **changes: Any) -> None:
        limits: dict[str, Any] = {"max_model_len": 1024, "num_blocks": 6000, "max_num_seqs": 64}
        length = min(model.description.context_length, 1024)
        config = EngineConfig(**{**limits, "max_model_len": length, "batch_invariant": exact, **changes})
        recorder = CudaRecorder() if model.device.type == "cuda" else Kept()
        blocks = config.blocks_per_sequence
        runner = ModelRunner(
            model,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            device=model.device,
            capture=Capture(recorder, config.max_num_seqs, blocks, exact) if graphs else None,
            exact=exact,
        )
        self.core = EngineCore(config, runner, frozenset())
        self.tokens: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[float]] = {}

    def add(
        self, name: str, prompt: list[int], most: int, logprobs: int | None = 1, heat: float = 0.0
    ) -> None:
        """Ask for an answer."""
        sampling = SamplingParams(
            temperature=heat, seed=len(prompt), max_tokens=most, ignore_eos=True, logprobs=logprobs
        )
        self.tokens[name], self.logprobs[name] = [], []
        self.core.add(GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling))

    def run(self) -> float:
        """Step until all is answered; returns seconds."""
        began = time.perf_counter()
        while self.core.has_work:
            for name, chunk in self.core.step():
                self.tokens[name] += chunk.token_ids
                self.logprobs[name] += [each.logprob for each in chunk.logprobs or ()]
        return time.perf_counter() - began


def prompt_of(number: int, most: int) -> list[int]:
    """Return a prompt with some repetition."""
    length = 5 + number * 37 % most
    return [(index * index * (number + 3) + 7 * (index % 11)) % 90 + 3 for index in range(length)]


def answers(device: torch.device, dtype: torch.dtype, dry: bool) -> Iterator[str]:
    """Compare answers and logprobs of requests alone with those among 1 to 64, by chunks, graphs and speculation."""
    model, most, count = model_of(TINY if dry else SMALL, device, dtype), 20 if dry else 700, 4 if dry else 32
    asked = list(range(3 if dry else 10))
    for exact in (True, False):
        alone = []
        for number in asked:
            one = _Asked(model, exact, graphs=False, speculation=False)
            one.add("0", prompt_of(number, most), count, heat=0.7 * (number % 2))
            one.run()
            alone.append((one.tokens["0"], one.logprobs["0"]))
        kinds: dict[str, tuple[int, bool, dict[str, Any]]] = {
            "together": (0, False, {}),
            "with 54, graphs": (4 if dry else 54, True, {}),
            "chunks of 64 tokens, graphs": (2 if dry else 20, True, {"max_num_batched_tokens": 64}),
            "little room": (6, True, {"num_blocks": 64 if not dry else 12}),
            "no speculation": (6, True, {"speculation": False}),
        }
        for kind, (neighbours, graphs, changes) in kinds.items():
            many = _Asked(model, exact, graphs, **changes)
            for number in range(neighbours):
                many.add(f"n{number}", prompt_of(100 + number, most), count, None, 0.9)
            for number in asked:
                # Those without logprobs are launched ahead.
                many.add(str(number), prompt_of(number, most), count, heat=0.7 * (number % 2))
            many.run()
            found = [(many.tokens[str(number)], many.logprobs[str(number)]) for number in asked]
            tokens = sum(a[0] == b[0] for a, b in zip(found, alone, strict=True))
            bits = sum(a == b for a, b in zip(found, alone, strict=True))
            scheduler = many.core.scheduler
            right = 0 if scheduler.speculator is None else scheduler.speculator.num_accepted
            yield (
                f"{'exact' if exact else 'not exact'}, {kind}: {tokens} of {len(asked)} have the same tokens, {bits} "
                f"the same logprobs ({scheduler.num_preemptions} preemptions, {right} right proposals)"
            )


def step_times(device: torch.device, dtype: torch.dtype, dry: bool, compiling: bool) -> Iterator[str]:
    """Time whole steps of six layers of an 8 B model, exact and not."""
    model = random_model(describe(TINY if dry else EIGHTH), seed=1, dtype=dtype, device=device)
    context = 32 if dry else 1024
    loads = [(2, 0), (0, 20)] if dry else [(1, 0), (8, 0), (64, 0), (256, 0), (0, 512), (0, 2048)]
    blocks = max((decodes * context + prompt) // 16 for decodes, prompt in loads) + 1
    caches = model.allocate_kv(blocks, 16)
    for decodes, prompt in loads:
        rows, length = decodes + bool(prompt), context if decodes else prompt
        wide, tokens = -(-length // 16), decodes or prompt
        tables = torch.arange(rows * wide, device=device, dtype=torch.int32).view(rows, wide)
        starts = range(rows + 1) if decodes else [0, prompt]
        seconds = []
        for exact in (False, True):
            batch = AttentionBatch(
                query_start_loc=torch.tensor(list(starts), dtype=torch.int32, device=device),
                seq_lens=torch.full((rows,), length, dtype=torch.int32, device=device),
                block_tables=tables,
                slot_mapping=torch.full((tokens,), -1, device=device),
                positions=torch.arange(tokens, device=device) % length,
                max_query_len=max(prompt, 1),
                max_seq_len=length,
                num_decodes=decodes,
                exact=exact,
            )
            ids = torch.zeros(tokens, dtype=torch.int64, device=device)

            def call(batch: AttentionBatch = batch, ids: torch.Tensor = ids, exact: bool = exact) -> Any:
                return model.compute_logits(model.forward(ids, batch, caches)[:256], exact)

            if dry or compiling:
                call()
                seconds.append(1.0)
            else:
                seconds.append(gpu_seconds(call, runs=8))
        name = f"{decodes} decodes of {context}" if decodes else f"prompt of {prompt}"
        yield f"{name}: {seconds[0] * 1e6:.0f} us, exact {seconds[1] * 1e6:.0f} ({seconds[1] / seconds[0] - 1:+.1%})"


def speculation(device: torch.device, dtype: torch.dtype, dry: bool) -> Iterator[str]:
    """Count tokens per second of one and of four streams, with and without proposals, exact and not."""
    model = model_of(TINY if dry else EIGHTH, device, dtype)
    count = 6 if dry else 100
    for streams in (1, 4):
        found = []
        for exact in (False, True):
            for proposes in (False, True):
                asked = _Asked(model, exact, graphs=True, max_num_seqs=64, speculation=proposes)
                for turn in range(1 if dry else 2):
                    for number in range(streams):
                        asked.add(f"{turn} {number}", prompt_of(number, 20 if dry else 200), count, None, 0.0)
                    seconds = asked.run()
                speculator = asked.core.scheduler.speculator
                right = (
                    ""
                    if speculator is None
                    else f" ({speculator.num_accepted}/{speculator.num_proposed} right)"
                )
                kind = f"{'exact' if exact else 'not exact'}{', proposing' if proposes else ''}"
                found.append(f"{kind} {streams * count / seconds:.0f}{right}")
        yield f"{streams} streams, tokens/s: " + "; ".join(found)
