"""Read the config of Qwen-VL models: one function for each version of the tower."""

from __future__ import annotations

import math
from typing import Any

from plumbline.engines.native.models.description import ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields
from plumbline.engines.native.models.vision.fields import read_activation, read_axial_theta, read_token
from plumbline.engines.native.models.vision.qwen.description import QwenVision, Tower, TowerNames, Windows

__all__ = ["read_qwen2", "read_qwen2_5", "read_qwen3"]

_UNUSED = "dtype initializer_range spatial_patch_size tokens_per_second torch_dtype"
"""Fields of training, of videos, and one that repeats another."""
_QWEN2 = TowerNames(up=("mlp.fc1",), down="mlp.fc2", norm="ln_q", first="mlp.0", second="mlp.2")
_QWEN2_5 = TowerNames(
    up=("mlp.gate_proj", "mlp.up_proj"), down="mlp.down_proj", norm="ln_q", first="mlp.0", second="mlp.2"
)
_QWEN3 = TowerNames(
    up=("mlp.linear_fc1",), down="mlp.linear_fc2", norm="norm", first="linear_fc1", second="linear_fc2"
)


def read_qwen2(fields: Fields, text: ModelDescription) -> QwenVision:
    """Read the config of Qwen2-VL, whose `hidden_size` is that of the text."""
    tower = _fields(fields)
    hidden_size = tower.integer("embed_dim", 1280)
    width = int(hidden_size * tower.number("mlp_ratio", 4))
    shape = _shape(tower, hidden_size, depth=32, patch=14)
    activation = read_activation(tower, "hidden_act", "quick_gelu")
    return _vision(
        fields, text, tower,
        Tower(width=width, activation=activation, rms=False, patch_bias=False, names=_QWEN2, **shape),
        "hidden_size",
    )  # fmt: skip


def read_qwen2_5(fields: Fields, text: ModelDescription) -> QwenVision:
    """Read the config of Qwen2.5-VL: windows, and gated feed-forward blocks."""
    tower = _fields(fields)
    shape = _shape(tower, tower.integer("hidden_size", 3584), depth=32, patch=14)
    side = tower.integer("window_size", 112) // (shape["merge"] * shape["patch_size"])
    if not side:
        raise UnsupportedModelError("window_size must not be less than patch_size * spatial_merge_size")
    full = _layers(tower, "fullatt_block_indexes", [7, 15, 23, 31], shape["layers"])
    return _vision(
        fields,
        text,
        tower,
        Tower(
            width=tower.integer("intermediate_size", 3420),
            activation=read_activation(tower, "hidden_act", "silu"),
            rms=True,
            patch_bias=False,
            windows=Windows(side=side, full_layers=frozenset(full)),
            names=_QWEN2_5,
            **shape,
        ),
        "out_hidden_size",
    )


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
    return _vision(
        fields,
        text,
        tower,
        Tower(
            width=tower.integer("intermediate_size", 4304),
            activation=read_activation(tower, "hidden_act", "gelu_pytorch_tanh"),
            rms=False,
            patch_bias=True,
            positions=math.isqrt(table),
            further=further,
            names=_QWEN3,
            **shape,
        ),
        "out_hidden_size",
    )


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
        "patch_size": tower.integer("patch_size", patch),
        "merge": tower.integer("spatial_merge_size", 2),
        "frames": tower.integer("temporal_patch_size", 2),
        "theta": read_axial_theta(tower, 10000.0),
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


def _vision(fields: Fields, text: ModelDescription, found: Fields, tower: Tower, name: str) -> QwenVision:
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
        placeholder=token,
        token=token,
        hidden_size=text.hidden_size,
        text_layers=len(tower.further),
    )
