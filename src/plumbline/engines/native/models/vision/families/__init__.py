"""Register the models whose images the engine reads: a reader of the config and one of the processor for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from plumbline.engines.native.models.checkpoint import Checkpoint
from plumbline.engines.native.models.description import ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.fields import MOST_SHOWN, Fields, Json
from plumbline.engines.native.models.linear import can_pack
from plumbline.engines.native.models.vision.families.gemma4 import (
    Gemma4Vision,
    read_gemma4,
    read_gemma4_processor,
)
from plumbline.engines.native.models.vision.families.llama4 import (
    Llama4Vision,
    read_llama4,
    read_llama4_processor,
)
from plumbline.engines.native.models.vision.families.pixtral import (
    PixtralVision,
    read_mistral3,
    read_pixtral,
    read_pixtral_processor,
)
from plumbline.engines.native.models.vision.families.qwen import (
    QwenVision,
    read_qwen2,
    read_qwen2_5,
    read_qwen3,
    read_qwen_processor,
)
from plumbline.engines.native.models.vision.families.square import (
    SquareVision,
    read_gemma3,
    read_llava,
    read_square_processor,
)
from plumbline.engines.native.models.vision.interface import Preparation, Vision, VisionEncoder
from plumbline.engines.native.models.vision.tower import TowerEncoder

__all__ = ["VISIONS", "load_encoder", "read_preparation", "read_vision"]


def _read_any_llava(fields: Fields, text: ModelDescription) -> Vision:
    kind = fields.part("vision_config", {}).model_type
    return read_pixtral(fields, text) if kind == "pixtral" else read_llava(fields, text)


VISIONS: dict[str, Callable[[Fields, ModelDescription], Vision]] = {
    "llava": _read_any_llava,
    "gemma3": read_gemma3,
    "gemma4": read_gemma4,
    "mistral3": read_mistral3,
    "llama4": read_llama4,
    "qwen2_vl": read_qwen2,
    "qwen2_5_vl": read_qwen2_5,
    "qwen3_vl": read_qwen3,
    "qwen3_vl_moe": read_qwen3,
    "qwen3_5": read_qwen3,
    "qwen3_5_moe": read_qwen3,
}
"""The models whose images the engine reads, by `model_type`."""
_PROCESSORS: dict[type[Vision], Callable[[Path, Any], Preparation]] = {
    Gemma4Vision: read_gemma4_processor,
    Llama4Vision: read_llama4_processor,
    PixtralVision: read_pixtral_processor,
    QwenVision: read_qwen_processor,
    SquareVision: read_square_processor,
}
"""The readers of the image processor of a model folder."""


def read_vision(config: Json, text: ModelDescription) -> Vision:
    """Read the vision part of the contents of a `config.json`; `text` is what the rest describes.

    Raises:
        UnsupportedModelError: images of this model are not supported; the message names the field.
    """
    fields = Fields(config)
    if fields.model_type not in VISIONS:
        raise UnsupportedModelError(
            f"images of model_type {fields.model_type!r:.{MOST_SHOWN}} are not supported"
        )
    try:
        with fields.readable():
            return VISIONS[fields.model_type](fields, text)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"its images are not supported: {error}") from error


def read_preparation(folder: Path, vision: Vision) -> Preparation:
    """Read the image processor of a model folder.

    Raises:
        UnsupportedModelError: there is none, or it does something that is not supported; the message names the field.
    """
    if find_spec("PIL") is None:
        raise UnsupportedModelError("Pillow (extra: images) is not installed")
    try:
        return _PROCESSORS[type(vision)](folder, vision)
    except UnsupportedModelError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"[:MOST_SHOWN]
        raise UnsupportedModelError(f"the files of its processor cannot be read: {text!r}") from error


def load_encoder(vision: Vision, checkpoint: Checkpoint, dtype: torch.dtype) -> VisionEncoder:
    """Load the tower and the projector of a checkpoint, after `take_text` named its tensors.

    Products of 16 bits are five times as slow on a CPU that has none, so a tower runs in fp32 there.
    """
    packed = checkpoint.device.type != "cpu" or can_pack(dtype, checkpoint.device)
    fetch = partial(checkpoint.fetch, dtype=dtype if packed else torch.float32)
    encoder = TowerEncoder(vision, fetch, dtype)
    checkpoint.skip(vision.unused)
    return encoder
