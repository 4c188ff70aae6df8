"""Load a model folder into a Transformer: safetensors files, one or sharded, with merged projections.

Every tensor in the files must be used and every weight must be found. A checkpoint that does not match is refused with
the names of the tensors.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from plumbline.base.workers.memory import trim
from plumbline.engines.native.models.checkpoint import Checkpoint
from plumbline.engines.native.models.description import (
    DeltaNet,
    Experts,
    LayerDescription,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.families import read_description
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.loading.feed_forward import fetch_feed_forward
from plumbline.engines.native.models.loading.mixers import fetch_mixer
from plumbline.engines.native.models.loading.projections import build_linear, merge_stored
from plumbline.engines.native.models.loading.rounding import Rounding, roundings
from plumbline.engines.native.models.loading.rounding_loss import (
    NO_TEXTS,
    Texts,
    losses_of_rounding,
    predictions,
    texts_problem,
)
from plumbline.engines.native.models.loading.source import Fetch, FetchStack, StreamedLinear, WeightSource
from plumbline.engines.native.models.rope import sinusoids
from plumbline.engines.native.models.stored import StoredWeight, dense
from plumbline.engines.native.models.support import compiled_problem
from plumbline.engines.native.models.transformer import LARGEST_STEP, Transformer
from plumbline.engines.native.models.vision import Vision
from plumbline.engines.native.models.weights import (
    LayerWeights,
    ModelWeights,
    NormWeights,
    TokenGateWeights,
    TokenInputWeights,
)
from plumbline_kernels._backend import use_triton
from plumbline_kernels.cpu.library import Library, PackedWeight

__all__ = ["build", "for_length", "load_model", "random_model"]

_log = logging.getLogger("plumbline.engines")

_MOST_POSITIONS = 2**21
"""Positions of tables that nobody asked for: a gigabyte for wide heads. A damaged file may name any number."""
_MEASURED = 4
"""Bits whose rounding is measured."""
_STACKED = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
"""The names of tensors of all experts, [E, out, in] or [E, in, out], as recent models have them."""


def load_model(
    folder: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    max_model_len: int | None = None,
    library: Library | None = None,
    bits: int | None = None,
    vision: Vision | None = None,
    largest_step: int = LARGEST_STEP,
    sample: bool = False,
    texts: Texts = NO_TEXTS,
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
        largest_step: tokens of a step at most.
        sample: load no more layers than have all kinds of them.
        texts: tokens to measure the rounding to 4 bits with (`Transformer.rounding_losses`).

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
        else:
            checkpoint.add_base(description.names.base, description.names.embedding)
        description = _with_head(description, checkpoint)
        checkpoint.ignore(description.names.ignored, description.names.ignored_ends)
        description = _as_saved(_with_stacked_experts(description, checkpoint), checkpoint)
        if sample:
            return build(
                _sampled(description),
                checkpoint.fetch_weight,
                checkpoint.dtype,
                checkpoint.device,
                library,
                bits,
                checkpoint.fetch_stack,
            )
        model = build(
            description,
            checkpoint.fetch_weight,
            checkpoint.dtype,
            checkpoint.device,
            library,
            bits,
            checkpoint.fetch_stack,
            largest_step,
            texts,
        )
        if vision is not None:
            from plumbline.engines.native.models.vision.families import load_encoder

            model.vision, model.given_parts = (
                load_encoder(vision, checkpoint, model.dtype),
                vision.text_layers,
            )
        checkpoint.finish()
    return model


def _sampled(description: ModelDescription) -> ModelDescription:
    """Return the description with its first layers, as many as have all kinds."""
    layers = description.layers
    kinds = {replace(layer, numbers=None): index for index, layer in reversed([*enumerate(layers)])}
    return replace(description, layers=layers[: max(kinds.values()) + 1])


def _with_head(description: ModelDescription, checkpoint: Checkpoint) -> ModelDescription:
    """Return the description with the output layer that the checkpoint has."""
    # Configs of images and text say it in several places, so there the checkpoint decides alone.
    if not description.tied and not description.is_text_of_more:
        return description
    names = description.names
    tied = checkpoint.head_of(names.head, names.embedding) != "own"
    if description.tied and not tied and not description.is_text_of_more:
        _log.warning(
            "tie_word_embeddings is true, but the checkpoint has %s, which is not the embedding: it is used",
            names.head,
        )
    return replace(description, tied=tied)


def _with_stacked_experts(description: ModelDescription, checkpoint: Checkpoint) -> ModelDescription:
    """Return the description for a checkpoint with a tensor of all experts in the place of one of each."""
    names = description.names
    found = next(
        (
            (names.layer.format(_numbers(layer, index)[1]), layer.feed_forward)
            for index, layer in enumerate(description.layers)
            if isinstance(layer.feed_forward, Experts)
        ),
        None,
    )
    if found is None or not checkpoint.has(first := f"{found[0]}{_STACKED[0]}"):
        return description
    shape = description.hidden_size, found[1].width * (1 + found[1].gated)
    # Releases of Qwen3-VL have the other order, in which no other checkpoint fits.
    turned = names.experts_transposed or checkpoint.shape(first)[1:] == shape != shape[::-1]
    stacked = replace(names, expert_gate_up=_STACKED[:1], expert_down=_STACKED[1], experts_transposed=turned)
    return replace(description, names=stacked)


def _as_saved(description: ModelDescription, checkpoint: Checkpoint) -> ModelDescription:
    """Return the description for a checkpoint of OLMo Hybrid that transformers has saved.

    It saves convolutions as thirds of all channels, and norms after attention by the name of those before blocks.
    """
    names = description.names
    if not names.delta_convs:
        return description
    for index, layer in enumerate(description.layers):
        prefix = names.layer.format(index)
        if not isinstance(layer.mixer, DeltaNet):
            if checkpoint.has(f"{prefix}{names.before_feed_forward}.weight"):
                names = replace(names, after_mixer=names.before_feed_forward)
        elif checkpoint.has(first := f"{prefix}{names.delta_convs[0]}.weight"):
            even = checkpoint.shape(first)[0] == -(-layer.mixer.channels // 3)
            names = replace(names, delta_convs_even=even)
    return replace(description, names=names)


def for_length(description: ModelDescription, max_model_len: int | None) -> ModelDescription:
    """Return the description for sequences of so many tokens; None keeps its own length.

    Raises:
        UnsupportedModelError: the model cannot be run for as many, or its own length is too large for tables.
    """
    if max_model_len is None:
        if description.context_length > _MOST_POSITIONS:
            raise UnsupportedModelError(
                f"it names {description.context_length} positions, more than {_MOST_POSITIONS}: say with "
                "--max-model-len how many are needed"
            )
        return description
    if description.longest is not None and max_model_len > description.longest:
        raise UnsupportedModelError(
            f"--max-model-len {max_model_len} is more than the {description.longest} tokens that this model can be run "
            f"for ({description.longest_field} in its config)"
        )
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

    def fetch(name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=dtype or kind, device=device)
        return torch.empty(shape).normal_(0.0, 0.02, generator=generator).to(device, dtype or kind)

    return build(description, fetch, kind, torch.device(device), library, bits, in_order=True)


def build(
    description: ModelDescription,
    fetch: Fetch,
    dtype: torch.dtype,
    device: torch.device,
    library: Library | None = None,
    bits: int | None = None,
    fetch_stack: FetchStack | None = None,
    largest_step: int = LARGEST_STEP,
    texts: Texts = NO_TEXTS,
    *,
    in_order: bool = False,
) -> Transformer:
    """Assemble the transformer from the tensors that `fetch` and, for experts, `fetch_stack` return."""
    if library is not None and not (
        device.type == "cpu" and compiled_problem(description, dtype, library) is None
    ):
        library = None
    stacked = use_triton(torch.empty(0, device=device))
    source = WeightSource(description, fetch, library, bits, stacked, device, dtype, fetch_stack)
    source = replace(source, in_order=in_order)
    if library is None or bits != _MEASURED or texts_problem(description, texts):
        return _assembled(source, largest_step)
    # First, because less memory is taken than by the model that stays.
    unrounded = replace(source, library=None, bits=0, streamed=True, places=[])
    whole = predictions(_assembled(unrounded, largest_step), texts)
    model = _assembled(source, largest_step)
    model.rounding_losses = losses_of_rounding(whole, predictions(model, texts))
    return model


def _assembled(source: WeightSource, largest_step: int) -> Transformer:
    description, names = source.description, source.names
    shape = description.vocab_size, description.hidden_size
    stored = source.fetch_weight(f"{names.embedding}.weight", shape, None) if source.in_order else None
    # First, because they are the largest: what they are read into would come on top of all other weights.
    ends = None if source.in_order else _head_and_embedding(source)
    trim()
    layers = [_layer(source, index) for index in range(len(description.layers))]
    norm = source.norm(names.norm)
    last, embedding = ends or _head_and_embedding(source, stored)
    weights = ModelWeights(
        embedding,
        layers,
        norm,
        last,
        source.places,
        source.dtype,
        source.device,
        _token_inputs(source),
        positions=_positions(source),
        embedding_norm=source.norm(names.embedding_norm) if description.embedding_norm else None,
    )
    trim()  # What weights were read into.
    return Transformer(description, weights, source.library, largest_step)


def _head_and_embedding(
    source: WeightSource, stored: Tensor | StoredWeight | None = None
) -> tuple[Linear, Tensor | PackedWeight]:
    """Build the output layer, and the embedding: with compiled kernels it stays in the numbers that it is stored in."""
    description, names, library, bits = source.description, source.names, source.library, source.bits and 8
    shape = description.vocab_size, description.hidden_size

    def layer(weight: Tensor | StoredWeight, bias: Tensor | None = None) -> Linear:
        levels = library is not None
        whole, grid = merge_stored([weight], source.dtype, source.device, bits, levels=levels)
        return build_linear(whole, bias, grid, library, Rounding(bits))

    bias = source.fetch(f"{names.head}.bias", shape[:1], None) if description.head_bias else None
    if stored is None:
        stored = source.fetch_weight(f"{names.embedding}.weight", shape, None)
    if description.tied and source.streamed:
        tied = dense(stored, source.dtype, source.device)
        return StreamedLinear(shape, lambda: lambda x, _: linear(x, tied, bias)), tied
    head = layer(stored, bias) if description.tied else None
    embedding: Tensor | PackedWeight
    # A weight that is rounded here would make an embedding worse for nothing.
    if library is None or (bits and isinstance(stored, Tensor)):
        embedding = dense(stored, source.dtype, source.device)
    elif head is not None and head.packed is not None:
        embedding = head.packed
    elif isinstance(stored, Tensor):
        embedding = stored
    else:
        packed = layer(stored).packed
        assert packed is not None
        embedding = packed
    if head is None:
        del stored
        head = layer(source.fetch_weight(f"{names.head}.weight", shape, None), bias)
    return head, embedding


def _numbers(layer: LayerDescription, index: int) -> tuple[int, int]:
    """Return the numbers of a layer's blocks in the checkpoint."""
    return layer.numbers or (index, index)


def _layer(source: WeightSource, index: int) -> LayerWeights:
    layer = source.description.layers[index]
    names, norms, block = source.names, layer.norms, layer.feed_forward
    prefix, second = (names.layer.format(number) for number in _numbers(layer, index))
    before, after = norms != "after", norms in ("after", "both")
    of_attention, down = roundings(source.bits, layer, source.description.hidden_size)
    token = None
    if width := source.description.token_inputs:
        hidden = source.description.hidden_size
        token = TokenGateWeights(
            gate=source.linear(prefix, (names.token_gate,), (width,), hidden, False),
            up=source.linear(prefix, (names.token_up,), (hidden,), width, False),
            after=source.norm(prefix + names.after_token),
        )
    return LayerWeights(
        before_mixer=source.norm(prefix + names.before_mixer) if before and not layer.again else None,
        mixer=fetch_mixer(source, prefix, layer.mixer, of_attention),
        after_mixer=source.norm(prefix + names.after_mixer) if after else None,
        before_feed_forward=(
            source.norm(second + names.before_feed_forward)
            if block and norms in ("before", "both", "parallel_two", "three")
            else None
        ),
        feed_forward=fetch_feed_forward(source, second, block, down) if block else None,
        after_feed_forward=(
            source.norm(second + names.after_feed_forward) if block and (after or norms == "three") else None
        ),
        scale=(float(source.fetch(prefix + names.scale, (1,), torch.float32)) if layer.scaled else 1.0),
        token=token,
    )


def _token_inputs(source: WeightSource) -> TokenInputWeights | None:
    """Fetch what makes the inputs of layers from a token's second embedding, if the model has them."""
    model, names = source.description, source.names
    if not model.token_inputs:
        return None
    width = model.token_inputs * len(model.layers)
    norm = source.fetch(f"{names.token_norm}.weight", (model.token_inputs,), torch.float32)
    return TokenInputWeights(
        embedding=source.fetch(f"{names.token_embedding}.weight", (model.vocab_size, width), None),
        projection=source.linear("", (names.token_projection,), (width,), model.hidden_size, False),
        norm=NormWeights(norm + model.norm.offset),
    )


def _positions(source: WeightSource) -> Tensor | None:
    """Fetch the embeddings of positions, [positions, D], if the model has them."""
    model, found = source.description, source.description.positions
    if found is None:
        return None
    rows = found.number + found.offset
    if found.computed:
        table = sinusoids(rows, model.hidden_size).to(source.device, source.dtype)
    else:
        table = source.fetch(f"{source.names.positions}.weight", (rows, model.hidden_size), None)
    return table[found.offset :].contiguous()
