"""Measure decode steps while images are encoded, on the stream of the steps and on one of their own.

    python -m benchmarks.gpu.images

Rows and tokens must be the same bits in every arrangement; random weights, a text like Llama 3.2 1B and the tower of
Qwen2-VL. Under torch's sanitizer for streams an encoder without `SideStream` is a race and one with it is not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.cuda import GRAPH_PRIORITY, SideStream
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.graphs import Capture, CudaRecorder
from plumbline.engines.native.models import describe
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.loading.model_folder import build
from plumbline.engines.native.models.vision.families.qwen import read_qwen2
from plumbline.engines.native.models.vision.tower import TowerEncoder
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.native.warm import warm_up
from plumbline.port.engine import GenerateRequest
from plumbline.port.sampling_params import SamplingParams

_TEXT = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}
_TINY_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 256,
}
_TOWER = {
    "depth": 32,
    "embed_dim": 1280,
    "num_heads": 16,
    "mlp_ratio": 4,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_TINY_TOWER = {"depth": 2, "embed_dim": 32, "num_heads": 1, "mlp_ratio": 2}


class Bench:
    """A text model and a tower with random weights."""

    def __init__(self, device: torch.device, *, tiny: bool) -> None:
        self.device, self.tiny = device, tiny
        self.dtype = torch.float32 if tiny else torch.bfloat16
        generator = torch.Generator(device).manual_seed(1)

        def fetch(name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
            if name.endswith("norm.weight"):
                return torch.ones(shape, dtype=dtype or self.dtype, device=device)
            drawn = torch.empty(shape, device=device).normal_(0.0, 0.02, generator=generator)
            return drawn.to(dtype or self.dtype)

        text = {"model_type": "qwen3", **_TEXT, **(_TINY_TEXT if tiny else {})}
        description = describe(text)
        self.model = build(description, fetch, self.dtype, device)
        config = {
            "model_type": "qwen2_vl",
            "image_token_id": 5,
            "vision_config": {**_TOWER, **(_TINY_TOWER if tiny else {}), "hidden_size": text["hidden_size"]},
        }
        vision = read_qwen2(Fields(config), description)
        self.tower = TowerEncoder(vision, lambda name, shape: fetch(name, shape), self.dtype)
        side = 56 if tiny else 1344
        # The CPU draws them, as a preparation leaves them there.
        self.pixels = torch.randn(3, side, side, generator=torch.Generator().manual_seed(2))

    def encode(self) -> Tensor:
        """Encode the image on the stream of the thread."""
        return self.tower.encode(self.pixels)

    def core(self, priority: int) -> EngineCore:
        """Return an engine core whose decodes are graphs of this priority."""
        config = EngineConfig(max_model_len=4096, num_blocks=256 if self.tiny else 4096, max_num_seqs=8)
        recorder = CudaRecorder(priority) if self.device.type == "cuda" else None
        runner = ModelRunner(
            self.model,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            device=self.device,
            capture=None if recorder is None else Capture(recorder, 8, config.blocks_per_sequence),
        )
        if runner.graphs is not None:
            runner.graphs.record_all()
            warm_up(runner, config)
        return EngineCore(config, runner, frozenset())


def steps(bench: Bench, core: EngineCore, encode: Callable[[], Tensor] | None, count: int) -> dict[str, Any]:
    """Decode eight answers while a thread encodes one image after the other; returns times and the tokens."""
    for number in range(8):
        sampling = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
        prompt = [(7 * number + place) % 200 for place in range(8)]
        core.add(GenerateRequest(request_id=str(number), prompt_token_ids=prompt, sampling=sampling))
    tokens: dict[str, list[int]] = {str(number): [] for number in range(8)}

    def step() -> None:
        for name, chunk in core.step():
            tokens[name] += chunk.token_ids

    for _ in range(10):
        step()
    ended, times, rows = threading.Event(), [], []
    images: list[float] = []

    def loop() -> None:
        assert encode is not None
        while not ended.is_set():
            began = time.perf_counter()
            rows.append(encode())
            if bench.device.type == "cuda":
                mark = torch.cuda.Event(blocking=True)
                mark.record()
                mark.synchronize()
            images.append(time.perf_counter() - began)
            del rows[1:-1]

    thread = threading.Thread(target=loop)
    if encode is not None:
        thread.start()
    while core.has_work:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    ended.set()
    if encode is not None:
        thread.join()
    times.sort()
    return {
        "step_ms": {
            "median": round(1e3 * times[len(times) // 2], 3),
            "p95": round(1e3 * times[int(0.95 * len(times))], 3),
            "max": round(1e3 * times[-1], 3),
            "sum": round(1e3 * sum(times), 1),
        },
        "image_ms": round(1e3 * sorted(images)[len(images) // 2], 2) if images else None,
        "images": len(images),
        "tokens": tokens,
        "rows": [rows[0], rows[-1]] if rows else [],
    }


def compare(bench: Bench, count: int) -> bool:
    """Print the times of each arrangement and whether tokens and rows are the same."""
    is_gpu = bench.device.type == "cuda"
    aside = SideStream(bench.device) if is_gpu else None

    def own() -> Tensor:
        return bench.encode() if aside is None else aside.run(bench.encode)

    arrangements: list[tuple[str, int, Callable[[], Tensor] | None]] = [
        ("no images", GRAPH_PRIORITY, None),
        ("one stream (before)", 0, bench.encode),
        ("own stream, graphs of priority 0", 0, own),
        ("own stream, graphs of high priority", GRAPH_PRIORITY, own),
    ]
    alone = bench.encode()
    expected: Any = None
    good = True
    for name, priority, encode in arrangements:
        try:
            core = bench.core(priority)
            steps(bench, core, encode, 20)
            found = steps(bench, core, encode, count)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}"[:400], flush=True)
            good = False
            continue
        tokens, rows = found.pop("tokens"), found.pop("rows")
        expected = expected or tokens
        found["same_tokens"] = tokens == expected
        found["same_rows"] = all(torch.equal(each, alone) for each in rows)
        good &= found["same_tokens"] and found["same_rows"]
        print(json.dumps({"arrangement": name, **found}), flush=True)
    return good


def sanitized() -> None:
    """Read rows of another stream with and without waiting for it, under torch's sanitizer; prints what it found."""
    device = torch.device("cuda")
    bench = Bench(device, tiny=True)
    aside, other = SideStream(device), torch.cuda.Stream()
    found = {}
    for name in ("side stream", "no wait"):
        errors: Any = None
        try:
            for _ in range(3):
                if name == "side stream":
                    rows = aside.run(bench.encode)
                else:
                    with torch.cuda.stream(other):
                        rows = bench.encode()
                torch.cat([rows[:1], rows[1:]])
                del rows
        except Exception as error:  # The sanitizer raises errors of its own.
            errors = type(error).__name__
        found[name] = errors
    print(json.dumps({"sanitizer": found, "passed": not found["side stream"] and bool(found["no wait"])}))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.images", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on a CPU; no figures")
    parser.add_argument("--sanitized", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.sanitized:
        sanitized()
        return 0
    bench = Bench(torch.device("cpu" if args.dry_run else "cuda"), tiny=args.dry_run)
    good = compare(bench, 40 if args.dry_run else 400)
    if not args.dry_run:
        command = [sys.executable, "-m", "benchmarks.gpu.images", "--sanitized"]
        environment = {"TORCH_CUDA_SANITIZER": "1"}
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
        )
        print(done.stdout[-500:] or done.stderr[-800:], flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
