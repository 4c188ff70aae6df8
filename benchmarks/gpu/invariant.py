"""Compare bits over batches on a GPU, and the time of exact kernels with that of the others.

`python -m benchmarks.gpu.invariant` prints a line for each comparison, bits first. A part that fails leaves the others
their turn. Processes compile the kernels of all parts at first. `--dry-run` takes tiny shapes under Triton's
interpreter, which adds up products in another order, so bits may differ there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.invariant_model import answers, speculation, step_times
from benchmarks.gpu.timing import gpu_seconds
from plumbline_kernels import product
from plumbline_kernels.attention import AttentionBatch, _exact, paged_attention

__all__ = ["ExactRun"]

LAYER = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
"""Outputs and inputs of the products of one layer of an 8 B model."""
OPTIONS: tuple[tuple[int, int, int, dict[str, Any]], ...] = (
    (128, 32, 8, {}),
    (128, 40, 8, {"softcap": 30.0}),
    (64, 64, 8, {"sinks": True, "sliding_window": 128}),
    (256, 16, 8, {}),
)
"""Head size, heads, key heads and what else there is."""
DECODES = ((64, 4, 3), (16, 4, 4), (16, 2, 4), (16, 1, 4))
"""Rows, warps and stages of decodes that are tried."""


class ExactRun:
    """The device, its type, and the sizes.

    Args:
        dry: whether there is no GPU.
        compiling: whether calls run once, to compile their kernels.
    """

    def __init__(self, dry: bool, compiling: bool = False) -> None:
        self.dry, self.compiling = dry, compiling
        self.device = torch.device("cpu" if dry else "cuda")
        self.dtype = torch.float16 if dry else torch.bfloat16
        self._generator = torch.Generator(self.device).manual_seed(1)

    def randn(self, *shape: int) -> Tensor:
        """Return normal numbers."""
        return torch.randn(shape, generator=self._generator, device=self.device).to(self.dtype)

    def indices(self, values: Any) -> Tensor:
        """Return int32 numbers on the device."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def microseconds(self, call: Callable[[], Any]) -> float:
        """Return the time of a call; nan where it is not measured."""
        if self.dry or self.compiling:
            call()
            return float("nan")
        return gpu_seconds(call, runs=8) * 1e6


def products(bench: ExactRun) -> Iterator[str]:
    """Compare rows of a product with those of all rows, and with cuBLAS."""
    layer = {"qkv": (96, 64), "down": (64, 80)} if bench.dry else LAYER
    most = 70 if bench.dry else 2048
    for name, (outputs, inputs) in layer.items():
        x, weight = bench.randn(most, inputs), bench.randn(outputs, inputs)
        with patch.object(product, "_MOST_ROWS", 0):
            whole = product.product(x, weight)
            counts = [1, 2, 8, 16, 17, 32, 63, 64, 65] + (
                [] if bench.dry else [128, 129, 200, 256, 512, 1000]
            )
            wrong = [
                count
                for count in counts
                if not torch.equal(product.product(x[:count], weight), whole[:count])
            ]
        agreed: list[bool] = []
        began = time.monotonic()
        if not bench.dry and not bench.compiling:
            agreed = product.agreeing_rows(weight, None)
        of = f"cuBLAS agrees for {sum(agreed)} of {max(len(agreed) - 65, 0)} numbers of rows"
        differ = [count for count, fine in enumerate(agreed) if count > 64 and not fine]
        yield f"{name}: {verdict(wrong)}; {of} ({time.monotonic() - began:.2f} s), not for {differ[:8]}"
    for rows in (1,) if bench.dry else (1, 8, 16, 32, 64, 128, 256, 1024, 2048):
        ours, kernel, theirs = [], [], []
        for outputs, inputs in layer.values():
            x, weight = bench.randn(rows, inputs), bench.randn(outputs, inputs)
            ours.append(bench.microseconds(partial(product.product, x, weight)))
            theirs.append(bench.microseconds(partial(F.linear, x, weight)))
            with patch.object(product, "_MOST_ROWS", 0):
                kernel.append(bench.microseconds(partial(product.product, x, weight)))
        each = " ".join(f"{a:.0f}/{b:.0f}" for a, b in zip(ours, theirs, strict=True))
        ratio = sum(ours) / sum(theirs)
        yield f"{rows} rows: {each} us of cuBLAS, together {ratio:.3f}; the kernel {sum(kernel) / sum(theirs):.3f}"


class _Sequences:
    """Keys, values and queries of sequences in a paged cache."""

    def __init__(self, bench: ExactRun, lengths: list[int], heads: int, kv_heads: int, size: int) -> None:
        self._bench, self.lengths = bench, lengths
        counts = [-(-length // 16) for length in lengths]
        self._k, self._v = (bench.randn(sum(counts), 16, kv_heads, size) for _ in "kv")
        order = torch.randperm(sum(counts), device=bench.device).int()
        self._tables = torch.zeros(len(lengths), max(counts), dtype=torch.int32, device=bench.device)
        for index, part in enumerate(torch.split(order, counts)):
            self._tables[index, : len(part)] = part
        self.q = [2 * bench.randn(length, heads, size) for length in lengths]

    def attend(
        self, parts: list[tuple[int, int, int]], exact: bool = True, **options: Any
    ) -> Callable[[], Tensor]:
        """Return what attends with queries of (sequence, start, end)."""
        counts = [end - start for _, start, end in parts]
        of = torch.tensor([index for index, _, _ in parts], device=self._bench.device)
        zeros = torch.zeros(sum(counts), dtype=torch.int64, device=self._bench.device)
        batch = AttentionBatch(
            query_start_loc=self._bench.indices([0, *torch.tensor(counts).cumsum(0).tolist()]),
            seq_lens=self._bench.indices([end for _, _, end in parts]),
            block_tables=self._tables[of],
            slot_mapping=zeros,
            positions=zeros,
            max_query_len=max(counts),
            max_seq_len=max(end for _, _, end in parts),
            num_decodes=next((index for index, count in enumerate(counts) if count != 1), len(counts)),
            exact=exact,
        )
        rows = torch.cat([self.q[index][start:end] for index, start, end in parts])
        return lambda: paged_attention(rows, self._k, self._v, batch, 0.09, **options)


def queries(bench: ExactRun, number: int) -> Iterator[str]:
    """Compare queries that are decoded, alone and among others, or parts of prompts, with those of whole prompts."""
    size, heads, kv_heads, options = (32, 4, 2, {}) if bench.dry else OPTIONS[number]
    options = {
        name: torch.randn(heads, device=bench.device) if value is True else value
        for name, value in options.items()
    }
    lengths = [70, 33, 5, 18] if bench.dry else [5000, 1, 17, 513, 512, 2049, 1024, 700]
    given = _Sequences(bench, lengths, heads, kv_heads, size)
    whole = [given.attend([(i, 0, length)], **options)() for i, length in enumerate(lengths)]
    last = [(i, length - 1, length) for i, length in enumerate(lengths)]
    third = lengths[0] // 3
    groups = {
        "decodes": last,
        "many": last * (2 if bench.dry else 40),
        "mixed": [last[3], (0, third, 2 * third + 1), (2, 0, 3)],
        "verified": [(0, lengths[0] - 5, lengths[0])],
        "early": [(0, at, at + 1) for at in range(0, lengths[0], 9 if bench.dry else 97)],
        **{f"alone {part[0]}": [part] for part in last},
    }
    tries = DECODES if number == 0 else DECODES[:1]
    for rows, warps, stages in tries:
        config = _exact.config_of(True, 4, size) | {"block_m": rows, "num_warps": warps, "num_stages": stages}
        with patch.object(_exact, "config_of", choosing(config if number == 0 else None)):
            wrong = [
                name
                for name, parts in groups.items()
                if not torch.equal(
                    given.attend(parts, **options)(), torch.cat([whole[i][a:b] for i, a, b in parts])
                )
            ]
        yield f"heads of {size} {list(options)}, decodes by {rows, warps, stages}: {verdict(wrong)}"


def choosing(config: dict[str, int] | None) -> Callable[..., dict[str, int]]:
    """Return a `config_of` with other tiles of decodes."""
    found = _exact.config_of
    return lambda decode, *rest: config if decode and config else found(decode, *rest)


def decode_times(bench: ExactRun, keys: int) -> Iterator[str]:
    """Time decodes of 4,096 tokens by tiles, in segments of so many keys, beside the other kernel."""
    for rows in (1,) if bench.dry else (1, 8, 64, 256):
        length = 40 if bench.dry else 4096
        given = _Sequences(bench, [length] * rows, *((4, 2, 32) if bench.dry else (32, 8, 128)))
        parts = [(index, length - 1, length) for index in range(rows)]
        found = []
        for tiles in DECODES:
            values = dict(zip(("block_m", "num_warps", "num_stages"), tiles, strict=True))
            config = _exact.config_of(True, 4, 128) | values
            with (
                patch.object(_exact, "config_of", choosing(config)),
                patch.object(_exact, "_LENGTH", keys),
            ):
                found.append(f"{tiles} {bench.microseconds(given.attend(parts)):.0f}")
        today = bench.microseconds(given.attend(parts, exact=False))
        yield f"{rows} decodes by {keys} keys: {today:.0f} us; exact " + ", ".join(found)


def prompt_times(bench: ExactRun) -> Iterator[str]:
    """Time prompts by the length of segments."""
    for length in (40,) if bench.dry else (2048, 16384):
        given = _Sequences(bench, [length], *((4, 2, 32) if bench.dry else (32, 8, 128)))
        found = []
        for keys in (256, 512):
            with patch.object(_exact, "_LENGTH", keys):
                found.append(f"{keys} {bench.microseconds(given.attend([(0, 0, length)])):.0f}")
        today = bench.microseconds(given.attend([(0, 0, length)], exact=False))
        yield f"prompt of {length}: {today:.0f} us; exact " + ", ".join(found)


def verdict(wrong: list[Any]) -> str:
    """Return whether bits are equal, or where they differ."""
    return f"OTHER BITS {wrong[:6]} in all {len(wrong)}" if wrong else "the same bits"


PARTS: dict[str, Callable[[ExactRun], Iterator[str]]] = {
    "queries": lambda bench: queries(bench, 0),
    "capped": lambda bench: queries(bench, 1),
    "answers": lambda bench: answers(bench.device, bench.dtype, bench.dry),
    "decodes 512": lambda bench: decode_times(bench, 512),
    "steps": lambda bench: step_times(bench.device, bench.dtype, bench.dry, bench.compiling),
    "products": products,
    "speculation": lambda bench: speculation(bench.device, bench.dtype, bench.dry),
    "decodes 256": lambda bench: decode_times(bench, 256),
    "prompts": prompt_times,
    "sinks": lambda bench: queries(bench, 2),
    "wide": lambda bench: queries(bench, 3),
}


def main() -> None:
    """Run all parts, or compile those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--compile", choices=PARTS)
    options = parser.parse_args()
    began = time.monotonic()
    if not options.dry_run and not options.compile:
        command = [sys.executable, "-m", "benchmarks.gpu.invariant", "--compile"]
        null = subprocess.DEVNULL
        for each in [subprocess.Popen([*command, name], stdout=null, stderr=null) for name in PARTS]:
            each.wait()
    bench = ExactRun(options.dry_run, bool(options.compile))
    for name, part in PARTS.items():
        if options.compile in (None, name):
            try:
                with torch.inference_mode():
                    for line in part(bench):
                        print(f"[{time.monotonic() - began:5.1f}] {name}: {line}", flush=True)
            except Exception:
                traceback.print_exc()
                print(f"[{time.monotonic() - began:5.1f}] {name}: FAILED", flush=True)
            if not options.dry_run:
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
