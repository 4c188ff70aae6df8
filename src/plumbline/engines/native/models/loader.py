"""Load a model folder into a Transformer: safetensors files, one or sharded, with merged projections.

Every tensor in the files must be used and every weight must be found. A checkpoint that does not match is refused with
the names of the tensors.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from plumbline.engines.native.models.checkpoint import Checkpoint, WeightsError
from plumbline.engines.native.models.description import (
    Attention,
    DeltaNet,
    Dense,
    Experts,
    Latent,
    ModelDescription,
)
from plumbline.engines.native.models.families import read_description
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.projections import (
    build_linear,
    gates_last,
    in_order,
    merge,
    merge_grids,
    parts_of_heads,
    parts_of_state_space,
)
from plumbline.engines.native.models.rope import head_order
from plumbline.engines.native.models.stored import Grid
from plumbline.engines.native.models.support import compiled_problem
from plumbline.engines.native.models.transformer import Transformer
from plumbline.engines.native.models.vision import Vision, load_encoder
from plumbline.engines.native.models.weights import (
    ApartNorms,
    AttentionWeights,
    DeltaWeights,
    DenseWeights,
    ExpertsWeights,
    LatentWeights,
    LayerWeights,
    ModelWeights,
    NormWeights,
    Place,
    Stack,
    TokenGateWeights,
    TokenInputWeights,
)
from plumbline_kernels._backend import use_triton
from plumbline_kernels.cpu.library import Library
from plumbline_kernels.experts import Routing

__all__ = ["WeightsError", "build", "for_length", "load_model", "random_model"]

_log = logging.getLogger("plumbline.engines")

_STACKED = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
"""The names of tensors of all experts, [E, out, in], as recent models have them."""

Fetch = Callable[[str, tuple[int, ...], torch.dtype | None], tuple[Tensor, Grid | None]]
"""Return a tensor by its name and its shape, in a type; None for the model's. The grid is of a quantised one."""


def load_model(
    folder: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    max_model_len: int | None = None,
    library: Library | None = None,
    bits: int | None = None,
    vision: Vision | None = None,
) -> Transformer:
    """Load a model folder.

    Args:
        folder: the folder.
        dtype: type of the weights; None takes the config's type.
        device: where they go.
        max_model_len: positions that the model needs; None takes the config's. Rotary embeddings can be computed for
            more than those.
        library: compiled kernels to use where they support the model (`compiled_problem`).
        bits: 8 or 4 to round the weights of linear layers, with a library; the output layer has 8 at least. 0 takes
            all weights in `dtype`; None keeps the bits of those that are stored quantised.
        vision: how the model reads images; None leaves their weights alone.

    Raises:
        UnsupportedModelError: the engine does not support the config.
        WeightsError: the files do not match the config.
    """
    description = for_length(read_description(folder), max_model_len)
    with Checkpoint(
        folder, dtype or description.dtype, torch.device(device), description.stored
    ) as checkpoint:
        if description.is_text_of_more:
            checkpoint.take_text(with_images=vision is not None)
            description = replace(description, tied=not checkpoint.has(f"{description.names.head}.weight"))
        if description.tied:
            # A tied model may come with the redundant copy.
            checkpoint.ignore((f"{description.names.head}.weight",))
        checkpoint.ignore(description.names.ignored)
        description = _with_stacked_experts(description, checkpoint)
        model = build(description, checkpoint.fetch_weight, library, bits)
        if vision is not None:
            model.vision = load_encoder(vision, checkpoint, model.dtype)
        checkpoint.finish()
    return model


def _with_stacked_experts(description: ModelDescription, checkpoint: Checkpoint) -> ModelDescription:
    """Return the description for a checkpoint with a tensor of all experts in the place of one of each."""
    names = description.names
    prefixes = (
        names.layer.format(index)
        for index, layer in enumerate(description.layers)
        if isinstance(layer.feed_forward, Experts)
    )
    prefix = next(prefixes, None)
    if prefix is None or not checkpoint.has(f"{prefix}{_STACKED[0]}"):
        return description
    stacked = replace(names, expert_gate_up=_STACKED[:1], expert_down=_STACKED[1])
    return replace(description, names=stacked)


def for_length(description: ModelDescription, max_model_len: int | None) -> ModelDescription:
    """Return the description for sequences of so many tokens; None keeps its own length."""
    if max_model_len is None:
        return description
    if max_model_len > description.context_length:
        _log.warning(
            "--max-model-len %d is more than the %d positions that this model was made for; "
            "answers beyond them may be poor",
            max_model_len,
            description.context_length,
        )
    return replace(description, context_length=max_model_len)


def random_model(
    description: ModelDescription,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    library: Library | None = None,
    bits: int = 0,
) -> Transformer:
    """Make a model of this description with random weights, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    kind = dtype or description.dtype

    def fetch(name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> tuple[Tensor, None]:
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=dtype or kind, device=device), None
        return torch.empty(shape).normal_(0.0, 0.02, generator=generator).to(device, dtype or kind), None

    return build(description, fetch, library, bits)


def build(
    description: ModelDescription, fetch: Fetch, library: Library | None = None, bits: int | None = None
) -> Transformer:
    """Assemble the transformer from the tensors that `fetch` returns."""
    names = description.names
    shape = description.vocab_size, description.hidden_size
    embedding, embedding_grid = fetch(f"{names.embedding}.weight", shape, None)
    if library is not None and not (
        embedding.device.type == "cpu" and compiled_problem(description, embedding.dtype, library) is None
    ):
        library = None
    builder = _Builder(description, fetch, library, bits, use_triton(embedding), embedding.device)
    layers = [builder.layer(index) for index in range(len(description.layers))]
    norm = builder.norm(names.norm)
    head, grid = embedding, embedding_grid
    if not description.tied:
        head, grid = fetch(f"{names.head}.weight", shape, None)
    bias = fetch(f"{names.head}.bias", shape[:1], None)[0] if description.head_bias else None
    last = build_linear(head, bias, grid, library, bits and 8)
    weights = ModelWeights(embedding, layers, norm, last, builder.places, builder.token_inputs())
    return Transformer(description, weights, library)


class _Builder:
    """Fetch the weights of layers."""

    def __init__(
        self,
        description: ModelDescription,
        fetch: Fetch,
        library: Library | None,
        bits: int | None,
        stacked: bool,
        device: torch.device,
    ) -> None:
        self._description, self._names = description, description.names
        self._fetch_weight, self._library, self._bits = fetch, library, bits
        self._stacked, self._device = stacked, device
        self.places: list[Place] = []

    def _fetch(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor:
        return self._fetch_weight(name, shape, dtype)[0]

    def layer(self, index: int) -> LayerWeights:
        layer = self._description.layers[index]
        prefix = self._names.layer.format(index)
        names, norms = self._names, layer.norms
        before, after = norms != "after", norms in ("after", "both")
        token = None
        if width := self._description.token_inputs:
            hidden = self._description.hidden_size
            token = TokenGateWeights(
                gate=self._linear(prefix, (names.token_gate,), (width,), hidden, False),
                up=self._linear(prefix, (names.token_up,), (hidden,), width, False),
                after=self.norm(prefix + names.after_token),
            )
        return LayerWeights(
            before_mixer=self.norm(prefix + names.before_mixer) if before else None,
            mixer=self._mixer(prefix, layer.mixer),
            after_mixer=self.norm(prefix + names.after_mixer) if after else None,
            before_feed_forward=(
                self.norm(prefix + names.before_feed_forward) if norms in ("before", "both") else None
            ),
            feed_forward=(
                self._dense(prefix, layer.feed_forward, names.gate_up, names.down)
                if isinstance(layer.feed_forward, Dense)
                else self._experts(prefix, layer.feed_forward)
            ),
            after_feed_forward=self.norm(prefix + names.after_feed_forward) if after else None,
            scale=(float(self._fetch(prefix + names.scale, (1,), torch.float32)) if layer.scaled else 1.0),
            token=token,
        )

    def token_inputs(self) -> TokenInputWeights | None:
        """Fetch what makes the inputs of layers from a token's second embedding, if the model has them."""
        model, names = self._description, self._names
        if not model.token_inputs:
            return None
        width = model.token_inputs * len(model.layers)
        norm = self._fetch(f"{names.token_norm}.weight", (model.token_inputs,), torch.float32)
        return TokenInputWeights(
            embedding=self._fetch(f"{names.token_embedding}.weight", (model.vocab_size, width), None),
            projection=self._linear("", (names.token_projection,), (width,), model.hidden_size, False),
            norm=NormWeights(norm + model.norm.offset),
        )

    def _mixer(
        self, prefix: str, shape: Attention | Latent | DeltaNet
    ) -> AttentionWeights | LatentWeights | DeltaWeights:
        if isinstance(shape, Attention):
            return self._attention(prefix, shape)
        return self._latent(prefix, shape) if isinstance(shape, Latent) else self._delta(prefix, shape)

    def norm(self, name: str) -> NormWeights:
        """Fetch the weights of a norm of rows."""
        norm, shape = self._description.norm, (self._description.hidden_size,)
        bias = self._fetch(f"{name}.bias", shape, torch.float32) if norm.bias else None
        return NormWeights(self._fetch(f"{name}.weight", shape, torch.float32) + norm.offset, bias)

    def _attention(self, prefix: str, shape: Attention) -> AttentionWeights:
        names, hidden, head_dim = self._names, self._description.hidden_size, shape.head_dim
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
        if shape.gated:
            widths, rows = (2 * q_width, kv_width, kv_width), gates_last(shape, rows)
        return AttentionWeights(
            qkv=self._linear(prefix, qkv, widths, hidden, shape.qkv_bias, rows),
            o=self._linear(prefix, (names.o,), (hidden,), q_width, shape.o_bias),
            head_norms=self._head_norms(prefix, shape, order),
            sinks=self._fetch(prefix + names.sinks, (shape.heads,), torch.float32) if shape.sinks else None,
        )

    def _delta(self, prefix: str, shape: DeltaNet) -> DeltaWeights:
        names, hidden, heads = self._names, self._description.hidden_size, (shape.value_heads,)
        widths: tuple[int, ...] = (shape.channels, shape.values, *heads, *heads)
        rows = None
        if shape.by_key_head:
            widths, rows = (shape.channels + shape.values, 2 * shape.value_heads), parts_of_heads(shape)
        conv = self._fetch(
            f"{prefix}{names.delta_conv}.weight", (shape.channels, 1, shape.taps), torch.float32
        ).squeeze(1)
        conv_bias, skip, norm = None, None, (shape.value_dim,)
        if shape.conv_bias:
            conv_bias = self._fetch(f"{prefix}{names.delta_conv}.bias", (shape.channels,), torch.float32)
        if shape.state_space:
            widths, norm = (shape.channels + shape.values + shape.gates,), (shape.values,)
            rows, channels = parts_of_state_space(shape)
            conv, conv_bias = conv[channels], None if conv_bias is None else conv_bias[channels]
            skip = self._fetch(prefix + names.delta_skip, heads, torch.float32)
        return DeltaWeights(
            project=self._linear(prefix, names.delta, widths, hidden, shape.bias, rows),
            conv=conv.contiguous(),
            conv_bias=conv_bias,
            skip=skip,
            rates=self._fetch(prefix + names.delta_rates, heads, torch.float32).exp(),
            shifts=self._fetch(prefix + names.delta_shifts, heads, torch.float32),
            norm=self._fetch(f"{prefix}{names.delta_norm}.weight", norm, torch.float32),
            o=self._linear(prefix, (names.delta_o,), (hidden,), shape.values, shape.bias),
        )

    def _latent(self, prefix: str, shape: Latent) -> LatentWeights:
        names, hidden, rank = self._names, self._description.hidden_size, shape.rank
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
            q_a = self._linear(prefix, (names.q_a,), (inputs,), hidden, shape.bias)
            q_a_norm = NormWeights(self._fetch(f"{prefix}{names.q_a_norm}.weight", (inputs,), torch.float32))
        both = shape.key_dim + shape.value_dim
        kv_b = self._fetch(f"{prefix}{names.kv_b}.weight", (shape.heads * both, rank), None)
        kv_b = kv_b.view(shape.heads, both, rank)
        keys, values = kv_b[:, : shape.key_dim], kv_b[:, shape.key_dim :].transpose(1, 2)
        return LatentWeights(
            q_a=q_a,
            q_a_norm=q_a_norm,
            q=self._linear(prefix, (q_name,), (shape.heads * width,), inputs, False, q_rows),
            kv=self._linear(prefix, (names.kv_a,), (shape.head_dim,), hidden, shape.bias, kv_rows),
            kv_norm=NormWeights(self._fetch(f"{prefix}{names.kv_a_norm}.weight", (rank,), torch.float32)),
            keys=self._by_head(keys),
            values=self._by_head(values),
            o=self._linear(prefix, (names.o,), (hidden,), shape.heads * shape.value_dim, shape.bias),
        )

    def _by_head(self, weights: Tensor) -> Tensor | list[Linear]:
        """Prepare projections [H, in, out] of heads."""
        if self._library is None:
            return weights.contiguous()
        return [Linear(weight.t().contiguous(), None, self._library) for weight in weights]

    def _head_norms(self, prefix: str, shape: Attention, order: Tensor | None) -> Tensor | None:
        """Fetch the weights of q and k norms, [H + KV, head_dim]."""
        if shape.head_norm is None:
            return None
        if shape.head_norm.weights == "none":
            return torch.ones(shape.heads + shape.written_heads, shape.head_dim, device=self._device)
        found = []
        for name, count in ((self._names.q_norm, shape.heads), (self._names.k_norm, shape.written_heads)):
            if not count:
                continue
            size: tuple[int, ...] = (shape.head_dim,)
            if shape.head_norm.whole:
                size = (count * shape.head_dim,)
            elif shape.head_norm.weights == "each" and "{}" not in name:
                size = (count, shape.head_dim)
            tensors = [
                # A name with a place for the head has a tensor for each.
                self._fetch(f"{prefix}{name.format(head)}.weight", size, torch.float32)
                for head in range(count if "{}" in name else 1)
            ]
            found.append(torch.cat(tensors).view(-1, shape.head_dim).expand(count, -1))
        weights = torch.cat(found) + self._description.norm.offset
        return weights if order is None else weights[:, order].contiguous()

    def _dense(self, prefix: str, block: Dense, gate_up: tuple[str, ...], down: str) -> DenseWeights:
        hidden, width = self._description.hidden_size, block.width
        return DenseWeights(
            activation=block.activation,
            gated=block.gated,
            gate_up=self._linear(
                prefix, gate_up, (width, width) if block.gated else (width,), hidden, block.bias
            ),
            down=self._linear(prefix, (down,), (hidden,), width, block.bias),
        )

    def _experts(self, prefix: str, block: Experts) -> ExpertsWeights:
        names, hidden, router = self._names, self._description.hidden_size, block.router
        number, fp32 = (block.number,), torch.float32
        shared_gate = None
        if block.shared_gate:
            shared_gate = self._fetch(f"{prefix}{names.shared_gate}.weight", (hidden,), fp32)
        apart = None
        if block.apart:
            apart = ApartNorms(
                router=NormWeights(self._fetch(prefix + names.router_scale, (hidden,), fp32) * hidden**-0.5),
                before=self.norm(prefix + names.before_experts),
                after=self.norm(prefix + names.after_experts),
                after_shared=self.norm(prefix + names.after_shared),
            )
        return ExpertsWeights(
            routing=Routing(
                top_k=router.top_k,
                sigmoid=router.scores == "sigmoid",
                late_softmax=router.scores == "softmax_of_chosen",
                groups=router.groups,
                chosen_groups=router.chosen_groups,
                best_two=router.groups_by_two,
                normalised=router.normalised,
                floor=router.floor,
                scale=router.scale,
                of_inputs=router.of_inputs,
            ),
            router=Linear(
                self._fetch(f"{prefix}{names.router}.weight", (block.number, hidden), fp32),
                self._fetch(f"{prefix}{names.router}.bias", number, fp32) if router.bias else None,
                self._library,
            ),
            correction=(self._fetch(prefix + names.correction, number, fp32) if router.correction else None),
            gate_up=self._stack(prefix, names.expert_gate_up, block, (block.width, block.width), hidden),
            down=self._stack(prefix, (names.expert_down,), block, (hidden,), block.width),
            activation=block.activation,
            shared=(
                None
                if block.shared is None
                else self._dense(prefix, block.shared, names.shared_gate_up, names.shared_down)
            ),
            shared_gate=shared_gate,
            factors=self._fetch(prefix + names.router_factors, number, fp32) if router.by_expert else None,
            apart=apart,
        )

    def _stack(
        self, prefix: str, names: tuple[str, ...], block: Experts, outputs: tuple[int, ...], inputs: int
    ) -> list[Linear] | Stack:
        """Build one projection of every expert: a layer for each, or for the kernels of a GPU a stack."""
        parts = self._experts_parts(prefix, names, block, outputs, inputs)
        if not self._stacked:
            return [build_linear(*part, self._library, self._bits) for part in parts]
        first, shift, _ = next(parts)
        stack = first.new_empty(block.number, *first.shape)
        biases = None if shift is None else shift.new_empty(block.number, *shift.shape)
        for expert, (weight, bias, _) in enumerate(itertools.chain([(first, shift, None)], parts)):
            stack[expert] = weight
            if biases is not None and bias is not None:
                biases[expert] = bias
        return Stack(stack, biases)

    def _experts_parts(
        self, prefix: str, names: tuple[str, ...], block: Experts, outputs: tuple[int, ...], inputs: int
    ) -> Iterator[tuple[Tensor, Tensor | None, Grid | None]]:
        """Yield weight [out, in], bias [out] and grid of each expert."""
        number, width = block.number, sum(outputs)
        if "{}" in names[0]:
            for expert in range(number):
                named = tuple(name.format(expert) for name in names)
                yield self._projection(prefix, named, outputs, inputs, block.bias)
            return
        (name,), transposed = names, self._names.experts_transposed
        biases = self._fetch(f"{prefix}{name}_bias", (number, width), None) if block.bias else None
        shape = (number, inputs, width) if transposed else (number, width, inputs)
        stacked, grids = self._fetch_weight(prefix + name, shape, None)
        for expert in range(number):
            weight, bias = stacked[expert], None if biases is None else biases[expert]
            grid = None if grids is None else Grid(grids.bits, grids.scales[expert])
            if transposed:
                weight = weight.t()
            if self._names.experts_alternate and len(outputs) == 2:
                rows = torch.arange(width).view(-1, 2).t().flatten()
                weight, bias, grid = in_order(weight, bias, grid, rows)
            yield weight, bias, grid

    def _linear(
        self,
        prefix: str,
        names: tuple[str, ...],
        outputs: Iterable[int],
        inputs: int,
        bias: bool,
        rows: Tensor | None = None,
    ) -> Linear:
        """Build one linear layer from the named projections; with `rows`, int64 [out], its rows are in this order."""
        outputs = tuple(outputs)
        parts = self._projection(prefix, names, outputs, inputs, bias)
        if rows is not None:
            parts = in_order(*parts, rows)
        layer = build_linear(*parts, self._library, self._bits)
        widths = outputs if len(names) > 1 else (sum(outputs),)
        self.places.append(Place(layer, tuple(prefix + name for name in names), widths, inputs, rows))
        return layer

    def _projection(
        self, prefix: str, names: tuple[str, ...], outputs: Iterable[int], inputs: int, bias: bool
    ) -> tuple[Tensor, Tensor | None, Grid | None]:
        """Fetch the named projections, stacked along the output; one name has all of them."""
        widths = tuple(outputs) if len(names) > 1 else (sum(outputs),)
        parts = [(prefix + name, width) for name, width in zip(names, widths, strict=True)]
        found = [self._fetch_weight(f"{name}.weight", (width, inputs), None) for name, width in parts]
        weight, grid = merge([part for part, _ in found]), merge_grids([grid for _, grid in found])
        if not bias:
            return weight, None, grid
        return weight, merge([self._fetch(f"{name}.bias", (width,), None) for name, width in parts]), grid
