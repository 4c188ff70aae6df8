"""Pixels are those of transformers' image processors, to the bit; what a processor does besides is refused by name.

Images have any shape, and lie on a side where their EXIF says so; their size is known from the header.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.weights.reference_images import patches, tiles
from support.weights.vision import picture
from support.weights.vision_cases import CASES, IMAGE

from plumbline.engines.native.models import UnsupportedModelError, describe
from plumbline.engines.native.models.vision import Preparation
from plumbline.engines.native.models.vision.families import read_preparation, read_vision
from plumbline.media.images import ImageError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
ImageOps = pytest.importorskip("PIL.ImageOps", reason="Pillow is not installed")

PROCESSORS: dict[str, dict[str, Any]] = {
    "CLIPImageProcessor": {"size": {"shortest_edge": 33}, "crop_size": {"height": 30, "width": 30}},
    "SiglipImageProcessor": {"size": {"height": 30, "width": 30}},
    "LlavaImageProcessor": {
        "size": {"height": 30, "width": 30}, "crop_size": {"height": 30, "width": 30}, "do_pad": True,
    },
    "Gemma3ImageProcessor": {"size": {"height": 30, "width": 30}},
    "PixtralImageProcessor": {"size": {"longest_edge": 63}, "patch_size": 14},
    "Gemma4ImageProcessor": {"max_soft_tokens": 70, "patch_size": 3},
    "Llama4ImageProcessor": {"size": {"height": 14, "width": 14}, "max_patches": 6},
    "Qwen2VLImageProcessor": {"size": {"shortest_edge": 400, "longest_edge": 2600}, "patch_size": 3},
}  # fmt: skip
FAMILIES = {
    "PixtralImageProcessor": "mistral3",
    "Gemma4ImageProcessor": "gemma4",
    "Llama4ImageProcessor": "llama4",
    "Qwen2VLImageProcessor": "qwen3_vl",
}
WHOLE = {
    "PixtralImageProcessor": {"patch_size": 7, "spatial_merge_size": 2},
    "Llama4ImageProcessor": {"patch_size": 3, "pixel_shuffle_ratio": 0.5},
}
"""What `processor_config.json` says besides."""


CANVASES = {
    (14, 14): ((1, 1), (2, 2)),
    (13, 9): ((1, 1), (2, 3)),
    (28, 14): ((1, 2), (2, 3)),
    (30, 15): ((2, 3), (2, 3)),
    (20, 45): ((3, 2), (3, 2)),
    (90, 7): ((1, 6), (1, 6)),
    (200, 60): ((1, 4), (1, 4)),
    (29, 29): ((2, 2), (2, 2)),
    (14, 29): ((3, 1), (3, 2)),
    (3, 600): ((6, 1), (6, 1)),
}
"""Widths and heights, with the lines and columns of tiles, and those where images are enlarged."""


def preparation(folder: Path, kind: str, **changes: Any) -> Preparation:
    """What a folder with one of the processors says."""
    fields = {"image_processor_type": kind, **PROCESSORS.get(kind, {}), **changes}
    (folder / "preprocessor_config.json").write_text(json.dumps(fields))
    if kind in WHOLE:
        (folder / "processor_config.json").write_text(json.dumps(WHOLE[kind]))
    family = FAMILIES.get(kind, "llava")
    case = next(case for case in CASES if case.family == family)
    config = json.loads(case.config().to_json_string()) | {"model_type": family}
    return read_preparation(folder, read_vision(config, describe(config)))


def lying(data: bytes, orientation: int) -> bytes:
    """The same picture with an orientation."""
    image, file = Image.open(io.BytesIO(data)), io.BytesIO()
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(file, "PNG", exif=exif)
    return file.getvalue()


@pytest.mark.parametrize("kind", [kind for kind in PROCESSORS if kind != "Llama4ImageProcessor"])
def test_pixels_are_those_of_transformers_processors(kind: str, tmp_path: Path) -> None:
    ours = preparation(tmp_path, kind)
    theirs = getattr(transformers, f"{kind}Pil")(**PROCESSORS[kind])
    for number, (width, height) in enumerate([(30, 30), (61, 40), (7, 90), (200, 31), (63, 64), (1, 62)]):
        data = lying(picture(width, height, seed=width), 1 + number)
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        expected, found = theirs(upright, return_tensors="pt").pixel_values, ours.pixels(data)
        assert ours.size(data) == tuple(found.shape[1:])
        if kind == "Gemma4ImageProcessor":
            found = patches(found, 3)[0].unsqueeze(0)
            expected = expected[:, : found.shape[1]]
        elif kind == "Qwen2VLImageProcessor":
            found = torch.from_numpy(theirs.patchify(found.numpy(), 3, 2, 2)[0])
        else:
            found = found.unsqueeze(0)
        assert torch.equal(found, expected), (width, height)


@pytest.mark.parametrize("enlarges", [False, True])
def test_tiles_are_those_of_transformers_processor(enlarges: bool, tmp_path: Path) -> None:
    pytest.importorskip("torchvision", reason="the processor of transformers needs torchvision")
    kind = "Llama4ImageProcessor"
    ours = preparation(tmp_path, kind, resize_to_max_canvas=enlarges)
    theirs = transformers.Llama4ImageProcessor(**PROCESSORS[kind], resize_to_max_canvas=enlarges)
    for number, (width, height) in enumerate(CANVASES):
        data = lying(picture(width, height, seed=width), 1 + number % 8)
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        expected = theirs(upright, return_tensors="pt").pixel_values
        found = ours.pixels(data)
        assert ours.size(data) == tuple(found.shape[1:])
        assert torch.equal(tiles(found, 14), expected.float()), (width, height)


@pytest.mark.parametrize("enlarges", [False, True])
def test_canvases_are_those_of_transformers_processor(enlarges: bool, tmp_path: Path) -> None:
    """Known answers of transformers 5.23; the column of the whole image is one more."""
    ours = preparation(tmp_path, "Llama4ImageProcessor", resize_to_max_canvas=enlarges)
    for (width, height), grids in CANVASES.items():
        lines, columns = grids[enlarges]
        tall, wide = ours.size(picture(width, height))
        assert (tall // 14, wide // 14) == (lines, columns + (lines * columns > 1)), (width, height)
        found = ours.pixels(picture(width, height))
        assert found.shape == (3, tall, wide)
        # What is beside the image is black; the whole image is not at the bottom of its column.
        assert found[:, 14:, columns * 14 :].eq(-1.0).all()


@pytest.mark.parametrize(("kind", "most"), [
    ("PixtralImageProcessor", 70 * 70), ("Gemma4ImageProcessor", 70 * 9 * 9), ("Llama4ImageProcessor", 12 * 14 * 14),
])  # fmt: skip
def test_the_size_of_an_image_is_known_from_its_header_and_bounded(
    kind: str, most: int, tmp_path: Path
) -> None:
    ours = preparation(tmp_path, kind)

    @settings(max_examples=EXPLORED or 20)
    @given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 8))
    def law(width: int, height: int, orientation: int) -> None:
        assume(max(width, height) <= 200 * min(width, height))
        data = lying(picture(width, height), orientation)
        try:
            height, width = ours.size(data)
        except ImageError:
            with pytest.raises(ImageError):
                ours.pixels(data)
        else:
            assert ours.pixels(data).shape == (3, height, width)
            assert 0 < height * width <= most

    law()


def test_an_image_that_is_huge_as_a_square_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="as a square"):
        preparation(tmp_path, "LlavaImageProcessor").pixels(picture(10_100, 60))


def test_an_image_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    ours, narrow = preparation(tmp_path, "PixtralImageProcessor"), picture(128, 1)
    for read in (ours.size, ours.pixels):
        with pytest.raises(ImageError, match="nothing is left"):
            read(narrow)


@pytest.mark.parametrize(("kind", "change", "problem"), [
    ("CLIPImageProcessor", {"surprise": 1}, "surprise"),
    ("CLIPImageProcessor", {"do_resize": False}, "do_resize"),
    ("CLIPImageProcessor", {"crop_size": {"height": 40, "width": 40}}, "crop_size"),
    ("SiglipImageProcessor", {"size": {"height": 20, "width": 20}}, "30 x 30"),
    ("SiglipImageProcessor", {"size": {"longest_edge": 20}}, "longest_edge"),
    ("SiglipImageProcessor", {"do_pad": True}, "do_pad"),
    ("Gemma3ImageProcessor", {"do_pan_and_scan": True}, "do_pan_and_scan"),
    ("LayoutLMv2ImageProcessor", {}, "LayoutLMv2ImageProcessor"),
    ("PixtralImageProcessor", {"size": {"shortest_edge": 20}}, "shortest_edge"),
    ("PixtralImageProcessor", {"size": {"longest_edge": 0}}, "longest_edge"),
    ("PixtralImageProcessor", {"size": {"longest_edge": 20.5}}, "longest_edge"),
    ("PixtralImageProcessor", {"size": {"longest_edge": 900}}, "16900 patches"),
    ("PixtralImageProcessor", {"do_center_crop": True}, "do_center_crop"),
    ("Gemma4ImageProcessor", {"max_soft_tokens": 71}, "max_soft_tokens"),
    ("Llama4ImageProcessor", {"size": {"height": 28, "width": 28}}, "14 x 14"),
    ("Llama4ImageProcessor", {"resample": 3}, "resample"),
    ("Llama4ImageProcessor", {"do_normalize": False}, "do_normalize"),
    ("Llama4ImageProcessor", {"max_patches": 100_000}, "max_patches"),
    ("Gemma4ImageProcessor", {"max_soft_tokens": 1120}, "position_embedding_size"),
    ("Gemma4ImageProcessor", {"pooling_kernel_size": 2}, "pooling_kernel_size"),
    ("Gemma4ImageProcessor", {"patch_size": 2}, "patch_size"),
])  # fmt: skip
def test_what_a_processor_does_besides_is_refused_by_name(
    kind: str, change: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match=problem):
        preparation(tmp_path, kind, **change)


@pytest.mark.parametrize(("kind", "found", "change", "problem"), [
    ("SiglipImageProcessor",
     {"patch_size": 7, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"},
     {"num_additional_image_tokens": 0}, "tokens"),
    ("PixtralImageProcessor", WHOLE["PixtralImageProcessor"], {"spatial_merge_size": 1}, "7 x 7 pixels"),
    ("PixtralImageProcessor", WHOLE["PixtralImageProcessor"], {"image_break_token": "<br>"}, "image_break_token"),
    ("Llama4ImageProcessor", WHOLE["Llama4ImageProcessor"], {"pixel_shuffle_ratio": 1.0}, "tokens"),
    ("Llama4ImageProcessor", WHOLE["Llama4ImageProcessor"], {"pixel_shuffle_ratio": 2.0}, "pixel_shuffle_ratio"),
    ("Llama4ImageProcessor", WHOLE["Llama4ImageProcessor"], {"image_token": "<i>"}, "image_token"),
])  # fmt: skip
def test_a_processor_with_other_tokens_for_an_image_is_refused(
    kind: str,
    found: dict[str, Any],
    change: dict[str, Any],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(WHOLE, kind, found)
    preparation(tmp_path, kind)
    monkeypatch.setitem(WHOLE, kind, found | change)
    with pytest.raises(UnsupportedModelError, match=problem):
        preparation(tmp_path, kind)


def test_lines_of_an_image_end_with_tokens_of_their_own() -> None:
    config = json.loads(next(case for case in CASES if case.family == "mistral3").config().to_json_string())
    vision = read_vision(config, describe(config))
    tokens = {"[IMG_BREAK]": 12, "[IMG_END]": 13}
    layout = vision.layout(28, 42, lambda text: (tokens[text],))
    assert layout.token_ids == (IMAGE, IMAGE, IMAGE, 12, IMAGE, IMAGE, IMAGE, 13)
    assert [part[:3] for part in layout.parts] == [(0, 0, 3), (4, 3, 3)]


def test_tiles_of_an_image_are_apart_and_the_whole_image_is_the_last() -> None:
    config = json.loads(next(case for case in CASES if case.family == "llama4").config().to_json_string())
    vision = read_vision(config, describe(config))
    names = ("image_start", "image", "image_end", "tile_x_separator", "tile_y_separator")
    start, whole, end, beside, below = range(10, 15)
    ids = dict(zip((f"<|{name}|>" for name in names), range(10, 15), strict=True))
    tile = (IMAGE,) * 4

    def tokens(height: int, width: int) -> tuple[int, ...]:
        return vision.layout(height, width, lambda text: (ids[text],)).token_ids

    assert vision.placeholder == "<|image|>"
    assert tokens(14, 14) == (start, whole, *tile, end)
    line = (*tile, beside, *tile, below)
    assert tokens(28, 42) == (start, *line, *line, whole, *tile, end)
    assert tokens(28, 28) == (start, *tile, below, *tile, below, whole, *tile, end)
