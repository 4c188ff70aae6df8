"""Find the order of the rows that a GGUF file has, for adapters, which were trained with a checkpoint's."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from plumbline.engines.native.models.description import Attention, ModelDescription
from plumbline.engines.native.models.gguf.architectures import Architecture
from plumbline.engines.native.models.weights import LinearPlace

__all__ = ["Order", "order_of", "turned"]

Order = Literal["checkpoint", "turned", "other"]
"""As in a checkpoint; with the rows of q and k as llama.cpp's converter turns those of Llama; or in another one."""


def order_of(architecture: Architecture, family: ModelDescription) -> Order:
    """Return the order of the rows of a file, by its architecture and the description that checkpoints have."""
    mixers = [layer.mixer for layer in family.layers]
    attentions = [mixer for mixer in mixers if isinstance(mixer, Attention) and mixer.layout == "apart"]
    if architecture.names or architecture.tiled or len(attentions) < len(mixers):
        return "other"
    ropes = [mixer.rope for mixer in attentions if mixer.rope is not None]
    if all(architecture.interleaved in (None, rope.interleaved) for rope in ropes):
        return "checkpoint"
    known = architecture.interleaved and all(rope.part == 1 for rope in ropes) and len(family.names.qkv) == 3
    return "turned" if known else "other"


def turned(places: list[LinearPlace], description: ModelDescription) -> list[LinearPlace]:
    """Return the linear layers of a file whose converter has turned rows, with the orders of their rows.

    Args:
        places: as a checkpoint would have them.
        description: of the model.
    """
    dims: dict[str, int] = {}
    for index, layer in enumerate(description.layers):
        prefix = description.names.layer.format((layer.numbers or (index,))[0])
        if isinstance(layer.mixer, Attention):
            dims |= {prefix + name: layer.mixer.head_dim for name in description.names.qkv[:2]}
    found = []
    for place in places:
        if not dims.keys() & set(place.names):
            found.append(place)
            continue
        parts, begins = [], 0
        for name, width in zip(place.names, place.widths, strict=True):
            part = torch.arange(begins, begins + width)
            if dim := dims.get(name):  # The two halves of a head alternate.
                part = part.view(-1, 2, dim // 2).transpose(1, 2).flatten()
            parts.append(part)
            begins += width
        rows = torch.cat(parts)
        found.append(replace(place, rows=rows if place.rows is None else rows[place.rows.to(rows.device)]))
    return found
