"""Read the config of Gemma 4's images."""

from __future__ import annotations

from plumbline.engines.native.models.description import ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.fields import Fields
from plumbline.engines.native.models.vision.fields import (
    read_activation,
    read_axial_theta,
    read_epsilon,
    read_token,
)
from plumbline.engines.native.models.vision.gemma4.description import Gemma4Vision, Tower

__all__ = ["read_gemma4"]

_UNUSED = "attention_bias default_output_length dtype global_head_dim max_position_embeddings torch_dtype"
"""Fields of the tower that do not change what is computed: the processor decides how many rows an image has."""


def read_gemma4(fields: Fields, text: ModelDescription) -> Gemma4Vision:
    """Read the config of Gemma 4."""
    tower = _tower(fields.part("vision_config"))
    inside = fields.part("text_config")
    if text.token_inputs and inside.get("pad_token_id", 0) != 0:
        # Positions of images have the second embedding of this token.
        raise UnsupportedModelError("pad_token_id must be 0")
    token = read_token(fields, "image", 258880, text)
    return Gemma4Vision(
        tower=tower,
        placeholder=token,
        token=token,
        ends=(read_token(fields, "boi", 255999, text), read_token(fields, "eoi", 258882, text)),
        hidden_size=text.hidden_size,
        whole=inside.get("use_bidirectional_attention") == "vision",
    )


def _tower(fields: Fields) -> Tower:
    if fields.model_type not in ("", "gemma4_vision"):
        raise UnsupportedModelError("vision_config.model_type must be 'gemma4_vision'")
    fields.without_effect(_UNUSED)
    tower = Tower(
        hidden_size=fields.integer("hidden_size", 768),
        width=fields.integer("intermediate_size", 3072),
        layers=fields.integer("num_hidden_layers", 16),
        heads=fields.integer("num_attention_heads", 12),
        head_dim=fields.integer("head_dim", 64),
        patch_size=fields.integer("patch_size", 16),
        pool=fields.integer("pooling_kernel_size", 3),
        positions=fields.integer("position_embedding_size", 10240),
        activation=read_activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        eps=read_epsilon(fields, "rms_norm_eps", 1e-6),
        theta=read_axial_theta(fields, 100.0),
        clipped=fields.flag("use_clipped_linears"),
        standardised=fields.flag("standardize"),
    )
    if fields.integer("num_key_value_heads", tower.heads) != tower.heads:
        raise UnsupportedModelError("num_key_value_heads must be num_attention_heads")
    if tower.head_dim % 4:
        raise UnsupportedModelError("head_dim must be a multiple of 4")
    fields.finish()
    return tower
