"""Fetch the weights of mixers."""

from __future__ import annotations

import torch
from torch import Tensor

from plumbline.engines.native.models.description import (
    Attention,
    DeltaNet,
    Latent,
    Mixer,
    Selective,
    ShortConv,
)
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.loading.projections import (
    gates_last,
    merged_rows,
    parts_of_heads,
    parts_of_state_space,
)
from plumbline.engines.native.models.loading.rounding import Rounding
from plumbline.engines.native.models.loading.source import WeightSource
from plumbline.engines.native.models.rope import head_order
from plumbline.engines.native.models.weights import (
    AttentionWeights,
    DeltaWeights,
    LatentWeights,
    NormWeights,
    SelectiveWeights,
    ShortConvWeights,
)

__all__ = ["fetch_mixer"]


def fetch_mixer(
    source: WeightSource, prefix: str, shape: Mixer, rounding: Rounding
) -> AttentionWeights | LatentWeights | DeltaWeights | ShortConvWeights | SelectiveWeights:
    """Fetch the weights of a layer's mixer.

    Args:
        source: of the model.
        prefix: what the names of its tensors begin with.
        shape: the mixer.
        rounding: of queries, keys and values of an attention.
    """
    if isinstance(shape, Attention):
        return _attention(source, prefix, shape, rounding)
    if isinstance(shape, ShortConv):
        return _short_conv(source, prefix, shape)
    if isinstance(shape, Selective):
        return _selective(source, prefix + source.names.selective + ".", shape)
    return _latent(source, prefix, shape) if isinstance(shape, Latent) else _delta(source, prefix, shape)


def _attention(source: WeightSource, prefix: str, shape: Attention, rounding: Rounding) -> AttentionWeights:
    names, hidden, head_dim = source.names, source.description.hidden_size, shape.head_dim
    q_width, kv_width = shape.heads * head_dim, shape.written_heads * head_dim
    order = head_order(shape.rope, head_dim)
    rows = None
    if order is not None:
        # The rows of all query and key heads, and those of values as they are.
        rotated = torch.arange(q_width + kv_width).view(-1, head_dim)[:, order].flatten()
        rows = torch.cat((rotated, torch.arange(kv_width) + q_width + kv_width))
    qkv = (*names.qkv[:2], names.qkv[1]) if shape.values_are_keys else names.qkv
    widths: tuple[int, ...] = (q_width, kv_width, kv_width)
    if shape.keys_of is not None:
        qkv, widths = qkv[:1], widths[:1]
    if shape.layout != "apart":
        found = merged_rows(shape)
        rows = found if rows is None else found[rows]
    if shape.gated and names.attention_gate:
        qkv, widths = (*qkv, names.attention_gate), (*widths, q_width)
        if rows is not None:
            rows = torch.cat((rows, torch.arange(q_width) + len(rows)))
    elif shape.gated:
        widths, rows = (2 * q_width, kv_width, kv_width), gates_last(shape, rows)
    return AttentionWeights(
        qkv=source.linear(prefix, qkv, widths, hidden, shape.qkv_bias, rows, rounding=rounding),
        o=source.linear(prefix, (names.o,), (hidden,), q_width, shape.o_bias),
        head_norms=_head_norms(source, prefix, shape, order),
        sinks=source.fetch(prefix + names.sinks, (shape.heads,), torch.float32) if shape.sinks else None,
    )


def _delta(source: WeightSource, prefix: str, shape: DeltaNet) -> DeltaWeights:
    names, hidden, heads = source.names, source.description.hidden_size, (shape.value_heads,)
    keys = shape.key_heads * shape.key_dim
    widths: tuple[int, ...] = (shape.channels, shape.values, *heads, *heads)
    if len(names.delta) > len(widths):
        widths = (keys, keys, shape.values, shape.values, *heads, *heads)
    rows = None
    if shape.by_key_head:
        first = shape.channels + shape.values
        widths, rows = (first, 2 * shape.value_heads), parts_of_heads(shape)
        if len(names.delta) > len(widths):  # GGUF files have only strengths and decays by key head.
            widths, rows = (
                (shape.channels, shape.values, widths[1]),
                torch.cat((torch.arange(first), rows[first:])),
            )
    sizes = (keys, keys, shape.values) if names.delta_convs else (shape.channels,)
    if names.delta_convs_even:
        third = -(-shape.channels // 3)
        sizes = (third, third, shape.channels - 2 * third)
    convs = [
        source.fetch(f"{prefix}{name}.weight", (size, 1, shape.taps), torch.float32)
        for name, size in zip(names.delta_convs or (names.delta_conv,), sizes, strict=True)
    ]
    conv = torch.cat(convs).squeeze(1)
    conv_bias, skip, norm = None, None, (shape.value_dim,)
    if shape.conv_bias:
        conv_bias = source.fetch(f"{prefix}{names.delta_conv}.bias", (shape.channels,), torch.float32)
    if shape.state_space:
        widths, norm = (shape.channels + shape.values + shape.gates,), (shape.values,)
        rows, channels = parts_of_state_space(shape)
        conv, conv_bias = conv[channels], None if conv_bias is None else conv_bias[channels]
        skip = source.fetch(prefix + names.delta_skip, heads, torch.float32)
    return DeltaWeights(
        project=source.linear(prefix, names.delta, widths, hidden, shape.bias, rows, _row_factors(shape)),
        conv=conv.contiguous(),
        conv_bias=conv_bias,
        skip=skip,
        rates=source.fetch(prefix + names.delta_rates, heads, torch.float32).exp(),
        shifts=source.fetch(prefix + names.delta_shifts, heads, torch.float32),
        norm=source.fetch(f"{prefix}{names.delta_norm}.weight", norm, torch.float32)
        if shape.normed
        else None,
        o=source.linear(prefix, (names.delta_o,), (hidden,), shape.values, shape.bias),
    )


def _row_factors(shape: DeltaNet) -> Tensor | None:
    """Return the factors on the rows of a state space's projection, fp32 [out], if it has some."""
    if not shape.row_scales:
        return None
    keys = shape.key_heads * shape.key_dim
    sizes = torch.tensor([shape.values, shape.values, keys, keys, shape.gates])
    return torch.tensor(shape.row_scales).repeat_interleave(sizes)


def _short_conv(source: WeightSource, prefix: str, shape: ShortConv) -> ShortConvWeights:
    names, hidden, width = source.names, source.description.hidden_size, shape.width
    conv = source.fetch(f"{prefix}{names.short_conv}.weight", (width, 1, shape.taps), torch.float32)
    bias = None
    if shape.bias:
        bias = source.fetch(f"{prefix}{names.short_conv}.bias", (width,), torch.float32)
    return ShortConvWeights(
        project=source.linear(prefix, (names.short,), (3 * width,), hidden, shape.bias),
        conv=conv.squeeze(1).contiguous(),
        conv_bias=bias,
        o=source.linear(prefix, (names.short_o,), (hidden,), width, shape.bias),
    )


def _selective(source: WeightSource, prefix: str, shape: Selective) -> SelectiveWeights:
    hidden, width, size, rank = source.description.hidden_size, shape.width, shape.state_dim, shape.step_rank

    def fetch(name: str, *sizes: int) -> Tensor:
        return source.fetch(prefix + name, sizes, torch.float32)

    return SelectiveWeights(
        project=source.linear(prefix, ("in_proj",), (2 * width,), hidden, shape.bias),
        conv=fetch("conv1d.weight", width, 1, shape.taps).squeeze(1).contiguous(),
        conv_bias=fetch("conv1d.bias", width) if shape.conv_bias else None,
        select=source.linear(prefix, ("x_proj",), (rank + 2 * size,), width, False),
        steps=source.linear(prefix, ("dt_proj",), (width,), rank, False),
        shifts=fetch("dt_proj.bias", width),
        rates=fetch("A_log", width, size).exp(),
        skip=fetch("D", width),
        norms=(
            fetch("dt_layernorm.weight", rank),
            fetch("b_layernorm.weight", size),
            fetch("c_layernorm.weight", size),
        ),
        eps=shape.eps,
        o=source.linear(prefix, ("out_proj",), (hidden,), width, shape.bias),
    )


def _latent(source: WeightSource, prefix: str, shape: Latent) -> LatentWeights:
    names, hidden, rank = source.names, source.description.hidden_size, shape.rank
    width = shape.key_dim + shape.rope_dim
    order = head_order(shape.rope, shape.rope_dim)
    q_rows = kv_rows = None
    if order is not None:
        head = torch.cat((torch.arange(shape.key_dim), shape.key_dim + order))
        q_rows = (torch.arange(shape.heads).unsqueeze(1) * width + head).flatten()
        kv_rows = torch.cat((torch.arange(rank), rank + order))
    q_a, q_a_norm, q_name, inputs = None, None, names.q, hidden
    if shape.query_rank is not None:
        q_name, inputs = names.q_b, shape.query_rank
        q_a = source.linear(prefix, (names.q_a,), (inputs,), hidden, shape.bias)
        q_a_norm = NormWeights(source.fetch(f"{prefix}{names.q_a_norm}.weight", (inputs,), torch.float32))
    both = shape.key_dim + shape.value_dim
    kv_b = source.fetch(f"{prefix}{names.kv_b}.weight", (shape.heads * both, rank), None)
    kv_b = kv_b.view(shape.heads, both, rank)
    keys, values = kv_b[:, : shape.key_dim], kv_b[:, shape.key_dim :].transpose(1, 2)
    return LatentWeights(
        q_a=q_a,
        q_a_norm=q_a_norm,
        q=source.linear(prefix, (q_name,), (shape.heads * width,), inputs, False, q_rows),
        kv=source.linear(prefix, (names.kv_a,), (shape.head_dim,), hidden, shape.bias, kv_rows),
        kv_norm=NormWeights(source.fetch(f"{prefix}{names.kv_a_norm}.weight", (rank,), torch.float32)),
        keys=_by_head(source, keys),
        values=_by_head(source, values),
        o=source.linear(prefix, (names.o,), (hidden,), shape.heads * shape.value_dim, shape.bias),
    )


def _by_head(source: WeightSource, weights: Tensor) -> Tensor | list[Linear]:
    """Prepare projections [H, in, out] of heads."""
    if source.library is None:
        return weights.contiguous()
    return [Linear(weight.t().contiguous(), None, source.library) for weight in weights]


def _head_norms(source: WeightSource, prefix: str, shape: Attention, order: Tensor | None) -> Tensor | None:
    """Fetch the weights of q and k norms, [H + KV, head_dim]."""
    if shape.head_norm is None:
        return None
    if shape.head_norm.weights == "none":
        return torch.ones(shape.heads + shape.written_heads, shape.head_dim, device=source.device)
    found = []
    for name, count in ((source.names.q_norm, shape.heads), (source.names.k_norm, shape.written_heads)):
        if not count:
            continue
        size: tuple[int, ...] = (shape.head_dim,)
        if shape.head_norm.whole:
            size = (count * shape.head_dim,)
        elif shape.head_norm.weights == "each" and "{}" not in name:
            size = (count, shape.head_dim)
        tensors = [
            # A name with a place for the head has a tensor for each.
            source.fetch(f"{prefix}{name.format(head)}.weight", size, torch.float32)
            for head in range(count if "{}" in name else 1)
        ]
        found.append(torch.cat(tensors).view(-1, shape.head_dim).expand(count, -1))
    weights = torch.cat(found) + source.description.norm.offset
    return weights if order is None else weights[:, order].contiguous()
