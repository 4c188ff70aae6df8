"""Read the config of models with a square tower: one function for each type of tower, and for each type of model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from plumbline.engines.native.models.description import (
    Attention,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields, Json
from plumbline.engines.native.models.vision.fields import (
    check_scale,
    chosen_layers,
    read_activation,
    read_epsilon,
    read_token,
)
from plumbline.engines.native.models.vision.square.description import (
    LlavaProjector,
    PoolingProjector,
    SquareVision,
    Tower,
)

__all__ = ["TOWERS", "read_gemma3", "read_llava"]

_UNUSED = (
    "attention_dropout dropout initializer_factor num_channels projection_dim vision_use_head vocab_size "
    "torch_dtype dtype"
)
"""Fields of towers that do not change what is computed; other numbers of channels do not fit the pixels."""
_LLAVA_TOWER: Json = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "image_size": 336,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 14,
}
"""The tower of a LLaVA whose config describes none."""


def _tower(kind: Any, patch: int, activation: str, eps: float) -> Callable[[Fields], Tower]:
    """Return the reader of a tower with these defaults."""

    def read(fields: Fields) -> Tower:
        fields.without_effect(_UNUSED)
        if fields.integer("num_channels", 3) != 3:
            raise UnsupportedModelError("num_channels must be 3")
        tower = Tower(
            kind=kind,
            hidden_size=fields.integer("hidden_size", 768),
            width=fields.integer("intermediate_size", 3072),
            layers=fields.integer("num_hidden_layers", 12),
            heads=fields.integer("num_attention_heads", 12),
            image_size=fields.integer("image_size", 224),
            patch_size=fields.integer("patch_size", patch),
            activation=read_activation(fields, "hidden_act", activation),
            eps=read_epsilon(fields, "layer_norm_eps", eps),
        )
        if tower.hidden_size % tower.heads:
            raise UnsupportedModelError("hidden_size must be a multiple of num_attention_heads")
        if not tower.side:
            raise UnsupportedModelError("patch_size must not be more than image_size")
        return tower

    return read


TOWERS: dict[str, Callable[[Fields], Tower]] = {
    "clip_vision_model": _tower("clip", 32, "quick_gelu", 1e-5),
    "siglip_vision_model": _tower("siglip", 16, "gelu_pytorch_tanh", 1e-6),
}
"""The towers that the engine runs, by `vision_config.model_type`."""


def _read_tower(config: Json) -> Tower:
    fields = Fields(config)
    if fields.model_type not in TOWERS:
        raise UnsupportedModelError(
            f"model_type {fields.model_type!r:.{MOST_SHOWN}} is not supported ({', '.join(TOWERS)} are)"
        )
    tower = TOWERS[fields.model_type](fields)
    fields.finish()
    return tower


def read_llava(fields: Fields, text: ModelDescription) -> SquareVision:
    """Read the config of LLaVA: CLIP or SigLIP and two linear layers."""
    tower = _read_tower(fields.get("vision_config", _LLAVA_TOWER))
    check_scale(text)
    strategy = fields.get("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise UnsupportedModelError(
            f"vision_feature_select_strategy {strategy!r:.{MOST_SHOWN}} is not supported (default, full are)"
        )
    projector = LlavaProjector(
        layers=chosen_layers(fields.get("vision_feature_layer", -2), tower.layers),
        drops_first=strategy == "default",
        activation=read_activation(fields, "projector_hidden_act", "gelu"),
        bias=fields.flag("multimodal_projector_bias", True),
    )
    token = read_token(fields, "image", 32000, text)
    return SquareVision(
        tower=tower, projector=projector, placeholder=token, token=token, hidden_size=text.hidden_size
    )


def read_gemma3(fields: Fields, text: ModelDescription) -> SquareVision:
    """Read the config of Gemma 3: SigLIP, and squares of patches that are averaged."""
    tower = _read_tower({"model_type": "siglip_vision_model", **fields.get("vision_config", {})})
    if tower.kind != "siglip":
        raise UnsupportedModelError("vision_config.model_type must be 'siglip_vision_model'")
    wanted = fields.integer("mm_tokens_per_image", 256)
    square = tower.side // math.isqrt(wanted)
    if not square or (tower.side // square) ** 2 != wanted:
        raise UnsupportedModelError(f"mm_tokens_per_image {wanted} does not fit {tower.side} patches a side")
    for layer in text.layers:
        if isinstance(layer.mixer, Attention) and wanted > (layer.mixer.window or wanted):
            raise UnsupportedModelError(f"mm_tokens_per_image {wanted} is more than sliding_window")
    start = read_token(fields, "boi", 255999, text)
    return SquareVision(
        tower=tower,
        projector=PoolingProjector(side=square, eps=tower.eps),
        placeholder=start,
        starts=(start,),
        token=read_token(fields, "image", 262144, text),
        ends=(read_token(fields, "eoi", 256000, text),),
        around="\n\n",
        hidden_size=text.hidden_size,
        whole=True,
    )
