"""Read images with the tower of Gemma 4, which keeps their shape within a budget of patches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from plumbline.engines.native.models.description import ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.fields import Fields, Json
from plumbline.engines.native.models.vision.description import AxialRotation, Tower, TowerNames
from plumbline.engines.native.models.vision.fields import (
    read_activation,
    read_axial_theta,
    read_epsilon,
    read_token,
)
from plumbline.engines.native.models.vision.interface import Encode, Vision
from plumbline.engines.native.models.vision.layout import ImageLayout
from plumbline.engines.native.models.vision.processor import (
    ResizedPreparation,
    check_pixels,
    read_colours,
    read_processor,
    read_resample,
)
from plumbline.engines.native.models.vision.projectors import Averages
from plumbline.engines.native.models.vision.weights import BOUNDS

__all__ = ["Gemma4Preparation", "Gemma4Vision", "read_gemma4", "read_gemma4_processor"]

_UNUSED = "attention_bias default_output_length dtype global_head_dim max_position_embeddings torch_dtype"
"""Fields of the tower that do not change what is computed: the processor decides how many rows an image has."""
_BUDGETS = (70, 140, 280, 560, 1120)
"""The rows of an image at most; transformers' processor takes no others."""
_DEFAULTS: Json = {"do_normalize": False, "max_soft_tokens": 280, "patch_size": 16, "pooling_kernel_size": 3}
_WITHOUT_EFFECT = "crop_size do_center_crop do_pad pad_size size"
"""Fields that all processors have, and this one does not read."""
_NAMES = TowerNames(
    patches="vision_tower.patch_embedder.input_proj",
    positions="vision_tower.patch_embedder.position_embedding_table",
    layer="vision_tower.encoder.layers.{}.",
    before_mixer="input_layernorm",
    q_norm="self_attn.q_norm",
    k_norm="self_attn.k_norm",
    after_mixer="post_attention_layernorm",
    before_feed_forward="pre_feedforward_layernorm",
    up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    after_feed_forward="post_feedforward_layernorm",
    weight="linear.weight",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Vision(Vision):
    """How Gemma 4 reads images."""

    projector: Averages
    ends: tuple[int, int]
    """The tokens before and after an image."""

    @property
    def square(self) -> int:
        """Pixels of a side of what becomes a row."""
        return self.tower.patch_size * self.projector.side

    def layout(self, height: int, width: int, encode: Encode) -> ImageLayout:
        """See `Vision.layout`."""
        count = (height // self.square) * (width // self.square)
        return ImageLayout.within(self.ends[:1], self.token, count, self.ends[1:])

    @property
    def unused(self) -> tuple[str, ...]:
        """See `Vision.unused`; bounds of a tower that does not clip are among them."""
        if self.tower.clipped:
            return ()
        layers = [_NAMES.layer.format(index) for index in range(self.tower.layers)]
        linears = (*_NAMES.qkv, _NAMES.out, *_NAMES.up, _NAMES.down)
        return tuple(f"{layer}{name}.{bound}" for layer in layers for name in linears for bound in BOUNDS)


def read_gemma4(fields: Fields, text: ModelDescription) -> Gemma4Vision:
    """Read the config of Gemma 4."""
    tower, projector = _read_tower(fields.part("vision_config"))
    inside = fields.part("text_config")
    if text.token_inputs and inside.get("pad_token_id", 0) != 0:
        # Positions of images have the second embedding of this token.
        raise UnsupportedModelError("pad_token_id must be 0")
    token = read_token(fields, "image", 258880, text)
    return Gemma4Vision(
        tower=tower,
        projector=projector,
        placeholder=token,
        token=token,
        ends=(read_token(fields, "boi", 255999, text), read_token(fields, "eoi", 258882, text)),
        hidden_size=text.hidden_size,
        whole=inside.get("use_bidirectional_attention") == "vision",
    )


def _read_tower(fields: Fields) -> tuple[Tower, Averages]:
    if fields.model_type not in ("", "gemma4_vision"):
        raise UnsupportedModelError("vision_config.model_type must be 'gemma4_vision'")
    fields.without_effect(_UNUSED)
    theta = read_axial_theta(fields, 100.0)
    tower = Tower(
        hidden_size=fields.integer("hidden_size", 768),
        width=fields.integer("intermediate_size", 3072),
        layers=fields.integer("num_hidden_layers", 16),
        heads=fields.integer("num_attention_heads", 12),
        head_dim=fields.integer("head_dim", 64),
        activation=read_activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        rms=True,
        eps=read_epsilon(fields, "rms_norm_eps", 1e-6),
        bias=False,
        scores_scale=1.0,
        value_norm=True,
        packed=False,
        clipped=fields.flag("use_clipped_linears"),
        rotation=AxialRotation(theta=theta, columns_first=True, apart=True),
        patch_size=fields.integer("patch_size", 16),
        patch_kernel="linear, colours last",
        from_zero=True,
        positions="axes",
        num_positions=fields.integer("position_embedding_size", 10240),
        names=_NAMES,
    )
    projector = Averages(
        side=fields.integer("pooling_kernel_size", 3), standardised=fields.flag("standardize")
    )
    if fields.integer("num_key_value_heads", tower.heads) != tower.heads:
        raise UnsupportedModelError("num_key_value_heads must be num_attention_heads")
    if tower.head_dim % 4:
        raise UnsupportedModelError("head_dim must be a multiple of 4")
    fields.finish()
    return tower, projector


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Preparation(ResizedPreparation):
    """How an image becomes pixels from 0 to 1."""

    rows: int
    """Of an image at most."""

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the largest size of about the same shape that has no more than the rows."""
        factor = math.sqrt(self.rows * self.square**2 / (height * width))
        lines, columns = int(factor * height / self.square), int(factor * width / self.square)
        if not lines:
            lines, columns = 1, min(width // height, self.rows)
        elif not columns:
            lines, columns = min(height // width, self.rows), 1
        return lines * self.square, columns * self.square


def read_gemma4_processor(folder: Path, vision: Gemma4Vision) -> Gemma4Preparation:
    """Read the image processor of a model folder.

    Raises:
        UnsupportedModelError: there is none, or it does something that is not supported; the message names the field.
    """
    processor = read_processor(folder, {"Gemma4ImageProcessor": _DEFAULTS})
    processor.check_class("Gemma4Processor")
    fields, tower, pool = processor.images, vision.tower, vision.projector.side
    fields.without_effect(_WITHOUT_EFFECT)
    for name, known in (("patch_size", tower.patch_size), ("pooling_kernel_size", pool)):
        if (found := fields.integer(name)) != known:
            raise UnsupportedModelError(f"{name} is {found} in its processor, and {known} in config.json")
    if (rows := fields.integer("max_soft_tokens")) not in _BUDGETS:
        raise UnsupportedModelError(f"max_soft_tokens {rows} is not one of {', '.join(map(str, _BUDGETS))}")
    if rows * pool > tower.num_positions:
        raise UnsupportedModelError(
            f"max_soft_tokens {rows} gives an image {rows * pool} columns, and position_embedding_size has "
            f"{tower.num_positions}"
        )
    check_pixels("patch_size", rows * vision.square**2)
    preparation = Gemma4Preparation(
        rows=rows, square=vision.square, resample=read_resample(fields, 3), colours=read_colours(fields)
    )
    fields.finish()
    return preparation
