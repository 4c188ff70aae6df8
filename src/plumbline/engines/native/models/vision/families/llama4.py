"""Read images in tiles with the tower of Llama 4.

Images are resized to a canvas of tiles, as its processor does with torchvision, whose arithmetic is torch's. An image
that does not fill its canvas is at the left and top, beside black. One of several tiles is a tile besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.description import ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields, Json
from plumbline.engines.native.models.vision.description import AxialRotation, Tower, TowerNames
from plumbline.engines.native.models.vision.fields import read_axial_theta, read_sizes, read_token
from plumbline.engines.native.models.vision.interface import Encode, Vision
from plumbline.engines.native.models.vision.layout import ImageLayout, Part
from plumbline.engines.native.models.vision.processor import (
    HALF_COLOURS,
    Colours,
    Processor,
    check_pixels,
    read_colours,
    read_processor,
    read_resample,
)
from plumbline.engines.native.models.vision.projectors import Shuffle
from plumbline.media.images import decode_image, upright_size

__all__ = ["Llama4Preparation", "Llama4Vision", "read_llama4", "read_llama4_processor"]

_IMAGE = "<|image|>"
"""An image in a prompt; among its tokens, the tile that shows all of it."""
_START, _END = "<|image_start|>", "<|image_end|>"
_BESIDE, _BELOW = "<|tile_x_separator|>", "<|tile_y_separator|>"
"""Between the tiles of a line, and after each line."""
_UNUSED = (
    "dtype hidden_act multi_modal_projector_bias norm_eps projector_dropout torch_dtype "
    "vision_feature_layer vision_feature_select_strategy"
)
"""Fields of the tower that do not change what is computed: activations are GELU, and norms have torch's epsilon."""
_BILINEAR = 2
_DEFAULTS: Json = {
    **HALF_COLOURS,
    "max_patches": 16,
    "resample": _BILINEAR,
    "size": {"height": 336, "width": 336},
}
_NAMES = TowerNames(
    patches="vision_tower.patch_embedding.linear",
    class_row="vision_tower.class_embedding",
    positions="vision_tower.positional_embedding_vlm",
    first_norm="vision_tower.layernorm_pre",
    layer="vision_tower.model.layers.{}.",
    before_mixer="input_layernorm",
    before_feed_forward="post_attention_layernorm",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Vision(Vision):
    """How Llama 4 reads images.

    The pixels of an image with several tiles have one more column of tiles, whose first one is the whole image.
    """

    projector: Shuffle

    @property
    def rows(self) -> int:
        """Rows of a tile in the text."""
        return int((self.tower.side // self.projector.side) ** 2)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the lines and columns of tiles beside the one of the whole image, of pixels of this size."""
        size = self.tower.image_size
        columns = width // size - 1
        return (height // size if columns else 0), columns

    def layout(self, height: int, width: int, encode: Encode) -> ImageLayout:
        """See `Vision.layout`."""
        lines, columns = self.grid(height, width)
        tokens, parts, rows = [*encode(_START)], list[Part](), self.rows
        for number in range(lines * columns + 1):
            if number == lines * columns:
                tokens += encode(_IMAGE)
            parts.append(Part(len(tokens), number * rows, rows))
            tokens += [self.token] * rows
            if number < lines * columns:
                tokens += encode(_BELOW if (number + 1) % columns == 0 else _BESIDE)
        return ImageLayout((*tokens, *encode(_END)), tuple(parts))

    def tiles(self, pixels: Tensor) -> Iterator[Tensor]:
        """See `Vision.tiles`; the one of the whole image is the last."""
        size = self.tower.image_size
        lines, columns = self.grid(*pixels.shape[1:])
        for line in range(lines):
            for column in range(columns):
                yield pixels[:, line * size : (line + 1) * size, column * size : (column + 1) * size]
        yield pixels[:, :size, columns * size :]


def read_llama4(fields: Fields, text: ModelDescription) -> Llama4Vision:
    """Read the config of Llama 4."""
    tower, projector = _read_tower(fields.part("vision_config", {}))
    return Llama4Vision(
        tower=tower,
        projector=projector,
        placeholder=_IMAGE,
        token=read_token(fields, "image", 200092, text),
        hidden_size=text.hidden_size,
    )


def _read_tower(fields: Fields) -> tuple[Tower, Shuffle]:
    if fields.model_type not in ("", "llama4_vision_model"):
        raise UnsupportedModelError("vision_config.model_type must be 'llama4_vision_model'")
    fields.without_effect(_UNUSED)
    ratio = fields.number("pixel_shuffle_ratio", 0.5)
    if not 0.0 < ratio <= 1.0:
        raise UnsupportedModelError(f"pixel_shuffle_ratio {ratio!r:.{MOST_SHOWN}} must be at most 1")
    sizes, image_size = read_sizes(fields, 768, 5632, 34, 16, 14), fields.integer("image_size", 448)
    theta = read_axial_theta(fields, 10000.0)
    tower = Tower(
        **sizes,
        activation="gelu",
        rms=False,
        eps=1e-5,
        bias=True,
        rotation=AxialRotation(theta=theta, columns_first=True, start=1, neighbours=True),
        patch_kernel="linear",
        image_size=image_size,
        class_row="last",
        positions="each",
        num_positions=(image_size // sizes["patch_size"]) ** 2 + 1,
        names=_NAMES,
    )
    projector = Shuffle(side=round(1 / ratio), width=fields.integer("projector_output_dim", 4096))
    if 1 / projector.side != ratio or not tower.side or tower.side % projector.side:
        raise UnsupportedModelError(
            f"pixel_shuffle_ratio {ratio} does not fit {tower.side} patches a side (image_size / patch_size)"
        )
    if tower.head_dim % 4:
        raise UnsupportedModelError("hidden_size must be a multiple of 4 times num_attention_heads")
    if tower.width != tower.hidden_size * projector.side**2:
        raise UnsupportedModelError("intermediate_size must be hidden_size over pixel_shuffle_ratio squared")
    for name, default in (("projector_input_dim", 4096), ("vision_output_dim", 7680)):
        if fields.integer(name, default) != projector.width:
            raise UnsupportedModelError(f"{name} must be projector_output_dim, which is {projector.width}")
    fields.finish()
    return tower, projector


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
    if (found := whole.get("image_token", _IMAGE)) != _IMAGE:
        raise UnsupportedModelError(f"image_token {found!r:.{MOST_SHOWN}} is not supported ({_IMAGE} is)")
    if not 0.0 < (ratio := whole.number("pixel_shuffle_ratio", 0.5)) <= 1.0:
        raise UnsupportedModelError(
            f"pixel_shuffle_ratio {ratio} of its processor must be above 0 and at most 1"
        )
    rows = (tower.image_size // whole.integer("patch_size", 14)) ** 2 // round(1 / ratio**2)
    if rows != vision.rows:
        raise UnsupportedModelError(
            f"patch_size and pixel_shuffle_ratio of processor_config.json give a tile {rows} tokens, and those of "
            f"config.json {vision.rows}"
        )
