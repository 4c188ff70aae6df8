"""Resize images to whole squares of patches within a budget, as Gemma 4's processor does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import Json
from plumbline.engines.native.models.vision.gemma4.description import Gemma4Vision
from plumbline.engines.native.models.vision.processor import (
    ResizedPreparation,
    check_pixels,
    read_colours,
    read_processor,
    read_resample,
)

__all__ = ["Gemma4Preparation", "read_gemma4_processor"]

_BUDGETS = (70, 140, 280, 560, 1120)
"""The rows of an image at most; transformers' processor takes no others."""
_DEFAULTS: Json = {"do_normalize": False, "max_soft_tokens": 280, "patch_size": 16, "pooling_kernel_size": 3}
_WITHOUT_EFFECT = "crop_size do_center_crop do_pad pad_size size"
"""Fields that all processors have, and this one does not read."""


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
    fields, tower = processor.images, vision.tower
    fields.without_effect(_WITHOUT_EFFECT)
    for name, known in (("patch_size", tower.patch_size), ("pooling_kernel_size", tower.pool)):
        if (found := fields.integer(name)) != known:
            raise UnsupportedModelError(f"{name} is {found} in its processor, and {known} in config.json")
    if (rows := fields.integer("max_soft_tokens")) not in _BUDGETS:
        raise UnsupportedModelError(f"max_soft_tokens {rows} is not one of {', '.join(map(str, _BUDGETS))}")
    if rows * tower.pool > tower.positions:
        raise UnsupportedModelError(
            f"max_soft_tokens {rows} gives an image {rows * tower.pool} columns, and position_embedding_size has "
            f"{tower.positions}"
        )
    check_pixels("patch_size", rows * vision.square**2)
    preparation = Gemma4Preparation(
        rows=rows, square=vision.square, resample=read_resample(fields, 3), colours=read_colours(fields)
    )
    fields.finish()
    return preparation
