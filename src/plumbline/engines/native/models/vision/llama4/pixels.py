"""Resize images to a canvas of tiles, as Llama 4's processor does with torchvision, whose arithmetic is torch's.

An image that does not fill its canvas is at the left and top, beside black. One of several tiles is a tile besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields, Json
from plumbline.engines.native.models.vision.llama4.description import IMAGE, Llama4Vision
from plumbline.engines.native.models.vision.processor import (
    Colours,
    Processor,
    check_pixels,
    read_colours,
    read_processor,
    read_resample,
)
from plumbline.media.images import decode_image, upright_size

__all__ = ["Llama4Preparation", "read_llama4_processor"]

_BILINEAR = 2
_DEFAULTS: Json = {
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_patches": 16,
    "resample": _BILINEAR,
    "size": {"height": 336, "width": 336},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Preparation:
    """How an image becomes tiles."""

    side: int
    """Pixels of a side of a tile."""
    tiles: int
    """Of an image at most, besides the one of the whole image."""
    enlarges: bool
    """Whether the canvas is the largest one to which an image can be enlarged, and not the smallest."""
    colours: Colours

    def size(self, data: bytes) -> tuple[int, int]:
        """See `Preparation.size`."""
        height, width = self._canvas(*upright_size(data))
        return height, width if height == width == self.side else width + self.side

    def pixels(self, data: bytes) -> Tensor:
        """See `Preparation.pixels`; an image of several tiles has the whole image as one at the right."""
        image = decode_image(data)
        canvas = self._canvas(image.height, image.width)
        values = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        fitted = _resized(values, *self._fitted(image.height, image.width, canvas))
        height, width = fitted.shape[1:]
        found = F.pad(fitted, (0, canvas[1] - width, 0, canvas[0] - height))
        if canvas != (self.side, self.side):
            whole = _resized(values, self.side, self.side)
            found = torch.cat((found, F.pad(whole, (0, 0, 0, canvas[0] - self.side))), 2)
        return self._normalised(found)

    def _canvas(self, height: int, width: int) -> tuple[int, int]:
        """Return the canvas that changes an image the least, and of several the one with the fewest pixels."""
        canvases = torch.tensor(_grids(self.tiles)) * self.side
        # In fp32, in which transformers compares them.
        scales = torch.minimum(canvases[:, 0] / height, canvases[:, 1] / width)
        larger = scales[scales >= 1]
        best = scales.max() if self.enlarges or not len(larger) else larger.min()
        fitting = canvases[scales == best]
        lines, columns = fitting[fitting.prod(1).argmin()].tolist()
        return lines, columns

    def _fitted(self, height: int, width: int, canvas: tuple[int, int]) -> tuple[int, int]:
        """Return the size of an image of the same shape within its canvas, which is enlarged to a tile at most."""
        most_height, most_width = canvas
        if not self.enlarges:
            most_height = min(max(height, self.side), most_height)
            most_width = min(max(width, self.side), most_width)
        by_height, by_width = most_height / height, most_width / width
        if by_width < by_height:
            most_height = min(int(height * by_width), most_height)
        else:
            most_width = min(int(width * by_height), most_width)
        return max(most_height, 1), max(most_width, 1)

    def _normalised(self, values: Tensor) -> Tensor:
        """Return colours from 0 to 255 as the tower reads them; the model was trained with them rounded to bf16."""
        colours = self.colours
        assert colours.factor is not None, "read_llama4_processor() checks it"
        assert colours.mean is not None
        assert colours.std is not None
        mean, std = (
            torch.tensor(each, dtype=torch.bfloat16).view(3, 1, 1) for each in (colours.mean, colours.std)
        )
        return ((values.to(torch.bfloat16) * colours.factor - mean) / std).float()


def _grids(tiles: int) -> list[tuple[int, int]]:
    """Return the lines and columns of each grid of so many tiles at most, in transformers' order."""
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for count in range(tiles, 0, -1):
        for lines in range(1, count + 1):
            if count % lines == 0:
                by_ratio.setdefault(lines / (count // lines), []).append((lines, count // lines))
    return [grid for grids in by_ratio.values() for grid in grids]


def _resized(values: Tensor, height: int, width: int) -> Tensor:
    """Resize uint8 [3, height, width]."""
    if values.shape[1:] == (height, width):
        return values
    return F.interpolate(
        values.unsqueeze(0), (height, width), mode="bilinear", align_corners=False, antialias=True
    )[0]


def read_llama4_processor(folder: Path, vision: Llama4Vision) -> Llama4Preparation:
    """Read the image processor of a model folder.

    Raises:
        UnsupportedModelError: there is none, or it does something that is not supported; the message names the field.
    """
    processor = read_processor(folder, {"Llama4ImageProcessor": _DEFAULTS})
    _check_tokens(processor, vision)
    fields, side = processor.images, vision.tower.image_size
    fields.without_effect("crop_size do_center_crop do_pad pad_size")
    size: Any = fields.get("size")
    if size != {"height": side, "width": side}:
        raise UnsupportedModelError(
            f"size {size!r:.{MOST_SHOWN}} of its processor is not the tower's, which is {side} x {side}"
        )
    if (resample := read_resample(fields, _BILINEAR)) != _BILINEAR:
        raise UnsupportedModelError(f"resample {resample} is not supported ({_BILINEAR}, bilinear, is)")
    colours = read_colours(fields)
    if colours.factor is None or colours.mean is None:
        raise UnsupportedModelError("do_rescale and do_normalize must be true")
    tiles = fields.integer("max_patches")
    check_pixels("max_patches", 2 * tiles * side**2)
    preparation = Llama4Preparation(
        side=side, tiles=tiles, enlarges=fields.flag("resize_to_max_canvas"), colours=colours
    )
    fields.finish()
    return preparation


def _check_tokens(processor: Processor, vision: Llama4Vision) -> None:
    """Check that transformers' processor would write the tokens of `Llama4Vision.layout`."""
    processor.check_class("Llama4Processor")
    whole, tower = Fields(processor.whole), vision.tower
    if (found := whole.get("image_token", IMAGE)) != IMAGE:
        raise UnsupportedModelError(f"image_token {found!r:.{MOST_SHOWN}} is not supported ({IMAGE} is)")
    if not 0.0 < (ratio := whole.number("pixel_shuffle_ratio", 0.5)) <= 1.0:
        raise UnsupportedModelError(
            f"pixel_shuffle_ratio {ratio} of its processor must be above 0 and at most 1"
        )
    rows = (tower.image_size // whole.integer("patch_size", 14)) ** 2 // round(1 / ratio**2)
    if rows != tower.rows:
        raise UnsupportedModelError(
            f"patch_size and pixel_shuffle_ratio of processor_config.json give a tile {rows} tokens, and those of "
            f"config.json {tower.rows}"
        )
