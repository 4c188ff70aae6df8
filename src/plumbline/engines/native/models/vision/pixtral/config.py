"""Read the config of models with Pixtral's tower: Pixtral itself is a LLaVA, later ones are Mistral 3."""

from __future__ import annotations

from plumbline.engines.native.models.description import ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields, Json
from plumbline.engines.native.models.vision.fields import (
    check_scale,
    chosen_layers,
    read_activation,
    read_axial_theta,
    read_token,
)
from plumbline.engines.native.models.vision.pixtral.description import PixtralVision, Projector, Tower

__all__ = ["read_mistral3", "read_pixtral"]

_UNUSED = "dtype image_size tie_word_embeddings torch_dtype vocab_size"
"""Fields of the tower that do not change what is computed: the processor decides how large images are."""
_MISTRAL3_TOWER: Json = {"model_type": "pixtral", "patch_size": 14}
"""The tower of a Mistral 3 whose config describes none."""


def read_pixtral(fields: Fields, text: ModelDescription) -> PixtralVision:
    """Read the config of Pixtral 12B: a LLaVA without merged patches."""
    if (strategy := fields.get("vision_feature_select_strategy", "default")) != "full":
        raise UnsupportedModelError(
            f"vision_feature_select_strategy {strategy!r:.{MOST_SHOWN}} is not supported with pixtral (full is)"
        )
    tower = _tower(fields.part("vision_config"))
    return _vision(
        fields,
        text,
        tower,
        Projector(
            layers=chosen_layers(fields.get("vision_feature_layer", -2), tower.layers),
            merge=1,
            merger_eps=None,
            activation=read_activation(fields, "projector_hidden_act", "gelu"),
            bias=fields.flag("multimodal_projector_bias", True),
        ),
        token=32000,
    )


def read_mistral3(fields: Fields, text: ModelDescription) -> PixtralVision:
    """Read the config of Mistral Small 3.1 and 3.2, and Ministral 3: squares of patches are merged."""
    tower = _tower(fields.part("vision_config", _MISTRAL3_TOWER))
    layers = chosen_layers(fields.get("vision_feature_layer", -1), tower.layers)
    if len(layers) > 1:
        raise UnsupportedModelError("vision_feature_layer must name one layer")
    return _vision(
        fields,
        text,
        tower,
        Projector(
            layers=layers,
            merge=fields.integer("spatial_merge_size", 2),
            merger_eps=text.norm.eps,
            activation=read_activation(fields, "projector_hidden_act", "gelu"),
            bias=fields.flag("multimodal_projector_bias"),
        ),
        token=10,
    )


def _vision(
    fields: Fields, text: ModelDescription, tower: Tower, projector: Projector, *, token: int
) -> PixtralVision:
    check_scale(text)
    token = read_token(fields, "image", token, text)
    return PixtralVision(
        tower=tower, projector=projector, placeholder=token, token=token, hidden_size=text.hidden_size
    )


def _tower(fields: Fields) -> Tower:
    if fields.model_type != "pixtral":
        raise UnsupportedModelError("vision_config.model_type must be 'pixtral'")
    fields.without_effect(_UNUSED)
    if fields.integer("num_channels", 3) != 3:
        raise UnsupportedModelError("num_channels must be 3")
    tower = Tower(
        hidden_size=fields.integer("hidden_size", 1024),
        width=fields.integer("intermediate_size", 4096),
        layers=fields.integer("num_hidden_layers", 24),
        heads=fields.integer("num_attention_heads", 16),
        patch_size=fields.integer("patch_size", 16),
        activation=read_activation(fields, "hidden_act", "gelu"),
        theta=read_axial_theta(fields, 10000.0),
    )
    head_dim = tower.hidden_size // tower.heads
    if tower.hidden_size % tower.heads or head_dim % 4 or fields.integer("head_dim", head_dim) != head_dim:
        raise UnsupportedModelError(
            "hidden_size must be num_attention_heads times head_dim, and that a multiple of 4"
        )
    fields.finish()
    return tower
