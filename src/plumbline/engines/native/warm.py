"""Run steps of every kind before the first request, so that no request waits for a kernel to be compiled.

Triton compiles a kernel for each set of types, constants and alignments of its arguments. Which of them a model's steps
need depends on numbers of rows, on the longest context and on what requests ask for, so the steps here go through all
of these. A variant that a later step compiles is a defect: the engine logs and counts it (`EngineStats.late_variants`),
and tests/kernels/test_ready.py requires that there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.models.adapters.layers import KernelAdapters
from plumbline.engines.native.runner import ModelRunner
from plumbline_kernels.attention import AttentionBatch
from plumbline_kernels.lora import AdapterRows, padded_rank
from plumbline_kernels.sampling import apply_bitmask, apply_penalties, sample

__all__ = ["warm_up"]

_GROUPS = (1, 17, 33, 65, 129)
"""Groups of rows with one adapter: between them the programs that share a sum become fewer."""


def warm_up(runner: ModelRunner, config: EngineConfig, *, max_rank: int = 0, images: bool = False) -> None:
    """Run steps that need every variant of every kernel; no request may run.

    Their tokens have no place in the cache, so they leave nothing behind.

    Args:
        runner: of the model.
        config: its limits.
        max_rank: of its adapters; 0 without adapters.
        images: whether requests may have images, also if the runner has no encoder.
    """
    with torch.inference_mode():
        for batch in _batches(config, runner.device, reach=images or runner.has_images):
            runner.try_step(batch, config.max_num_seqs)
        if max_rank:
            _warm_adapters(runner, config, max_rank)
        _warm_sampling(runner)


def _batches(config: EngineConfig, device: torch.device, *, reach: bool) -> Iterator[AttentionBatch]:
    """Yield steps of one decode by the longest context, prompts by their lengths, and steps of both."""
    length = config.max_model_len
    for longest in _powers(length):
        yield _batch(config, device, 1, 0, longest)
    for count in _powers(config.max_num_batched_tokens):
        yield _batch(config, device, 0, count, min(count, length))
    yield _batch(config, device, 2, 5, length)
    if reach:
        chunk = _batch(config, device, 0, 5, length)
        yield replace(chunk, reach=chunk.positions.clone())


def _powers(most: int) -> list[int]:
    """Return the powers of two and their successors up to `most`, and `most`."""
    powers = [1 << power for power in range(most.bit_length())]
    return sorted({count for power in powers for count in (power, power + 1) if count <= most} | {most})


def _batch(
    config: EngineConfig, device: torch.device, decodes: int, prompt: int, longest: int
) -> AttentionBatch:
    """Return a step of decodes and a prompt whose tokens are not written, in a batch with so long a context."""
    sequences, tokens = decodes + bool(prompt), decodes + prompt
    starts = [*range(decodes), *([decodes] if prompt else []), tokens]
    lengths = [1] * decodes + ([min(prompt, config.max_model_len)] if prompt else [])
    positions = torch.arange(tokens, device=device).clamp_(max=config.max_model_len - 1)
    return AttentionBatch(
        query_start_loc=torch.tensor(starts, dtype=torch.int32, device=device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        block_tables=torch.zeros(
            sequences, -(-longest // config.block_size), dtype=torch.int32, device=device
        ),
        slot_mapping=torch.full((tokens,), -1, device=device),
        positions=positions,
        max_query_len=max(prompt, 1),
        max_seq_len=longest,
        num_decodes=decodes,
        exact=config.batch_invariant,
        state_rows=torch.zeros(sequences, dtype=torch.int64, device=device),
    )


def _warm_adapters(runner: ModelRunner, config: EngineConfig, max_rank: int) -> None:
    """Give the layers a slot of zeros, of the smallest and the largest rank, for steps of few and of many groups."""
    layers = [place.layer for place in runner.places]
    for rank in sorted({padded_rank(1), padded_rank(max_rank)}):
        for layer in layers:
            assert isinstance(layer.adapters, KernelAdapters)
            outputs, inputs = layer.shape
            down, up = torch.zeros(rank, inputs), torch.zeros(outputs, rank)
            pair = down.to(runner.device, runner.dtype), up.to(runner.device, runner.dtype)
            layer.adapters.put(0, pair)
        for groups in _GROUPS:
            for rows in {groups, max(groups, 65)}:
                if rows > config.max_num_batched_tokens:
                    continue
                adapted = AdapterRows(
                    torch.arange(rows, device=runner.device), (0,) * groups, (*range(groups), rows)
                )
                batch = _batch(config, runner.device, 0, rows, min(rows, config.max_model_len))
                runner.try_step(replace(batch, adapters=adapted), 1)
        for layer in layers:
            assert layer.adapters is not None
            layer.adapters.clear(0)


def _warm_sampling(runner: ModelRunner) -> None:
    """Draw from two rows, with penalties and a grammar's mask."""
    rows, vocab, device = 2, runner.vocab_size, runner.device
    logits = torch.zeros(rows, vocab, device=device)
    ones, seeds = torch.ones(rows, device=device), torch.zeros(rows, dtype=torch.int64, device=device)
    seen = torch.zeros(rows, vocab, dtype=torch.bool, device=device)
    apply_penalties(logits, seen, seen.to(torch.int32), ones, ones, ones)
    apply_bitmask(logits, torch.zeros(rows, -(-vocab // 32), dtype=torch.int32, device=device))
    sample(logits, ones, seeds.to(torch.int32), ones / 2, ones, seeds, seeds)
