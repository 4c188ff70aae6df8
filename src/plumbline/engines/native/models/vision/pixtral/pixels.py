"""Resize images to whole squares of patches, as Pixtral's processor does, and not to more than its longest edge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields, Json
from plumbline.engines.native.models.vision.pixtral.description import BREAK, END, PixtralVision
from plumbline.engines.native.models.vision.processor import (
    Processor,
    ResizedPreparation,
    check_pixels,
    read_colours,
    read_processor,
    read_resample,
)
from plumbline.media.images import ImageError

__all__ = ["PixtralPreparation", "read_pixtral_processor"]

_MOST_PATCHES = 16_384
"""Of an image; 12,100 is the most of a release. The cost of attention is quadratic in them."""
_DEFAULTS: Json = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "size": {"longest_edge": 1024},
}


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
    for name, known in (("image_break_token", BREAK), ("image_end_token", END)):
        if (found := whole.get(name, known)) != known:
            raise UnsupportedModelError(f"{name} {found!r:.{MOST_SHOWN}} is not supported ({known} is)")
    square = whole.integer("patch_size", 16) * whole.integer("spatial_merge_size", 1)
    if square != vision.square:
        raise UnsupportedModelError(
            f"patch_size and spatial_merge_size of processor_config.json give a token {square} x {square} pixels, and "
            f"those of config.json {vision.square} x {vision.square}"
        )
