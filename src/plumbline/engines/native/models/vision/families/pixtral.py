"""Read images of any shape with Pixtral's tower: Pixtral itself is a LLaVA, later models are Mistral 3."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plumbline.engines.native.models.description import ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields, Json
from plumbline.engines.native.models.vision.description import AxialRotation, Tower, TowerNames
from plumbline.engines.native.models.vision.fields import (
    check_scale,
    chosen_layers,
    read_activation,
    read_axial_theta,
    read_sizes,
    read_token,
)
from plumbline.engines.native.models.vision.interface import Encode, Vision
from plumbline.engines.native.models.vision.layout import ImageLayout, Part
from plumbline.engines.native.models.vision.processor import (
    CLIP_COLOURS,
    Processor,
    ResizedPreparation,
    check_pixels,
    read_colours,
    read_processor,
    read_resample,
)
from plumbline.engines.native.models.vision.projectors import TwoLayers
from plumbline.media.images import ImageError

__all__ = ["PixtralPreparation", "PixtralVision", "read_mistral3", "read_pixtral", "read_pixtral_processor"]

_BREAK, _END = "[IMG_BREAK]", "[IMG_END]"
"""The tokens after each line of an image, and after the last one."""
_UNUSED = "dtype image_size tie_word_embeddings torch_dtype vocab_size"
"""Fields of the tower that do not change what is computed: the processor decides how large images are."""
_MISTRAL3_TOWER: Json = {"model_type": "pixtral", "patch_size": 14}
"""The tower of a Mistral 3 whose config describes none."""
_MOST_PATCHES = 16_384
"""Of an image; 12,100 is the most of a release. The cost of attention is quadratic in them."""
_DEFAULTS: Json = {
    **CLIP_COLOURS,
    "size": {"longest_edge": 1024},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralVision(Vision):
    """How a model reads images with Pixtral's tower."""

    projector: TwoLayers

    @property
    def square(self) -> int:
        """Pixels of a side of what becomes a row."""
        return self.tower.patch_size * self.projector.merge

    def layout(self, height: int, width: int, encode: Encode) -> ImageLayout:
        """See `Vision.layout`."""
        lines, columns = height // self.square, width // self.square
        end_of_line, tokens, parts = encode(_BREAK), list[int](), []
        for line in range(lines):
            parts.append(Part(len(tokens), line * columns, columns))
            tokens += [self.token] * columns
            tokens += end_of_line if line < lines - 1 else encode(_END)
        return ImageLayout(tuple(tokens), tuple(parts))


def read_pixtral(fields: Fields, text: ModelDescription) -> PixtralVision:
    """Read the config of Pixtral 12B: a LLaVA without merged patches."""
    if (strategy := fields.get("vision_feature_select_strategy", "default")) != "full":
        raise UnsupportedModelError(
            f"vision_feature_select_strategy {strategy!r:.{MOST_SHOWN}} is not supported with pixtral (full is)"
        )
    tower = _tower(fields.part("vision_config"))
    projector = TwoLayers(
        layers=chosen_layers(fields.get("vision_feature_layer", -2), tower.layers),
        activation=read_activation(fields, "projector_hidden_act", "gelu"),
        bias=fields.flag("multimodal_projector_bias", True),
    )
    return _vision(fields, text, tower, projector, token=32000)


def read_mistral3(fields: Fields, text: ModelDescription) -> PixtralVision:
    """Read the config of Mistral Small 3.1 and 3.2, and Ministral 3: squares of patches are merged."""
    tower = _tower(fields.part("vision_config", _MISTRAL3_TOWER))
    layers = chosen_layers(fields.get("vision_feature_layer", -1), tower.layers)
    if len(layers) > 1:
        raise UnsupportedModelError("vision_feature_layer must name one layer")
    projector = TwoLayers(
        layers=layers,
        merge=fields.integer("spatial_merge_size", 2),
        merger_eps=text.norm.eps,
        activation=read_activation(fields, "projector_hidden_act", "gelu"),
        bias=fields.flag("multimodal_projector_bias"),
    )
    return _vision(fields, text, tower, projector, token=10)


def _vision(
    fields: Fields, text: ModelDescription, tower: Tower, projector: TwoLayers, *, token: int
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
    tower = Tower(
        **read_sizes(fields, 1024, 4096, 24, 16, 16),
        activation=read_activation(fields, "hidden_act", "gelu"),
        rms=True,
        eps=1e-5,
        bias=False,
        rotation=AxialRotation(theta=read_axial_theta(fields, 10000.0), alternating=True),
        names=TowerNames(
            patches="vision_tower.patch_conv",
            first_norm="vision_tower.ln_pre",
            layer="vision_tower.transformer.layers.{}.",
            before_mixer="attention_norm",
            qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
            out="attention.o_proj",
            before_feed_forward="ffn_norm",
            up=("feed_forward.gate_proj", "feed_forward.up_proj"),
            down="feed_forward.down_proj",
        ),
    )
    if tower.head_dim % 4 or fields.integer("head_dim", tower.head_dim) != tower.head_dim:
        raise UnsupportedModelError(
            "hidden_size must be num_attention_heads times head_dim, and that a multiple of 4"
        )
    fields.finish()
    return tower


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralPreparation(ResizedPreparation):
    """How an image becomes pixels: with a longest side."""

    longest: int
    """Pixels of a side, before it is rounded up to whole squares."""

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """See `ResizedPreparation.resized`."""
        ratio, given = max(height, width) / self.longest, (height, width)
        if ratio > 1:
            height, width = int(height / ratio), int(width / ratio)
        if not height or not width:
            raise ImageError(
                f"has {given[1]} x {given[0]} pixels; nothing is left of the shorter side when this model reduces the "
                f"longer one to {self.longest}",
                "image_parse_error",
            )
        return -(-height // self.square) * self.square, -(-width // self.square) * self.square


def read_pixtral_processor(folder: Path, vision: PixtralVision) -> PixtralPreparation:
    """Read the image processor of a model folder.

    Raises:
        UnsupportedModelError: there is none, or it does something that is not supported; the message names the field.
    """
    processor = read_processor(folder, {"PixtralImageProcessor": _DEFAULTS})
    _check_tokens(processor, vision)
    fields, square = processor.images, vision.square
    # The processor's own size of patches comes before this one, and there is nothing to pad beside one image.
    fields.without_effect("crop_size do_pad pad_size patch_size")
    fields.refuse("do_center_crop")
    size = fields.get("size")
    longest = size["longest_edge"] if isinstance(size, dict) and size.keys() == {"longest_edge"} else None
    if type(longest) is not int or longest < 1:
        raise UnsupportedModelError(
            f"size {size!r:.{MOST_SHOWN}} of its processor must have a longest_edge alone, a positive integer"
        )
    if (count := (-(-longest // square) * vision.projector.merge) ** 2) > _MOST_PATCHES:
        raise UnsupportedModelError(
            f"longest_edge {longest} gives an image {count} patches, and {_MOST_PATCHES} are the most that is supported"
        )
    check_pixels("patch_size", (longest + square) ** 2)
    preparation = PixtralPreparation(
        longest=longest, square=square, resample=read_resample(fields, 3), colours=read_colours(fields)
    )
    fields.finish()
    return preparation


def _check_tokens(processor: Processor, vision: PixtralVision) -> None:
    """Check that transformers' processor would write the tokens of `PixtralVision.layout`."""
    processor.check_class("PixtralProcessor")
    whole = Fields(processor.whole)
    for name, known in (("image_break_token", _BREAK), ("image_end_token", _END)):
        if (found := whole.get(name, known)) != known:
            raise UnsupportedModelError(f"{name} {found!r:.{MOST_SHOWN}} is not supported ({known} is)")
    square = whole.integer("patch_size", 16) * whole.integer("spatial_merge_size", 1)
    if square != vision.square:
        raise UnsupportedModelError(
            f"patch_size and spatial_merge_size of processor_config.json give a token {square} x {square} pixels, and "
            f"those of config.json {vision.square} x {vision.square}"
        )
