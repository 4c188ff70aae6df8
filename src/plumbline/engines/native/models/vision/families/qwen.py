"""Read images of any size in squares of patches, as Qwen2-VL to Qwen 3.5 do."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plumbline.engines.native.models.description import ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields, Json
from plumbline.engines.native.models.vision.description import AxialRotation, Tower, TowerNames, Windows
from plumbline.engines.native.models.vision.fields import read_activation, read_axial_theta, read_token
from plumbline.engines.native.models.vision.interface import Encode, Vision
from plumbline.engines.native.models.vision.layout import ImageLayout
from plumbline.engines.native.models.vision.processor import (
    CLIP_COLOURS,
    ResizedPreparation,
    read_colours,
    read_processor,
    read_resample,
)
from plumbline.engines.native.models.vision.projectors import Mergers

__all__ = ["QwenPreparation", "QwenVision", "read_qwen2", "read_qwen2_5", "read_qwen3", "read_qwen_processor"]

_NAMES = TowerNames(
    patches="visual.patch_embed.proj",
    positions="visual.pos_embed.weight",
    layer="visual.blocks.{}.",
    before_mixer="norm1",
    qkv=("attn.qkv",),
    out="attn.proj",
    before_feed_forward="norm2",
)
_UNUSED = "dtype initializer_range spatial_patch_size tokens_per_second torch_dtype"
"""Fields of training, of videos, and one that repeats another."""
_MOST_PATCHES = 2**17
"""Of an image; processors of releases allow half as many."""
_MOST_PIXELS = 2**25
_MOST_OF_THE_LEAST = 2**20
"""Pixels to which the smallest image may be enlarged; 65,536 in releases."""
_DEFAULTS: Json = {
    **CLIP_COLOURS,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
_KINDS = dict.fromkeys(("Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor"), _DEFAULTS)
"""The second is the name of the first in early checkpoints of Qwen2.5-VL and what was made of them."""
_PROCESSORS = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor")
_EDGES = (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))
"""The bounds of pixels: their names in `size`, and beside it, where they win."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVision(Vision):
    """How a model reads images in squares of patches."""

    def layout(self, height: int, width: int, encode: Encode) -> ImageLayout:
        """See `Vision.layout`."""
        side = self.tower.square
        return ImageLayout.of_grid(self.token, height // side, width // side)

    @property
    def unused(self) -> tuple[str, ...]:
        """See `Vision.unused`."""
        return ("visual.rotary_pos_emb.",)


def read_qwen2(fields: Fields, text: ModelDescription) -> QwenVision:
    """Read the config of Qwen2-VL, whose `hidden_size` is that of the text."""
    tower = _fields(fields)
    hidden_size = tower.integer("embed_dim", 1280)
    width = int(hidden_size * tower.number("mlp_ratio", 4))
    shape = _shape(tower, hidden_size, depth=32, patch=14)
    activation = read_activation(tower, "hidden_act", "quick_gelu")
    described = Tower(width=width, activation=activation, rms=False, names=_NAMES, **shape)
    return _vision(fields, text, tower, described, Mergers(), "hidden_size")


def read_qwen2_5(fields: Fields, text: ModelDescription) -> QwenVision:
    """Read the config of Qwen2.5-VL: windows, and gated feed-forward blocks."""
    tower = _fields(fields)
    shape = _shape(tower, tower.integer("hidden_size", 3584), depth=32, patch=14)
    side = tower.integer("window_size", 112) // (shape["merge"] * shape["patch_size"])
    if not side:
        raise UnsupportedModelError("window_size must not be less than patch_size * spatial_merge_size")
    full = _layers(tower, "fullatt_block_indexes", [7, 15, 23, 31], shape["layers"])
    described = Tower(
        width=tower.integer("intermediate_size", 3420),
        activation=read_activation(tower, "hidden_act", "silu"),
        rms=True,
        windows=Windows(side=side, full_layers=frozenset(full)),
        names=replace(_NAMES, up=("mlp.gate_proj", "mlp.up_proj"), down="mlp.down_proj"),
        **shape,
    )
    return _vision(fields, text, tower, described, Mergers(), "out_hidden_size")


def read_qwen3(fields: Fields, text: ModelDescription) -> QwenVision:
    """Read the config of Qwen3-VL, and of Qwen 3.5, whose rows have no further parts."""
    tower = _fields(fields)
    shape = _shape(tower, tower.integer("hidden_size", 1152), depth=27, patch=16)
    table = tower.integer("num_position_embeddings", 2304)
    if math.isqrt(table) ** 2 != table:
        raise UnsupportedModelError(f"num_position_embeddings must be a square, not {table}")
    default = [8, 16, 24] if fields.model_type.startswith("qwen3_vl") else []
    further = _layers(tower, "deepstack_visual_indexes", default, shape["layers"])
    if len(further) >= len(text.layers):
        raise UnsupportedModelError(
            f"deepstack_visual_indexes has {len(further)} layers, and the text no more: {len(text.layers)}"
        )
    described = Tower(
        width=tower.integer("intermediate_size", 4304),
        activation=read_activation(tower, "hidden_act", "gelu_pytorch_tanh"),
        rms=False,
        patch_bias=True,
        positions="stretched",
        num_positions=math.isqrt(table),
        names=replace(_NAMES, up=("mlp.linear_fc1",), down="mlp.linear_fc2"),
        **shape,
    )
    mergers = Mergers(norm="norm", first="linear_fc1", second="linear_fc2", further=further)
    return _vision(fields, text, tower, described, mergers, "out_hidden_size")


def _fields(fields: Fields) -> Fields:
    """Return the fields of the tower; releases name the type of the model there."""
    tower = fields.part("vision_config", {})
    kinds = ("", fields.model_type, f"{fields.model_type}_vision")
    if tower.model_type not in kinds:
        raise UnsupportedModelError(
            f"vision_config.model_type {tower.model_type!r:.{MOST_SHOWN}} is not supported ({kinds[2]} is)"
        )
    tower.without_effect(_UNUSED)
    return tower


def _shape(tower: Fields, hidden_size: int, *, depth: int, patch: int) -> dict[str, Any]:
    """Read what all versions have, where the depth and the size of a patch have these defaults."""
    if tower.integer("in_channels", tower.integer("in_chans", 3)) != 3:
        raise UnsupportedModelError("in_channels must be 3")
    heads = tower.integer("num_heads", 16)
    if hidden_size % (4 * heads):
        raise UnsupportedModelError(f"the tower's width, {hidden_size}, must be a multiple of 4 * num_heads")
    return {
        "hidden_size": hidden_size,
        "layers": tower.integer("depth", depth),
        "heads": heads,
        "head_dim": hidden_size // heads,
        "eps": 1e-6,
        "bias": True,
        "patch_size": tower.integer("patch_size", patch),
        "merge": tower.integer("spatial_merge_size", 2),
        "frames": tower.integer("temporal_patch_size", 2),
        "rotation": AxialRotation(theta=read_axial_theta(tower, 10000.0), exact=True),
    }


def _layers(tower: Fields, name: str, default: list[int], depth: int) -> tuple[int, ...]:
    """Read numbers of layers of the tower."""
    found = tower.get(name, default)
    if not isinstance(found, list) or any(
        type(layer) is not int or not 0 <= layer < depth for layer in found
    ):
        raise UnsupportedModelError(
            f"{name} must name layers from 0 to {depth - 1}, not {found!r:.{MOST_SHOWN}}"
        )
    if found != sorted(set(found)):
        raise UnsupportedModelError(f"{name} must be in order, and name no layer twice")
    return tuple(found)


def _vision(
    fields: Fields, text: ModelDescription, found: Fields, tower: Tower, mergers: Mergers, name: str
) -> QwenVision:
    """Return the description, where `name` is the field of the tower with the width of its rows."""
    hidden_size = found.integer(name, 3584)
    found.finish()
    if hidden_size != text.hidden_size:
        raise UnsupportedModelError(
            f"{name} of vision_config is {hidden_size}, and the hidden_size of the text {text.hidden_size}"
        )
    token = read_token(fields, "image", 151655, text)
    return QwenVision(
        tower=tower,
        projector=mergers,
        placeholder=token,
        token=token,
        hidden_size=text.hidden_size,
        text_layers=len(mergers.further),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenPreparation(ResizedPreparation):
    """How an image becomes pixels: within a least and a most number of them."""

    least: int
    """Pixels of an image after the resize, about."""
    most: int

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """See `ResizedPreparation.resized`.

        They are the nearest whole numbers of squares. If these have too many or too few pixels, they are those with
        about the most or the least pixels in the same proportion.
        """
        side, area = self.square, height * width
        found = round(height / side) * side, round(width / side) * side
        if found[0] * found[1] > self.most:
            factor = math.sqrt(area / self.most)
            found = (
                max(side, math.floor(height / factor / side) * side),
                max(side, math.floor(width / factor / side) * side),
            )
        elif found[0] * found[1] < self.least:
            factor = math.sqrt(self.least / area)
            found = math.ceil(height * factor / side) * side, math.ceil(width * factor / side) * side
        return found


def read_qwen_processor(folder: Path, vision: QwenVision) -> QwenPreparation:
    """Read the image processor of a model folder.

    Raises:
        UnsupportedModelError: there is none, or it does something that is not supported; the message names the field.
    """
    processor, tower = read_processor(folder, _KINDS), vision.tower
    if (kind := processor.whole.get("processor_class", _PROCESSORS[0])) not in _PROCESSORS:
        raise UnsupportedModelError(
            f"processor_class {kind!r:.{MOST_SHOWN}} is not supported ({', '.join(_PROCESSORS)} are)"
        )
    fields = processor.images
    for name, wanted in (
        ("patch_size", tower.patch_size),
        ("merge_size", tower.merge),
        ("temporal_patch_size", tower.frames),
    ):
        if (found := fields.integer(name)) != wanted:
            raise UnsupportedModelError(f"its processor has a {name} of {found}, and the tower {wanted}")
    least, most = _bounds(fields)
    patches = max(most // tower.patch_size**2, 200 * tower.merge**2)
    if most > _MOST_PIXELS or patches > _MOST_PATCHES:
        raise UnsupportedModelError(
            f"its processor allows images of {most} pixels, {patches} patches: {_MOST_PIXELS} and {_MOST_PATCHES} are "
            "supported (longest_edge of size, or max_pixels)"
        )
    fields.refuse("do_center_crop", "do_pad")
    fields.without_effect("crop_size")
    preparation = QwenPreparation(
        square=tower.square,
        least=least,
        most=most,
        resample=read_resample(fields, 3),
        colours=read_colours(fields),
    )
    fields.finish()
    return preparation


def _bounds(fields: Fields) -> tuple[int, int]:
    """Read the least and the most pixels of an image."""
    size = dict(fields.get("size"))
    found = []
    for edge, name in _EDGES:
        value = size.pop(edge, None)
        value = size.pop(name, value)
        value = fields.get(name, value)
        if type(value) is not int or value < 1:
            raise UnsupportedModelError(
                f"{edge} of size, or {name}, must be a positive integer, not {value!r:.{MOST_SHOWN}}"
            )
        found.append(value)
    if unknown := [name for name, value in size.items() if value is not None]:
        raise UnsupportedModelError(f"size has fields that are not known: {unknown!s:.{MOST_SHOWN}}")
    least, most = found
    if least > min(most, _MOST_OF_THE_LEAST):
        raise UnsupportedModelError(
            f"shortest_edge of size, or min_pixels, is {least}, and may be {min(most, _MOST_OF_THE_LEAST)} at most"
        )
    return least, most
