"""Start the engine on a GPU with a cold and with a warm cache of kernels, and see what ends a device.

    python -m benchmarks.gpu.start

Processes compile the kernels of the pocket model without touching the GPU. The start afterwards must find every variant
in the cache, and one with an empty cache takes them one after the other. Then one process makes the GPU run out of
memory, which it survives, and fail an assertion, which it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch
import triton

from plumbline.engines.native.adapter_table import AdapterTable
from plumbline.engines.native.cuda import device_works
from plumbline.engines.native.engine_config import GPU_BLOCK_SIZE, EngineConfig
from plumbline.engines.native.graphs import Capture, CudaRecorder
from plumbline.engines.native.models import load_model
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.native.warm import warm_up
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.native.compile_share import ENDS, FOUND, Job, compile_share
from plumbline.server.loading.native.compilers import Compilers
from plumbline_kernels._backend import capability_of

RANK = 8


def job(capability: int) -> Job:
    """Return the pocket model with the limits of a server."""
    return Job(
        folder=str(MODEL_DIR),
        capability=capability,
        max_num_seqs=64,
        max_num_batched_tokens=1024,
        block_size=GPU_BLOCK_SIZE,
        max_model_len=8192,
        dtype="bfloat16",
        max_rank=RANK,
        max_loras=4,
    )


def start(wanted: Job, *, on_gpu: bool) -> dict[str, Any]:
    """Run the steps of a start; returns how many variants were compiled and found, and the seconds."""
    hits: list[bool] = []
    triton.knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(bool(cache_hit))
    began = time.perf_counter()
    if on_gpu:
        device = torch.device("cuda")
        model = load_model(MODEL_DIR, torch.bfloat16, device, max_model_len=wanted.max_model_len)
        config = EngineConfig(
            max_model_len=wanted.max_model_len,
            num_blocks=1024,
            block_size=wanted.block_size,
            max_num_seqs=wanted.max_num_seqs,
            max_num_batched_tokens=wanted.max_num_batched_tokens,
        )
        runner = ModelRunner(
            model,
            num_blocks=1024,
            block_size=config.block_size,
            device=device,
            num_states=config.max_num_seqs,
            capture=Capture(CudaRecorder(), config.max_num_seqs, config.blocks_per_sequence),
        )
        AdapterTable(model, capacity=wanted.max_loras, max_rank=RANK)
        assert runner.graphs is not None
        runner.graphs.record_all()
        warm_up(runner, config, max_rank=RANK)
        torch.cuda.synchronize()
    else:
        with patch("plumbline.server.loading.native.compile_share._say") as said:
            compile_share(wanted, 0, 1)
        lines = [call.args[0] for call in said.call_args_list]
        hits = [line.startswith(FOUND) for line in lines if line.startswith((ENDS, FOUND))]
    seconds = round(time.perf_counter() - began, 1)
    return {"compiled": hits.count(False), "found": hits.count(True), "seconds": seconds}


def devices() -> dict[str, bool]:
    """Return whether the GPU works after two errors."""
    device, found = torch.device("cuda"), {}
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device=device)
    except RuntimeError:
        found["works after running out of memory"] = device_works(device)
    try:
        torch.zeros(4, device=device)[torch.tensor([9], device=device)].sum().item()
    except RuntimeError:
        found["works after a failed assertion"] = device_works(device)
    return found


def _part(name: str, folder: str) -> None:
    """Print what a part of the script finds in a process of its own, with a cache in `folder`."""
    environment = os.environ | {"TRITON_CACHE_DIR": folder}
    command = [sys.executable, "-m", "benchmarks.gpu.start", "--part", name]
    if "--dry-run" in sys.argv:
        command.append("--dry-run")
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        print(name, *(lines or [done.stderr[-600:]]), flush=True)
    except subprocess.TimeoutExpired:
        print(name, "takes longer than 60 s", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.start", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="for sm_90, without a GPU; starts run nothing")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    wanted = job(90 if args.dry_run else capability_of(torch.device("cuda")))
    if args.part == "processes":
        began = time.perf_counter()
        compilers = Compilers(wanted)
        found = compilers.wait()
        seconds = round(time.perf_counter() - began, 1)
        print(json.dumps({**found._asdict(), "processes": len(compilers._processes), "seconds": seconds}))
    elif args.part == "devices":
        print(json.dumps(devices()))
    elif args.part:
        print(json.dumps(start(wanted, on_gpu=not args.dry_run)))
    else:
        with tempfile.TemporaryDirectory() as warm, tempfile.TemporaryDirectory() as cold:
            for name, folder in (("processes", warm), ("start, warm", warm), ("start, cold", cold)):
                _part(name, folder)
            if not args.dry_run:
                _part("devices", cold)
    return 0


if __name__ == "__main__":
    sys.exit(main())
