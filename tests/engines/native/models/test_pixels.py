"""Pixels are those of transformers' image processors, to the bit; what a processor does besides is refused by name."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.weights.vision import picture
from tests.engines.native.models.test_vision import CASES

from plumbline.engines.media.images import ImageError
from plumbline.engines.native.models import UnsupportedModelError, describe
from plumbline.engines.native.models.vision import Preparation, read_preparation, read_vision

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

PROCESSORS: dict[str, dict[str, Any]] = {
    "CLIPImageProcessor": {"size": {"shortest_edge": 33}, "crop_size": {"height": 30, "width": 30}},
    "SiglipImageProcessor": {"size": {"height": 30, "width": 30}},
    "LlavaImageProcessor": {
        "size": {"height": 30, "width": 30}, "crop_size": {"height": 30, "width": 30}, "do_pad": True,
    },
    "Gemma3ImageProcessor": {"size": {"height": 30, "width": 30}},
}  # fmt: skip


def preparation(folder: Path, kind: str, **changes: Any) -> Preparation:
    """What a folder with one of the processors says."""
    fields = {"image_processor_type": kind, **PROCESSORS.get(kind, {}), **changes}
    (folder / "preprocessor_config.json").write_text(json.dumps(fields))
    config = json.loads(CASES[0].config().to_json_string()) | {"model_type": "llava"}
    return read_preparation(folder, read_vision(config, describe(config)))


@pytest.mark.parametrize("kind", PROCESSORS)
def test_pixels_are_those_of_transformers_processors(kind: str, tmp_path: Path) -> None:
    ours = preparation(tmp_path, kind)
    theirs = getattr(transformers, f"{kind}Pil")(**PROCESSORS[kind])
    for width, height in ((30, 30), (61, 40), (7, 90), (200, 31)):
        data = picture(width, height, seed=width)
        expected = theirs(Image.open(io.BytesIO(data)), return_tensors="pt").pixel_values[0]
        assert torch.equal(ours.pixels(data), expected), (width, height)


def test_an_image_that_is_huge_as_a_square_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="as a square"):
        preparation(tmp_path, "LlavaImageProcessor").pixels(picture(10_100, 60))


@pytest.mark.parametrize(("kind", "change", "problem"), [
    ("CLIPImageProcessor", {"surprise": 1}, "surprise"),
    ("CLIPImageProcessor", {"do_resize": False}, "do_resize"),
    ("CLIPImageProcessor", {"crop_size": {"height": 40, "width": 40}}, "crop_size"),
    ("SiglipImageProcessor", {"size": {"height": 20, "width": 20}}, "30 x 30"),
    ("SiglipImageProcessor", {"size": {"longest_edge": 20}}, "longest_edge"),
    ("SiglipImageProcessor", {"do_pad": True}, "do_pad"),
    ("Gemma3ImageProcessor", {"do_pan_and_scan": True}, "do_pan_and_scan"),
    ("Qwen2VLImageProcessor", {}, "Qwen2VLImageProcessor"),
])  # fmt: skip
def test_what_a_processor_does_besides_is_refused_by_name(
    kind: str, change: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match=problem):
        preparation(tmp_path, kind, **change)


def test_a_processor_with_other_tokens_for_an_image_is_refused(tmp_path: Path) -> None:
    found = {"patch_size": 7, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    for change, problem in (({}, ""), ({"num_additional_image_tokens": 0}, "tokens")):
        (tmp_path / "processor_config.json").write_text(json.dumps(found | change))
        if problem:
            with pytest.raises(UnsupportedModelError, match=problem):
                preparation(tmp_path, "SiglipImageProcessor")
        else:
            assert preparation(tmp_path, "SiglipImageProcessor").size(b"") == (30, 30)
