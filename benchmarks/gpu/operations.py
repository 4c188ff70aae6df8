"""Make the inputs of each operation for a model's shape and a step, and compare its results with the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.roofline.shapes import CONTEXT, ModelShape, StepLoad
from plumbline.engines.native.engine_config import GPU_BLOCK_SIZE
from plumbline_kernels import _backend, attention, experts, logits, lora, norm, rope_kv, sampling, swiglu

__all__ = ["KernelCall", "Maker", "difference", "on_cpu", "operations", "reference"]

BLOCK_SIZE = GPU_BLOCK_SIZE
RANK = 48
"""Of adapters at the merged projection, as the roofline has it."""


@dataclass(frozen=True)
class KernelCall:
    """One call of the kernels.

    Attributes:
        name: of the operation.
        call: the operation; results that it writes in place are returned as well.
        arguments: its inputs, on the device.
        launches: the launches of the roofline that it consists of, by the beginnings of their names.
    """

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    launches: tuple[str, ...] = ()


class Maker:
    """Make random inputs, the same in each run of the script."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 1) -> None:
        self.device, self.dtype = device, dtype
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
        """Return normal random numbers."""
        found = torch.randn(shape, generator=self.generator, device=self.device, dtype=dtype or self.dtype)
        return found.mul_(scale)

    def full(self, shape: tuple[int, ...], value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return one number many times."""
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def whole(self, values: Any, dtype: torch.dtype = torch.int64) -> Tensor:
        """Return given whole numbers."""
        return torch.tensor(list(values), dtype=dtype, device=self.device)


def operations(
    make: Maker, shape: ModelShape, load: StepLoad, context: int = CONTEXT
) -> Iterator[KernelCall]:
    """Yield the operations of one layer and of the sampling of a step, in the order of a step.

    Args:
        make: makes the inputs.
        shape: of the model.
        load: sequences that are decoded after `context` tokens, or the tokens of one prompt.
        context: tokens in the cache of each decoded sequence.
    """
    tokens = load.tokens
    yield _norm(make, shape, tokens)
    yield _rope(make, shape, tokens)
    yield _attention(make, shape, load, context)
    rows = tokens * shape.top_k
    if shape.experts:
        yield _experts(make, shape, tokens)
    gate_up = make.normal(rows, 2 * shape.inner)
    yield KernelCall("silu_mul", swiglu.silu_mul, (gate_up,), ("silu_mul",))
    yield _adapters(make, shape, tokens)
    yield from _last(make, shape, load.sequences)


def _norm(make: Maker, shape: ModelShape, tokens: int) -> KernelCall:
    x, residual = make.normal(tokens, shape.hidden), make.normal(tokens, shape.hidden, scale=3)
    weight = make.normal(shape.hidden, dtype=torch.float32)
    return KernelCall("add_rms_norm", norm.add_rms_norm, (x, residual, weight, 1e-6), ("add_rms_norm",))


def _rope(make: Maker, shape: ModelShape, tokens: int) -> KernelCall:
    def call(qkv: Tensor, table: Tensor, positions: Tensor, slots: Tensor, *caches: Tensor) -> Any:
        return rope_kv.rope_kv_write(
            qkv, table, positions, slots, *caches, shape.heads, shape.kv_heads
        ), *caches

    blocks = -(-tokens // BLOCK_SIZE)
    caches = [make.full((blocks, BLOCK_SIZE, shape.kv_heads, shape.head_dim), 0.0, make.dtype) for _ in "kv"]
    qkv = make.normal(tokens, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
    table = make.normal(tokens, shape.head_dim, dtype=torch.float32)
    numbers = make.whole(range(tokens))
    # The last token of a step may be padding.
    slots = numbers.clone()
    slots[-1] = -1 if tokens > 1 else 0
    return KernelCall("rope_kv_write", call, (qkv, table, numbers, slots, *caches), ("rope_kv_write",))


def _attention(make: Maker, shape: ModelShape, load: StepLoad, context: int) -> KernelCall:
    sequences, length = load.sequences, load.prompt or context
    blocks = -(-length // BLOCK_SIZE)
    # Blocks of a sequence are not neighbours, as in a cache that is in use.
    order = torch.randperm(sequences * blocks, generator=make.generator, device=make.device)
    queries = load.prompt or 1
    batch = attention.AttentionBatch(
        query_start_loc=make.whole(range(0, sequences * queries + 1, queries), torch.int32),
        seq_lens=make.whole([length] * sequences, torch.int32),
        block_tables=order.view(sequences, blocks).int(),
        slot_mapping=make.whole([-1] * load.tokens),
        positions=make.whole([0] * load.tokens),
        max_query_len=queries,
        max_seq_len=length,
        num_decodes=0 if load.prompt else sequences,
    )
    size = (sequences * blocks, BLOCK_SIZE, shape.kv_heads, shape.head_dim)
    q = make.normal(load.tokens, shape.heads, shape.head_dim)
    keys, values = make.normal(*size), make.normal(*size, scale=0.5)
    kind = "prefill" if load.prompt else "decode"
    names = (f"attention {kind}",) if load.prompt else ("attention decode", "attention reduce")
    arguments = (q, keys, values, batch, shape.head_dim**-0.5)
    return KernelCall(f"attention {kind}", attention.paged_attention, arguments, names)


def _experts(make: Maker, shape: ModelShape, tokens: int) -> KernelCall:
    gate_up = make.normal(shape.experts, 2 * shape.inner, shape.hidden, scale=shape.hidden**-0.5)
    down = make.normal(shape.experts, shape.hidden, shape.inner, scale=shape.inner**-0.5)
    scores = make.normal(tokens, shape.experts, dtype=torch.float32)
    weights, chosen = experts.route(scores, experts.Routing(shape.top_k))
    arguments = (make.normal(tokens, shape.hidden), weights, chosen, gate_up, None, down, None)
    # The activation is an operation of its own in the table.
    return KernelCall(
        "experts", lambda *given: experts.mix(*given, swiglu.silu_mul), arguments, ("experts", "silu_mul")
    )


def _adapters(make: Maker, shape: ModelShape, tokens: int) -> KernelCall:
    outputs = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    down = make.normal(1, RANK, shape.hidden, scale=shape.hidden**-0.5)
    up = make.normal(1, outputs, RANK, scale=RANK**-0.5)
    x, y = make.normal(tokens, shape.hidden), make.normal(tokens, outputs)
    adapted = lora.AdapterRows(make.whole(range(tokens)), (0,), (0, tokens))
    return KernelCall("lora_add", lora.lora_add, (x, y, down, up, adapted), ("lora",))


def _last(make: Maker, shape: ModelShape, rows: int) -> Iterator[KernelCall]:
    def masked(scores: Tensor, mask: Tensor) -> Tensor:
        logits.apply_bitmask(scores, mask)
        return scores

    def penalised(scores: Tensor, *given: Tensor) -> Tensor:
        logits.apply_penalties(scores, *given)
        return scores

    scores = make.normal(rows, shape.vocab, dtype=torch.float32, scale=3)
    words = make.normal(rows, -(-shape.vocab // 32), dtype=torch.float32, scale=2**29).int()
    yield KernelCall("apply_bitmask", masked, (scores.clone(), words))
    seen = make.normal(rows, shape.vocab, dtype=torch.float32) > 1
    counts = make.normal(rows, shape.vocab, dtype=torch.float32, scale=2).clamp(min=0).int()
    penalties = [make.full((rows,), value) for value in (1.2, 0.5, 0.3)]
    yield KernelCall("apply_penalties", penalised, (scores.clone(), seen, counts, *penalties))
    filters = (make.full((rows,), 0, torch.int32), make.full((rows,), 0.9), make.full((rows,), 0.0))
    numbers = make.whole(range(rows))
    yield KernelCall(
        "sample", sampling.sample, (scores, make.full((rows,), 0.8), *filters, numbers, numbers), ("sample",)
    )


def on_cpu(value: Any) -> Any:
    """Return arguments on the CPU, with floating-point numbers in fp32."""
    if isinstance(value, Tensor):
        found = value.detach().to("cpu", copy=True)
        return found.float() if found.is_floating_point() else found
    if isinstance(value, tuple | list):
        return type(value)(on_cpu(each) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{each.name: on_cpu(getattr(value, each.name)) for each in fields(value) if each.init}
        )
    return value


@contextmanager
def reference() -> Iterator[None]:
    """Run the reference implementations of tensors on the CPU, under the interpreter as well."""
    forced, _backend._FORCED = _backend._FORCED, False
    try:
        yield
    finally:
        _backend._FORCED = forced


def difference(found: Any, expected: Any) -> float:
    """Return how far results are from the expected ones.

    Whole numbers, which are drawn tokens, give the share that differs. Others give the largest difference as a share of
    the largest expected value; infinite values must be in the same places.
    """
    if not isinstance(expected, Tensor):
        return max(difference(one, other) for one, other in zip(found, expected, strict=True))
    found, expected = found.to("cpu"), expected.to("cpu")
    if not expected.is_floating_point():
        return float((found != expected).float().mean())
    found = found.float()
    finite = expected.isfinite()
    if found.shape != expected.shape or not torch.equal(finite, found.isfinite()):
        return float("inf")
    largest = expected[finite].abs().max().clamp(min=1e-6)
    return float((found - expected)[finite].abs().max() / largest)
