"""Give transformers' models the pixels of images that were made for ours: padded, in patches, with their sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from plumbline.engines.native.models.vision import Vision
from plumbline.engines.native.models.vision.pixtral.description import PixtralVision

__all__ = ["reference_images"]


def reference_images(vision: Vision, pixels: list[Tensor]) -> dict[str, Any]:
    """Return the arguments of transformers' model for images, fp32 [3, height, width] each."""
    if isinstance(vision, PixtralVision):
        height, width = (max(image.shape[side] for image in pixels) for side in (1, 2))
        padded = torch.full((len(pixels), 3, height, width), torch.nan)
        for place, image in zip(padded, pixels, strict=True):
            place[:, : image.shape[1], : image.shape[2]] = image
        sizes = torch.tensor([image.shape[1:] for image in pixels])
        return {"pixel_values": padded, "image_sizes": sizes}
    return {"pixel_values": torch.stack(pixels)}
