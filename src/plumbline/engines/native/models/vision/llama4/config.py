"""Read the config of Llama 4's images."""

from __future__ import annotations

from plumbline.engines.native.models.description import ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields
from plumbline.engines.native.models.vision.fields import read_axial_theta, read_token
from plumbline.engines.native.models.vision.llama4.description import IMAGE, Llama4Vision, Tower

__all__ = ["read_llama4"]

_UNUSED = (
    "dtype hidden_act multi_modal_projector_bias norm_eps projector_dropout torch_dtype "
    "vision_feature_layer vision_feature_select_strategy"
)
"""Fields of the tower that do not change what is computed: activations are GELU, and norms have torch's epsilon."""


def read_llama4(fields: Fields, text: ModelDescription) -> Llama4Vision:
    """Read the config of Llama 4."""
    return Llama4Vision(
        tower=_tower(fields.part("vision_config", {})),
        placeholder=IMAGE,
        token=read_token(fields, "image", 200092, text),
        hidden_size=text.hidden_size,
    )


def _tower(fields: Fields) -> Tower:
    if fields.model_type not in ("", "llama4_vision_model"):
        raise UnsupportedModelError("vision_config.model_type must be 'llama4_vision_model'")
    fields.without_effect(_UNUSED)
    if fields.integer("num_channels", 3) != 3:
        raise UnsupportedModelError("num_channels must be 3")
    ratio = fields.number("pixel_shuffle_ratio", 0.5)
    if not 0.0 < ratio <= 1.0:
        raise UnsupportedModelError(f"pixel_shuffle_ratio {ratio!r:.{MOST_SHOWN}} must be at most 1")
    tower = Tower(
        hidden_size=fields.integer("hidden_size", 768),
        width=fields.integer("intermediate_size", 5632),
        layers=fields.integer("num_hidden_layers", 34),
        heads=fields.integer("num_attention_heads", 16),
        image_size=fields.integer("image_size", 448),
        patch_size=fields.integer("patch_size", 14),
        merge=round(1 / ratio),
        adapter=fields.integer("projector_output_dim", 4096),
        theta=read_axial_theta(fields, 10000.0),
    )
    if 1 / tower.merge != ratio or not tower.side or tower.side % tower.merge:
        raise UnsupportedModelError(
            f"pixel_shuffle_ratio {ratio} does not fit {tower.side} patches a side (image_size / patch_size)"
        )
    if tower.hidden_size % (4 * tower.heads):
        raise UnsupportedModelError("hidden_size must be a multiple of 4 times num_attention_heads")
    if tower.width != tower.hidden_size * tower.merge**2:
        raise UnsupportedModelError("intermediate_size must be hidden_size over pixel_shuffle_ratio squared")
    for name, default in (("projector_input_dim", 4096), ("vision_output_dim", 7680)):
        if fields.integer(name, default) != tower.adapter:
            raise UnsupportedModelError(f"{name} must be projector_output_dim, which is {tower.adapter}")
    fields.finish()
    return tower
