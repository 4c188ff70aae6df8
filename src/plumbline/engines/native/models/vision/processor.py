"""Read what image processors of a model folder have in common: which one it is, the resize filter, the colours."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields, Json
from plumbline.media.images import decode_image, upright_size

__all__ = [
    "CLIP_COLOURS",
    "HALF_COLOURS",
    "Colours",
    "Processor",
    "ResizedPreparation",
    "check_pixels",
    "read_colours",
    "read_processor",
    "read_resample",
]

CLIP_COLOURS: Json = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
HALF_COLOURS: Json = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
"""The mean and the deviation of each colour that processors have by default."""
_MOST_PIXELS = 4096**2
"""Of what a tower reads; releases have 2.6 million at most."""

_FILTERS = range(6)
_WITHOUT_EFFECT = (
    "auto_map data_format default_to_square device disable_grouping do_convert_rgb feature_extractor_type "
    "image_processor_type image_seq_length input_data_format processor_class return_tensors"
)
"""Images are in RGB before; the type decides how a size of one number is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The files of a processor."""

    kind: str
    """The class of its images, such as `CLIPImageProcessor`."""
    images: Fields
    """What it does with an image."""
    whole: Json
    """The contents of `processor_config.json`, empty if there is none."""

    def check_class(self, known: str) -> None:
        """Refuse a processor that writes other tokens for an image.

        Raises:
            UnsupportedModelError: its class is another one.
        """
        found = self.whole.get("processor_class", known)
        if found != known:
            raise UnsupportedModelError(
                f"processor_class {found!r:.{MOST_SHOWN}} is not supported ({known} is)"
            )


def read_processor(folder: Path, known: Mapping[str, Json]) -> Processor:
    """Read the files of a processor.

    Args:
        folder: the model's.
        known: the classes that are supported, with the defaults of their fields.

    Raises:
        UnsupportedModelError: there is none, or of another class.
    """
    whole = _json(folder / "processor_config.json")
    found = whole.get("image_processor") or _json(folder / "preprocessor_config.json")
    if not found:
        raise UnsupportedModelError(
            f"{folder} has no preprocessor_config.json, and no image_processor in processor_config.json"
        )
    kind = str(found.get("image_processor_type") or "").removesuffix("Fast").removesuffix("Pil")
    if kind not in known:
        raise UnsupportedModelError(
            f"image_processor_type {kind!r:.{MOST_SHOWN}} of its processor is not supported; supported: "
            f"{', '.join(known)}"
        )
    given = {name: value for name, value in found.items() if value is not None}
    images = Fields({**known[kind], **given})
    images.without_effect(_WITHOUT_EFFECT)
    return Processor(kind=kind, images=images, whole=whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Colours:
    """How colours from 0 to 255 are rescaled and normalised; None leaves a part out."""

    factor: float | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    def tensor(self, image: Any) -> Tensor:
        """Return a PIL image as fp32 [3, height, width], with the arithmetic of transformers with Pillow.

        It is computed for each level of a colour, because for each pixel it would take five times the memory.
        """
        levels: np.ndarray[Any, np.dtype[Any]] = np.tile(np.arange(256)[:, None], 3)
        if self.factor is not None:
            levels = levels.astype(np.float64) * self.factor
        levels = levels.astype(np.float32)
        if self.mean is not None and self.std is not None:
            levels = (levels - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        pixels = np.asarray(image)
        return torch.from_numpy(np.stack([levels[:, colour][pixels[..., colour]] for colour in range(3)]))


def check_pixels(name: str, pixels: int) -> None:
    """Refuse a processor whose largest images are absurd, by the name of the field that decides it.

    Raises:
        UnsupportedModelError: they have too many pixels.
    """
    if pixels > _MOST_PIXELS:
        raise UnsupportedModelError(
            f"{name} gives an image up to {pixels} pixels, and {_MOST_PIXELS} are the most that is supported"
        )


def read_colours(fields: Fields) -> Colours:
    """Read the factor, and the mean and the deviation of each colour.

    Raises:
        UnsupportedModelError: they cannot be computed with.
    """
    factor = fields.number("rescale_factor", 1 / 255)
    mean, std = tuple(fields.get("image_mean") or ()), tuple(fields.get("image_std") or ())
    scales, normalises = fields.flag("do_rescale", True), fields.flag("do_normalize", True)
    if normalises and (
        len(mean) != 3 or len(std) != 3 or not all(map(math.isfinite, mean + std)) or not all(std)
    ):
        raise UnsupportedModelError("image_mean and image_std must have three numbers, and no deviation 0")
    return Colours(
        factor=factor if scales else None,
        mean=mean if normalises else None,
        std=std if normalises else None,
    )


def read_resample(fields: Fields, default: int) -> int:
    """Read Pillow's number of the filter of the resize.

    Raises:
        UnsupportedModelError: images are not resized, or there is no such filter.
    """
    if not fields.flag("do_resize", True):
        raise UnsupportedModelError("do_resize false is not supported")
    if (resample := fields.get("resample", default)) not in _FILTERS:
        raise UnsupportedModelError(f"resample {resample!r:.{MOST_SHOWN}} is not one of Pillow's filters")
    return int(resample)


def _json(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedPreparation(ABC):
    """How an image that keeps about its shape becomes pixels: resized, rescaled, normalised."""

    square: int
    """Pixels of a side of the square that becomes a row."""
    resample: int
    """Pillow's number of the filter."""
    colours: Colours

    def size(self, data: bytes) -> tuple[int, int]:
        """See `Preparation.size`."""
        return self.resized(*upright_size(data))

    def pixels(self, data: bytes) -> Tensor:
        """See `Preparation.pixels`."""
        image = decode_image(data)
        height, width = self.resized(image.height, image.width)
        return self.colours.tensor(image.resize((width, height), resample=self.resample))

    @abstractmethod
    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and the width that an image of this size gets.

        Raises:
            ImageError: nothing would be left of it.
        """
