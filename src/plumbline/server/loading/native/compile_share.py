"""Compile a share of the GPU kernels of a model into Triton's cache: `python -m …compile_share JOB SHARE COUNT`.

Each of several processes goes through the same steps of the model and compiles the variants of its share, so that none
waits for another. Lines on standard output say which kernel begins and ends, for `compilers.Compilers`.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["BEGINS", "ENDS", "FOUND", "Job", "compile_share"]

BEGINS, ENDS, FOUND = "begins ", "ends ", "found "
"""What lines begin with: before and after a variant is compiled, and after one was found in the cache."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The model and the limits that decide which variants of kernels its steps need."""

    folder: str
    capability: int
    """Of the GPU, such as 90."""
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    max_model_len: int
    dtype: str
    """Of weights and activations, such as `bfloat16`."""
    bits: int | None = None
    """See `load_model`."""
    max_rank: int = 0
    """Of adapters; 0 without adapters."""
    max_loras: int = 1
    images: bool = False
    """Whether requests have images."""
    exact: bool = False
    """Whether batches are `--batch-invariant`."""


def compile_share(job: Job, share: int, count: int) -> None:
    """Compile what steps of a model need and is in share number `share` of `count`; prints lines.

    Layers of a kind need the same variants, so only the first ones are loaded.

    Raises:
        UnsupportedModelError, WeightsError: our engine does not run it.
    """
    import torch
    import triton

    from plumbline.engines.native.adapter_table import AdapterTable
    from plumbline.engines.native.engine_config import EngineConfig
    from plumbline.engines.native.graphs import Capture, CompileRecorder
    from plumbline.engines.native.models import load_model
    from plumbline.engines.native.runner import ModelRunner
    from plumbline.engines.native.warm import warm_up
    from plumbline_kernels.without_gpu import compiling_for

    def is_mine(name: str, key: str) -> bool:
        if zlib.crc32(f"{name} {key}".encode()) % count != share:
            return False
        _say(BEGINS + name)
        return True

    def note(*, src: Any, cache_hit: bool, **_: Any) -> None:
        _say((FOUND if cache_hit else ENDS) + src.name)

    triton.knobs.compilation.listener = note
    with compiling_for(job.capability, is_mine=is_mine), torch.inference_mode():
        model = load_model(
            Path(job.folder),
            dtype=getattr(torch, job.dtype),
            max_model_len=job.max_model_len,
            bits=job.bits,
            sample=True,
        )
        blocks = -(-job.max_model_len // job.block_size)
        config = EngineConfig(
            max_model_len=job.max_model_len,
            num_blocks=blocks,
            block_size=job.block_size,
            max_num_seqs=job.max_num_seqs,
            max_num_batched_tokens=job.max_num_batched_tokens,
            batch_invariant=job.exact,
        )
        runner = ModelRunner(
            model,
            num_blocks=1,
            block_size=config.block_size,
            device=torch.device("cpu"),
            num_states=1,
            capture=Capture(CompileRecorder(), config.max_num_seqs, blocks, job.exact),
            exact=job.exact,
        )
        if job.max_rank:
            AdapterTable(model, capacity=job.max_loras, max_rank=job.max_rank)
        assert runner.graphs is not None
        runner.graphs.record_all()
        warm_up(runner, config, max_rank=job.max_rank, images=job.images)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    compile_share(msgspec.json.decode(sys.argv[1], type=Job), int(sys.argv[2]), int(sys.argv[3]))
