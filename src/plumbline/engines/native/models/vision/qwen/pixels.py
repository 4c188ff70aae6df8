"""Resize images to whole squares of patches, as the processor of a Qwen-VL folder does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields, Json
from plumbline.engines.native.models.vision.processor import (
    ResizedPreparation,
    read_colours,
    read_processor,
    read_resample,
)
from plumbline.engines.native.models.vision.qwen.description import QwenVision

__all__ = ["QwenPreparation", "read_qwen_processor"]

_MOST_PATCHES = 2**17
"""Of an image; processors of releases allow half as many."""
_MOST_PIXELS = 2**25
_MOST_OF_THE_LEAST = 2**20
"""Pixels to which the smallest image may be enlarged; 65,536 in releases."""
_DEFAULTS: Json = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
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
