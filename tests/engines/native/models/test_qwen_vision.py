"""Folders of Qwen-VL as releases have them are read, and what is not known of them is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engines.native.models.test_vision import made
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support.weights.model_driver import Driver
from support.weights.released_qwen import QWEN
from support.weights.vision_cases import CASES, Case
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from plumbline.engines.native.models import UnsupportedModelError, describe, load_model
from plumbline.engines.native.models.vision.families import read_preparation, read_vision
from plumbline.engines.native.models.vision.families.qwen import QwenPreparation
from plumbline.engines.native.models.vision.processor import Colours

pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def case(family: str) -> Case:
    return next(case for case in CASES if case.family == family and not case.is_compiled)


@pytest.mark.parametrize(("family", "names", "turned"), [
    ("qwen2_vl", {"model.visual.": "visual.", "model.language_model.": "model."}, False),
    ("qwen3_vl_moe", {}, False),
    ("qwen3_vl_moe", {}, True),
])  # fmt: skip
def test_the_tensors_of_releases_are_read(
    family: str, names: dict[str, str], turned: bool, tmp_path: Path
) -> None:
    """Those of the first versions have other names, and experts of Qwen3-VL the other order."""
    pair = made(case(family), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(path).items():
        prefix = next((prefix for prefix in names if name.startswith(prefix)), "")
        is_turned = "mlp.experts." in name and tensor.dim() == 3 and turned
        plain = names.get(prefix, "") + name.removeprefix(prefix)
        tensors[plain] = tensor.transpose(1, 2).contiguous() if is_turned else tensor
    assert all(name.startswith(("visual.", "model.", "lm_head.")) for name in tensors)
    save_file(tensors, path)
    again = load_model(tmp_path, torch.float32, vision=pair.vision)
    assert again.vision is not None
    assert torch.equal(again.vision.encode(pair.pixels(1)), pair.rows(1))
    pair.model = again
    driver = pair.driver()
    parts: list[int | list[int]] = [[5, 6], 1, [7]]
    sequence = pair.sequence(driver, parts, 16)
    driver.step([(sequence, len(sequence.tokens))])
    pair.assert_same(sequence, parts)


@pytest.mark.parametrize(("turned", "block"), [(True, [16, 8]), (False, [16, 8]), (True, None)])
def test_experts_in_one_tensor_of_fp8_are_read(turned: bool, block: list[int] | None, tmp_path: Path) -> None:
    """As a release of Qwen3-VL with experts has them, with scales for blocks of the tensor as it is stored."""
    plain, quantised = tmp_path / "plain", tmp_path / "quantised"
    vision = made(case("qwen3_vl_moe"), plain).vision
    tensors = load_file(plain / "model.safetensors")
    stored = dict(tensors)
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        number, *sides = (tensor.transpose(1, 2) if turned else tensor).shape
        size = block or sides
        shape = number, *(-(-side // length) for side, length in zip(sides, size, strict=True))
        scales = torch.rand(shape) / 5 + 0.05
        whole = scales.repeat_interleave(size[0], 1)[:, : sides[0]].repeat_interleave(size[1], 2)
        levels = torch.randn(number, *sides).to(torch.float8_e4m3fn)
        dequantised = levels.float() * whole[:, :, : sides[1]]
        tensors[name] = (dequantised.transpose(1, 2) if turned else dequantised).contiguous()
        stored |= {name: levels, f"{name}_scale_inv": scales}
    save_file(tensors, plain / "model.safetensors")
    quantised.mkdir()
    save_file(stored, quantised / "model.safetensors")
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": block,
    }
    (quantised / "config.json").write_text(json.dumps(config))
    found = []
    for folder in (plain, quantised):
        driver = Driver(load_model(folder, torch.float32, vision=vision))
        found.append(driver.step([(driver.add([3, 4, 5, 6], 16), 4)]))
    assert torch.equal(*found)


@given(
    height=st.integers(1, 9000),
    width=st.integers(1, 9000),
    square=st.sampled_from([6, 28, 32]),
    bounds=st.tuples(st.integers(1, 2**16), st.integers(1, 2**24)),
)
def test_the_size_of_an_image_is_that_of_transformers(
    height: int, width: int, square: int, bounds: tuple[int, int]
) -> None:
    height, width = max(height, width // 200 + 1), max(width, height // 200 + 1)
    (least, most), plain = sorted(bounds), Colours(factor=None, mean=None, std=None)
    ours = QwenPreparation(square=square, least=least, most=most, resample=3, colours=plain)
    assert ours.resized(height, width) == smart_resize(height, width, square, least, most)


@pytest.mark.parametrize(("family", "change", "problem"), [
    ("qwen2_vl", {"in_channels": 1}, "in_channels"),
    ("qwen2_vl", {"hidden_size": 40}, "hidden_size .* is 40"),
    ("qwen2_vl", {"model_type": "siglip_vision_model"}, "siglip_vision_model"),
    ("qwen2_vl", {"num_heads": 3}, "num_heads"),
    ("qwen2_vl", {"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
    ("qwen2_vl", {"rope_parameters": {"surprise": 1}}, "surprise"),
    ("qwen2_vl", {"rope_parameters": {"rope_theta": -1.0}}, "rope_theta"),
    ("qwen2_vl", {"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta"),
    ("qwen2_vl", {"rope_parameters": []}, "rope_parameters"),
    ("qwen2_vl", {"surprise": 1}, "surprise"),
    ("qwen3_vl", {"num_position_embeddings": 15}, "num_position_embeddings"),
    ("qwen3_vl", {"deepstack_visual_indexes": [1, 3]}, "deepstack_visual_indexes"),
    ("qwen3_vl", {"deepstack_visual_indexes": [1, 0]}, "deepstack_visual_indexes"),
    ("qwen3_vl", {"deepstack_visual_indexes": [0, 1, 2]}, "deepstack_visual_indexes"),
])  # fmt: skip
def test_what_is_not_known_of_a_tower_is_refused_by_name(
    family: str, change: dict[str, Any], problem: str
) -> None:
    config = json.loads(case(family).config().to_json_string())
    assert read_vision(config, describe(config)).text_layers == 2 * (family == "qwen3_vl")
    config["vision_config"] |= change
    with pytest.raises(UnsupportedModelError, match=f"images.*{problem}"):
        read_vision(config, describe(config))


@pytest.mark.parametrize(("name", "change", "problem"), [
    ("Qwen2.5-VL 7B", {"mrope_section": [16, 24, 23]}, "mrope_section"),
    ("Qwen2.5-VL 7B", {"mrope_section": [16, 24]}, "mrope_section"),
    ("Qwen2.5-VL 7B", {"mrope_interleaved": True}, "mrope_interleaved"),
    ("Qwen3-VL 4B", {"mrope_interleaved": False}, "mrope_interleaved"),
    ("Qwen3-VL 4B", {"mrope_section": [24, 20, "20"]}, "mrope_section"),
])  # fmt: skip
def test_a_rotation_of_axes_that_is_not_known_is_refused_by_name(
    name: str, change: dict[str, Any], problem: str
) -> None:
    config = json.loads(json.dumps(QWEN[name][0]))
    describe(config)
    config.get("text_config", config)["rope_scaling"] |= change
    with pytest.raises(UnsupportedModelError, match=problem):
        describe(config)


def test_a_config_that_was_written_again_has_the_fields_of_its_text_twice() -> None:
    config = QWEN["Qwen2.5-VL 7B"][0]
    text = {name: value for name, value in config.items() if name != "vision_config"}
    text |= {"model_type": "qwen2_5_vl_text", "num_hidden_layers": 3, "torch_dtype": "float32"}
    found = describe(config | {"text_config": text})
    assert len(found.layers) == 3
    assert found.dtype == torch.bfloat16
    with pytest.raises(UnsupportedModelError, match="surprise"):
        describe(config | {"text_config": text, "surprise": 1})


@pytest.mark.parametrize(("change", "problem"), [
    ({"patch_size": 16}, "patch_size of 16"),
    ({"merge_size": 1}, "merge_size of 1"),
    ({"temporal_patch_size": 1}, "temporal_patch_size of 1"),
    ({"max_pixels": None}, ""),
    ({"image_processor_type": "Qwen2_5_VLImageProcessor"}, ""),
    ({"max_pixels": 2**26}, "67108864 pixels"),
    ({"max_pixels": 3135}, "shortest_edge"),
    ({"min_pixels": 2**21}, "shortest_edge"),
    ({"min_pixels": 0}, "min_pixels"),
    ({"size": {"longest_edge": 9000, "surprise": 2}}, "surprise"),
    ({"processor_class": "LlavaProcessor"}, ""),
    ({"do_pad": True}, "do_pad"),
    ({"surprise": 1}, "surprise"),
])  # fmt: skip
def test_what_a_processor_does_besides_is_refused_by_name(
    change: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    config, pixels, *_ = QWEN["Qwen2.5-VL 7B"]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(pixels | change), "utf-8")
    vision = read_vision(config, describe(config))
    if problem:
        with pytest.raises(UnsupportedModelError, match=problem):
            read_preparation(tmp_path, vision)
    else:
        read_preparation(tmp_path, vision)
