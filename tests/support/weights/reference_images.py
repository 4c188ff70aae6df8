"""Give transformers' models the pixels of images that were made for ours: padded, in patches, with their sizes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from plumbline.engines.native.models.vision import Vision
from plumbline.engines.native.models.vision.families.gemma4 import Gemma4Vision
from plumbline.engines.native.models.vision.families.llama4 import Llama4Vision
from plumbline.engines.native.models.vision.families.pixtral import PixtralVision
from plumbline.engines.native.models.vision.families.qwen import QwenVision

__all__ = ["patches", "reference_images", "reference_rows", "tiles"]


def reference_images(vision: Vision, pixels: list[Tensor]) -> dict[str, Any]:
    """Return the arguments of transformers' model for images, fp32 [3, height, width] each."""
    if isinstance(vision, PixtralVision):
        height, width = (max(image.shape[side] for image in pixels) for side in (1, 2))
        padded = torch.full((len(pixels), 3, height, width), torch.nan)
        for place, image in zip(padded, pixels, strict=True):
            place[:, : image.shape[1], : image.shape[2]] = image
        sizes = torch.tensor([image.shape[1:] for image in pixels])
        return {"pixel_values": padded, "image_sizes": sizes}
    if isinstance(vision, Gemma4Vision):
        found = [patches(image, vision.tower.patch_size) for image in pixels]
        most = max(len(rows) for rows, _ in found)
        rows_of = [F.pad(rows, (0, 0, 0, most - len(rows))) for rows, _ in found]
        places = [F.pad(place, (0, 0, 0, most - len(place)), value=-1) for _, place in found]
        return {"pixel_values": torch.stack(rows_of), "image_position_ids": torch.stack(places)}
    if isinstance(vision, Llama4Vision):
        return {"pixel_values": torch.cat([tiles(image, vision.tower.image_size) for image in pixels])}
    if isinstance(vision, QwenVision):
        tower, patchify = vision.tower, transformers.Qwen2VLImageProcessorPil().patchify
        cut = [patchify(image.numpy(), tower.patch_size, tower.merge, tower.frames) for image in pixels]
        return {
            "pixel_values": torch.cat([torch.from_numpy(rows.copy()) for rows, *_ in cut]),
            "image_grid_thw": torch.tensor([[1, lines, columns] for _, lines, columns in cut]),
        }
    return {"pixel_values": torch.stack(pixels)}


def reference_rows(reference: Any, vision: Vision, pixels: Tensor) -> Tensor:
    """Return what transformers puts in the place of an image, [rows, width]."""
    found = reference.get_image_features(**reference_images(vision, [pixels]))
    rows: Tensor
    if isinstance(vision, Llama4Vision):
        rows = reference.multi_modal_projector(found.last_hidden_state.flatten(0, 1))
    else:
        deep = getattr(found, "deepstack_features", None) or ()
        rows = torch.cat([found.pooler_output[0], *(each[0] for each in deep)], -1)
    return rows


def tiles(image: Tensor, size: int) -> Tensor:
    """Return the tiles of an image, line by line, and the one of the whole image, which is at the right of them."""
    _, height, width = image.shape
    places = [(top, left) for top in range(0, height, size) for left in range(0, width - size, size)]
    places.append((0, width - size))
    return torch.stack([image[:, top : top + size, left : left + size] for top, left in places])


def patches(image: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the patches of an image, the colours of a pixel beside each other, and their columns and lines."""
    lines, columns = (side // size for side in image.shape[1:])
    rows = image.view(3, lines, size, columns, size).permute(1, 3, 2, 4, 0).reshape(lines * columns, -1)
    places = [(column, line) for line in range(lines) for column in range(columns)]
    return rows, torch.tensor(places)
