"""Make the inputs of the operations that only some models have: narrow weights, latent attention and delta nets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.operations import BLOCK_SIZE, KernelCall, Maker
from benchmarks.roofline.shapes import CONTEXT, ModelShape, StepLoad
from plumbline_kernels import experts, latent, narrow, swiglu
from plumbline_kernels.attention import AttentionBatch
from plumbline_kernels.delta import DeltaShape, causal_conv, delta_rule

__all__ = ["LATENT", "NET", "SMALL_LATENT", "SMALL_NET", "LatentSizes", "mixers", "narrow_operations"]

KINDS = (
    ("int8", 8, False, None),
    ("int4", 4, False, 128),
    ("e4m3", 8, True, 128),
    ("MXFP4", 4, True, 32),
)
"""Names, bits, whether levels are floats, and the inputs that share a scale (None: all), as checkpoints have them."""
TAPS = 4
"""Of the convolutions of Qwen3-Next and of Mamba 2."""


@dataclass(frozen=True)
class LatentSizes:
    """The sizes of latent attention."""

    heads: int
    rank: int
    rope: int


LATENT, SMALL_LATENT = LatentSizes(128, 512, 64), LatentSizes(8, 64, 16)
"""As DeepSeek V3 has it, and for the comparison with the reference."""
NET, SMALL_NET = DeltaShape(16, 32, 128, 128), DeltaShape(2, 4, 32, 32)
"""As Qwen3-Next has it, and for the comparison."""


def narrow_operations(make: Maker, shape: ModelShape, load: StepLoad) -> Iterator[KernelCall]:
    """Yield the products with narrow weights: the merged projection of a layer, and its experts."""
    outputs = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    for name, bits, floats, group in KINDS:
        group = min(group or shape.hidden, shape.hidden)
        x = make.normal(load.tokens, shape.hidden)
        weight = _narrow(make, (outputs, shape.hidden), bits, floats, group)
        yield KernelCall(f"narrow linear, {name}", narrow.narrow_linear, (x, weight))
    if shape.experts and shape.inner % 32 == 0:
        gate_up = _narrow(make, (shape.experts, 2 * shape.inner, shape.hidden), 4, True, 32)
        down = _narrow(make, (shape.experts, shape.hidden, shape.inner), 4, True, 32)
        scores = make.normal(load.tokens, shape.experts, dtype=torch.float32)
        weights, chosen = experts.route(scores, experts.Routing(shape.top_k))
        x = make.normal(load.tokens, shape.hidden)
        yield KernelCall(
            "narrow experts, MXFP4",
            lambda *given: experts.mix(*given, swiglu.silu_mul),
            (x, weights, chosen, gate_up, None, down, None),
        )


def _narrow(make: Maker, shape: tuple[int, ...], bits: int, floats: bool, group: int) -> narrow.NarrowWeight:
    *outer, outputs, inputs = shape
    # Without NaN, which e4m3 has at 127 of the lower seven bits.
    high = 127 if floats and bits == 8 else 256
    size = (*outer, outputs, inputs * bits // 8)
    levels = torch.randint(0, high, size, dtype=torch.uint8, generator=make.generator, device=make.device)
    if bits == 8:
        levels = levels.view(torch.float8_e4m3fn if floats else torch.int8)
    most = (448.0 if bits == 8 else 6.0) if floats else float(1 << bits - 1)
    factors = (*outer, inputs // group, outputs)
    scales = make.normal(*factors).abs_().mul_(inputs**-0.5 / most)
    shifts = None if floats else make.normal(*factors, scale=0.1 * inputs**-0.5)
    return narrow.NarrowWeight(levels, scales, shifts, bits, floats)


def mixers(
    make: Maker, latents: LatentSizes, net: DeltaShape, load: StepLoad, context: int = CONTEXT
) -> Iterator[KernelCall]:
    """Yield the operations of a layer with latent attention, and of a gated delta net and a state space."""
    sequences, queries = load.sequences, load.prompt or 1
    length = load.prompt or context
    blocks = -(-length // BLOCK_SIZE)
    order = torch.randperm(sequences * blocks, generator=make.generator, device=make.device)
    slots = order.view(sequences, blocks)[:, -1] * BLOCK_SIZE + (length - 1) % BLOCK_SIZE
    batch = AttentionBatch(
        query_start_loc=make.whole(range(0, sequences * queries + 1, queries), torch.int32),
        seq_lens=make.whole([length] * sequences, torch.int32),
        block_tables=order.view(sequences, blocks).int(),
        slot_mapping=slots.long(),
        positions=make.whole([length - 1] * load.tokens),
        max_query_len=queries,
        max_seq_len=length,
        num_decodes=0 if load.prompt else sequences,
        state_rows=make.whole(range(sequences)),
    )
    yield from _latent(make, latents, load, batch, sequences * blocks)
    yield from _net(make, net, load, batch)


def _latent(
    make: Maker, sizes: LatentSizes, load: StepLoad, batch: AttentionBatch, blocks: int
) -> Iterator[KernelCall]:
    def write(kv: Tensor, *given: Any) -> Tensor:
        latent.latent_write(kv, *given)
        return given[-1]

    width = sizes.rank + sizes.rope
    cache = make.normal(blocks, BLOCK_SIZE, 1, width)
    q = make.normal(load.tokens, sizes.heads, width)
    yield KernelCall("latent attention", latent.latent_attention, (q, cache, batch, sizes.rank, width**-0.5))
    kv, norm = make.normal(load.tokens, width), make.normal(sizes.rank, dtype=torch.float32)
    table = make.normal(load.tokens, sizes.rope, dtype=torch.float32)
    numbers = make.whole(range(load.tokens))
    arguments = (kv, norm, 1e-6, table, numbers, numbers, make.full(tuple(cache.shape), 0.0, make.dtype))
    yield KernelCall("latent write", write, arguments)


def _net(make: Maker, net: DeltaShape, load: StepLoad, batch: AttentionBatch) -> Iterator[KernelCall]:
    def conv(x: Tensor, weight: Tensor, states: Tensor, given: AttentionBatch) -> Any:
        return causal_conv(x, weight, states, given), states

    def rule(shape: DeltaShape) -> Any:
        def call(qkv: Tensor, decay: Tensor, strength: Tensor, states: Tensor, given: AttentionBatch) -> Any:
            return delta_rule(qkv, decay, strength, states, given, shape), states

        return call

    weight = make.normal(net.channels, TAPS, dtype=torch.float32, scale=0.5)
    states = make.normal(load.sequences, net.channels, TAPS - 1)
    yield KernelCall(
        "delta convolution", conv, (make.normal(load.tokens, net.channels), weight, states, batch)
    )
    size = (load.sequences, net.value_heads, net.key_dim, net.value_dim)
    space = DeltaShape(1, net.value_heads, net.key_dim, net.value_dim, corrects=False)
    for name, shape in (("delta rule", net), ("state space", space)):
        qkv = make.normal(load.tokens, shape.channels)
        decay = make.normal(load.tokens, net.value_heads, dtype=torch.float32).abs_().neg_()
        strength = make.normal(load.tokens, net.value_heads, dtype=torch.float32).sigmoid_()
        kept = make.normal(*size, dtype=torch.float32, scale=0.1)
        yield KernelCall(name, rule(shape), (qkv, decay, strength, kept, batch))
