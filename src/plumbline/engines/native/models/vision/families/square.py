"""Read images of one square size with CLIP or SigLIP: LLaVA and Gemma 3.

The arithmetic of pixels is that of transformers' image processors with Pillow. It is ours because importing those takes
seconds, which the first request with an image would wait for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from plumbline.engines.native.models.description import (
    Attention,
    ModelDescription,
    UnsupportedModelError,
)
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields, Json
from plumbline.engines.native.models.vision.description import Tower, TowerNames
from plumbline.engines.native.models.vision.fields import (
    check_scale,
    chosen_layers,
    read_activation,
    read_epsilon,
    read_sizes,
    read_token,
)
from plumbline.engines.native.models.vision.interface import Encode, Vision
from plumbline.engines.native.models.vision.layout import ImageLayout
from plumbline.engines.native.models.vision.processor import (
    CLIP_COLOURS,
    HALF_COLOURS,
    Colours,
    Processor,
    read_colours,
    read_processor,
    read_resample,
)
from plumbline.engines.native.models.vision.projectors import PoolingProjector, TwoLayers
from plumbline.media.images import ImageError, decode_image

__all__ = ["SquarePreparation", "SquareVision", "read_gemma3", "read_llava", "read_square_processor"]

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
_MOST_SIDE = 4096
"""Pixels of a side after the resize; the longer side may be 200 times as long."""
_MOST_PIXELS = 100_000_000
"""Of an image that is made square: one of 89,000 x 446 pixels would have eight billion."""

_CLIP: Json = {
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    **CLIP_COLOURS,
    "size": {"shortest_edge": 224},
}
_SIGLIP: Json = {**HALF_COLOURS, "size": {"height": 224, "width": 224}}
_KINDS: dict[str, Json] = {
    "CLIPImageProcessor": _CLIP,
    "LlavaImageProcessor": _CLIP,
    "SiglipImageProcessor": _SIGLIP,
    "Gemma3ImageProcessor": {**_SIGLIP, "resample": 2},
}
"""The image processors that are known, with their defaults."""
_PANNING = "pan_and_scan_max_num_crops pan_and_scan_min_crop_size pan_and_scan_min_ratio_to_activate"
"""Without effect where `do_pan_and_scan` is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareVision(Vision):
    """How a model reads images of one square size."""

    starts: tuple[int, ...] = ()
    """Tokens before an image."""
    ends: tuple[int, ...] = ()
    """Tokens after it."""
    around: str = ""
    """The text around all these, such as empty lines."""

    def layout(self, height: int, width: int, encode: Encode) -> ImageLayout:
        """See `Vision.layout`; all images have one size."""
        around = encode(self.around) if self.around else ()
        before, after = (*around, *self.starts), (*self.ends, *around)
        return ImageLayout.within(before, self.token, self.num_tokens, after)

    @property
    def unused(self) -> tuple[str, ...]:
        """See `Vision.unused`."""
        last = () if isinstance(self.projector, PoolingProjector) else ("vision_tower.post_layernorm.",)
        more = ("vision_tower.embeddings.position_ids", "vision_tower.head.", *last)
        return (*more, *self.later_layers)

    @property
    def num_tokens(self) -> int:
        """Positions of an image in the text."""
        tower, projector = self.tower, self.projector
        if isinstance(projector, TwoLayers):
            return tower.num_positions - projector.drops_first
        assert isinstance(projector, PoolingProjector)
        return int((tower.side // projector.side) ** 2)


# The kinds of towers by `vision_config.model_type`: the size of a patch, the activation and the epsilon by default.
_TOWERS = {
    "clip_vision_model": (32, "quick_gelu", 1e-5),
    "siglip_vision_model": (16, "gelu_pytorch_tanh", 1e-6),
}


def _read_tower(config: Json) -> Tower:
    fields = Fields(config)
    if fields.model_type not in _TOWERS:
        raise UnsupportedModelError(
            f"model_type {fields.model_type!r:.{MOST_SHOWN}} is not supported ({', '.join(_TOWERS)} are)"
        )
    patch, activation, eps = _TOWERS[fields.model_type]
    is_clip = fields.model_type == "clip_vision_model"
    fields.without_effect(_UNUSED)
    sizes, image_size = read_sizes(fields, 768, 3072, 12, 12, patch), fields.integer("image_size", 224)
    tower = Tower(
        **sizes,
        activation=read_activation(fields, "hidden_act", activation),
        rms=False,
        eps=read_epsilon(fields, "layer_norm_eps", eps),
        bias=True,
        patch_bias=not is_clip,
        image_size=image_size,
        class_row="first" if is_clip else None,
        positions="each",
        num_positions=(image_size // sizes["patch_size"]) ** 2 + is_clip,
        names=TowerNames(
            patches="vision_tower.embeddings.patch_embedding",
            class_row="vision_tower.embeddings.class_embedding",
            positions="vision_tower.embeddings.position_embedding.weight",
            first_norm="vision_tower.pre_layrnorm" if is_clip else "",
            layer="vision_tower.encoder.layers.{}.",
            before_mixer="layer_norm1",
            out="self_attn.out_proj",
            before_feed_forward="layer_norm2",
        ),
    )
    if not tower.side:
        raise UnsupportedModelError("patch_size must not be more than image_size")
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
    projector = TwoLayers(
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
    if tower.class_row:
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
        projector=PoolingProjector(side=square),
        placeholder=start,
        starts=(start,),
        token=read_token(fields, "image", 262144, text),
        ends=(read_token(fields, "eoi", 256000, text),),
        around="\n\n",
        hidden_size=text.hidden_size,
        whole=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SquarePreparation:
    """How an image becomes pixels: made square, resized, cropped, rescaled, normalised; None leaves a part out."""

    fill: tuple[int, int, int] | None
    """The colour that makes an image square first."""
    shortest: int | None
    """Pixels of the shorter side after the resize."""
    size_after: tuple[int, int] | None
    """Height and width after the resize, if the shorter side does not decide them."""
    resample: int
    """Pillow's number of the filter."""
    crop: tuple[int, int] | None
    """Height and width of the middle that is kept."""
    colours: Colours

    def size(self, data: bytes) -> tuple[int, int]:
        """See `Preparation.size`: all images have one size, so no file is read."""
        size = self.crop or self.size_after
        assert size is not None, "read_square_processor() checks it"
        return size

    def pixels(self, data: bytes) -> Tensor:
        """See `Preparation.pixels`."""
        return self.colours.tensor(self._cropped(self._resized(decode_image(data))))

    def _resized(self, image: Any) -> Any:
        from PIL import Image

        width, height = image.size
        if self.fill is not None and width != height:
            side = max(width, height)
            if side * side > _MOST_PIXELS:
                raise ImageError(
                    f"has {width} x {height} pixels; as a square, which this model reads, it would have more than "
                    f"{_MOST_PIXELS}",
                    "image_too_large",
                )
            square = Image.new("RGB", (side, side), self.fill)
            square.paste(image, ((side - width) // 2, (side - height) // 2))
            image, width, height = square, side, side
        if self.size_after is not None:
            height, width = self.size_after
        elif self.shortest is not None:
            longer = int(self.shortest * max(width, height) / min(width, height))
            width, height = (self.shortest, longer) if width <= height else (longer, self.shortest)
        return image.resize((width, height), resample=self.resample)

    def _cropped(self, image: Any) -> Any:
        if self.crop is None:
            return image
        height, width = self.crop
        left, top = (image.width - width) // 2, (image.height - height) // 2
        return image.crop((left, top, left + width, top + height))


def read_square_processor(folder: Path, vision: SquareVision) -> SquarePreparation:
    """Read the image processor of a model folder.

    Raises:
        UnsupportedModelError: there is none, or it does something that is not supported; the message names the field.
    """
    processor = read_processor(folder, _KINDS)
    _check_tokens(processor, vision)
    fields = processor.images
    fields.without_effect(_PANNING)
    fields.refuse("do_pan_and_scan")
    preparation = _read(fields, pads=processor.kind == "LlavaImageProcessor")
    fields.finish()
    side = vision.tower.image_size
    if (made := preparation.crop or preparation.size_after) != (side, side):
        raise UnsupportedModelError(
            f"its processor makes images of {made or 'any size'}, and the tower reads {side} x {side} pixels"
        )
    return preparation


def _read(fields: Fields, *, pads: bool) -> SquarePreparation:
    resample, size, colours = read_resample(fields, 3), _size(fields.get("size")), read_colours(fields)
    if (shortest := size if isinstance(size, int) else max(size)) > _MOST_SIDE:
        raise UnsupportedModelError(f"size {shortest} is not supported: a side may have {_MOST_SIDE} pixels")
    return SquarePreparation(
        fill=_fill(fields, colours.mean, pads=pads),
        shortest=size if isinstance(size, int) else None,
        size_after=None if isinstance(size, int) else size,
        resample=resample,
        crop=_crop(fields, size if isinstance(size, int) else min(size)),
        colours=colours,
    )


def _crop(fields: Fields, most: int) -> tuple[int, int] | None:
    """Read the size of the middle that is kept, of sides of `most` pixels at least."""
    crop = fields.get("crop_size")
    if not fields.flag("do_center_crop") or not crop:
        return None
    found = _size({"height": crop, "width": crop} if isinstance(crop, int) else crop)
    if isinstance(found, int) or max(found) > most:
        raise UnsupportedModelError(
            f"crop_size {crop!r:.{MOST_SHOWN}} must be a height and a width, and not more than size"
        )
    return found


def _fill(fields: Fields, mean: tuple[float, ...] | None, *, pads: bool) -> tuple[int, int, int] | None:
    """Read the colour around an image that is made square."""
    if not fields.flag("do_pad"):
        return None
    if not pads or mean is None:
        raise UnsupportedModelError("do_pad is supported for LlavaImageProcessor with do_normalize only")
    red, green, blue = (int(value * 255) for value in mean)
    return red, green, blue


def _size(value: Any) -> int | tuple[int, int]:
    """Read a size: the shorter side, or height and width."""
    if isinstance(value, int):
        return value
    if isinstance(value, dict) and value.keys() == {"shortest_edge"}:
        return int(value["shortest_edge"])
    if isinstance(value, dict) and value.keys() == {"height", "width"}:
        return int(value["height"]), int(value["width"])
    raise UnsupportedModelError(f"size {value!r:.{MOST_SHOWN}} is not supported")


def _check_tokens(processor: Processor, vision: SquareVision) -> None:
    """Check that transformers' processor would write as many placeholders as the tower has rows."""
    found, counted = processor.whole, vision.num_tokens
    if isinstance(vision.projector, PoolingProjector):
        processor.check_class("Gemma3Processor")
        count = found.get("image_seq_length", counted)
    else:
        processor.check_class("LlavaProcessor")
        count = counted
        if "patch_size" in found:
            side = vision.tower.image_size // int(found["patch_size"] or vision.tower.patch_size)
            first = found.get("vision_feature_select_strategy") == "default"
            count = side * side + int(found.get("num_additional_image_tokens") or 0) - first
    if count != counted:
        raise UnsupportedModelError(
            f"processor_config.json gives an image {count} tokens, and config.json {counted}"
        )
