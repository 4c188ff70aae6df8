"""A quantised checkpoint computes what its dequantised weights compute, or is refused with the name that does not fit.

The laws, for random weights of each format:

* In fp32 the logits are those of a folder with the dequantised weights, within 1e-4.
* Dequantised weights are what the formula of the format gives, which the tests write number by number, or what
  transformers computes where it has a function for a CPU.
* Packed for the compiled kernels, integers of the checkpoint are kept, and only their scales become bf16.
* For the kernels of a GPU, integers and floats keep their bits, and change no logit.
* A tensor that is missing, has another shape or type, or is not used is named, and so is a field that is not known.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.weights.model_driver import Driver
from support.weights.model_families import DEEPSEEK, WIDE, WIDE_LATENT, Case
from support.weights.quantised import (
    AWQ,
    CASES,
    FLOATS,
    FP8,
    GPTQ,
    LLAMA,
    TOKENS,
    WIDTHS,
    Json,
    compressed,
    fp8_blocks,
    gptq,
    granularity,
    integers,
    of_bits,
    save,
    torchao,
    write,
)
from torch import Tensor
from transformers import AutoModelForCausalLM, Ernie4_5Config, GptOssConfig, Qwen3MoeConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from plumbline.engines.native.models import UnsupportedModelError, WeightsError, describe, load_model
from plumbline_kernels.cpu.library import Library, PackedWeight, load
from plumbline_kernels.narrow import NarrowWeight, pack_narrow

PACK = Library.pack
EXPERTS = Qwen3MoeConfig(
    **WIDTHS,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
)
LATENT = Case("deepseek_v3", WIDE_LATENT | DEEPSEEK | {"q_lora_rank": 64}).config()
PERMUTED = Ernie4_5Config(
    **WIDTHS, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32, use_bias=True
)
OSS = GptOssConfig(
    **(WIDTHS | {"intermediate_size": 32}),
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    num_local_experts=4,
    num_experts_per_tok=2,
    layer_types=["full_attention"] * 2,
)


@pytest.fixture(params=CASES, scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, int]:
    """A quantised folder, one with the same weights dequantised, and the bits that the kernels keep."""
    config, make, bits = CASES[request.param]
    return *write(tmp_path_factory.mktemp("pair"), config, make), bits


def logits(folder: Path, **options: Any) -> Tensor:
    model = load_model(folder, torch.float32, **options)
    driver = Driver(model, num_blocks=4)
    sequence = driver.add([3, 1, 4, 1, 5, 9, 2, 6], 16)
    driver.step([(sequence, 8)])
    return torch.stack(sequence.logits)


def test_the_logits_are_those_of_the_dequantised_weights(pair: tuple[Path, Path, int]) -> None:
    plain, quantised, _ = pair
    torch.testing.assert_close(logits(quantised), logits(plain), atol=1e-4, rtol=0)


def test_the_kernels_keep_the_integers_of_the_checkpoint(
    pair: tuple[Path, Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All bits are kept by default, none with `bits=0`, and a layer that is stored as it is stays so."""
    plain, quantised, bits = pair
    exact = logits(plain, library=load())
    torch.testing.assert_close(logits(quantised, library=load(), bits=0), exact, atol=1e-4, rtol=0)
    packed_bits = []

    def pack(library: Library, weight: Tensor, *args: Any, **options: Any) -> PackedWeight:
        packed_bits.append((PACK(library, weight, *args, **options)).bits)
        return PACK(library, weight, *args, **options)

    monkeypatch.setattr(Library, "pack", pack)
    found = logits(quantised, library=load())
    assert packed_bits == [0] + [bits] * 8
    # What is left are inputs rounded to 8 bits, and scales in bf16.
    assert (found - exact).norm() / exact.norm() < (0.05 if bits else 1e-5)


MIDDLE = r"zero points of 9 throughout.*checkpoint_format to 'gptq_v2'"


@pytest.mark.parametrize(
    ("stored", "fields", "words"),
    [
        # Published: the first form by its fields, and zero points as the second one stores them.
        (8, {"checkpoint_format": "gptq", "sym": True}, MIDDLE),
        (8, {"sym": True}, MIDDLE),
        (8, {"sym": False}, MIDDLE),
        (8, {}, MIDDLE),
        (7, {"checkpoint_format": "gptq_v2", "sym": True}, "zero points of 7 .*to 'gptq'"),
        (3, {"sym": True}, "zero points that are not 8, and quantization_config.sym is true"),
        (7, {"sym": True}, None),
        (8, {"checkpoint_format": "gptq_v2", "sym": True}, None),
        (3, {"sym": False}, None),
        (3, {}, None),
        (7, {"sym": "yes"}, r"quantization_config\.sym 'yes' is not supported"),
        (
            7,
            {"desc_act": False},
            r"g_idx has inputs out of order, and quantization_config\.desc_act is false",
        ),
        (7, {"desc_act": True}, None),
    ],
)
def test_fields_of_gptq_that_contradict_the_tensors_are_refused(
    stored: int, fields: Json, words: str | None, tmp_path: Path
) -> None:
    """Each weight would be off by a scale, and the answers would be fluent nonsense."""

    def make(out: int, width: int) -> tuple[dict[str, Tensor], Tensor]:
        tensors, weight = gptq(4, 32, True, order="desc_act" in fields)(out, width)
        word = sum(stored << shift for shift in range(0, 32, 4))
        tensors["qzeros"] = torch.full_like(tensors["qzeros"], word - (1 << 32) if word >> 31 else word)
        return tensors, weight

    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, **fields}
    _, quantised = write(tmp_path, config, make)
    if words is None:
        load_model(quantised, torch.float32)
        return
    with pytest.raises((WeightsError, UnsupportedModelError), match=words):
        load_model(quantised, torch.float32)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[NarrowWeight]:
    """Load models as for a GPU, and compute with the reference; the list gets the weights that are kept narrow."""
    kept = []

    def pack(*args: Any) -> NarrowWeight:
        kept.append(pack_narrow(*args))
        return kept[-1]

    for module in ("linear", "loading.model_folder"):
        monkeypatch.setattr(f"plumbline.engines.native.models.{module}.use_triton", lambda _: True)
    for module in ("linear", "loading.feed_forward"):
        monkeypatch.setattr(f"plumbline.engines.native.models.{module}.pack_narrow", pack)
    return kept


def test_a_gpu_keeps_the_bits_of_the_checkpoint(
    pair: tuple[Path, Path, int], on_gpu: list[NarrowWeight], request: pytest.FixtureRequest
) -> None:
    plain, quantised, bits = pair
    expected = logits(plain)
    assert on_gpu == []
    torch.testing.assert_close(logits(quantised), expected, atol=1e-4, rtol=0)
    is_fp8 = "fp8" in request.node.name or "float8" in request.node.name
    kinds = [(8, True)] * 8 if is_fp8 else [(bits, False)] * 8 if bits else []
    assert [(weight.bits, weight.floats) for weight in on_gpu] == kinds
    assert all(weight.levels.itemsize == 1 for weight in on_gpu)


@pytest.mark.parametrize("case", ["fp8 in blocks", "packed int4", "GPTQ", "AWQ"])
def test_experts_are_dequantised_one_by_one(case: str, tmp_path: Path) -> None:
    config, make, _ = CASES[case]
    plain, quantised = write(tmp_path, config, make, EXPERTS)
    assert any("experts.3.down_proj.w" in name for name in load_file(plain / "model.safetensors"))
    expected = logits(plain)
    torch.testing.assert_close(logits(quantised), expected, atol=1e-4, rtol=0)
    assert (logits(quantised, library=load()) - expected).norm() / expected.norm() < 0.05


@pytest.mark.parametrize("case", ["fp8 in blocks", "packed int4", "GPTQ with zero points"])
@pytest.mark.parametrize("model", [LATENT, PERMUTED], ids=["latent", "permuted"])
def test_scales_follow_their_rows(case: str, model: Any, tmp_path: Path) -> None:
    """Rotations of neighbours permute rows when a model is loaded, and latent attention divides a weight by heads."""
    config, make, _ = CASES[case]
    plain, quantised = write(tmp_path, config, make, model)
    expected = logits(plain)
    torch.testing.assert_close(logits(quantised), expected, atol=1e-4, rtol=0)
    assert (logits(quantised, library=load()) - expected).norm() / expected.norm() < 0.05


MXFP4: Json = {"quant_method": "mxfp4"}


@pytest.fixture(scope="module")
def oss(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    """A folder with experts that transformers has dequantised, and the tensors of the same model in MXFP4."""
    torch.manual_seed(0)
    plain = tmp_path_factory.mktemp("oss") / "plain"
    AutoModelForCausalLM.from_config(OSS).save_pretrained(plain)
    tensors = load_file(plain / "model.safetensors")
    stored = dict(tensors)
    for name, weight in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, width, out = weight.shape
            blocks = integers(0, 256, experts, out, width // 32, 16).to(torch.uint8)
            exponents = integers(118, 122, experts, out, width // 32).to(torch.uint8)
            del stored[name]
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": exponents}
            tensors[name] = convert_moe_packed_tensors(blocks, exponents, dtype=torch.float32).contiguous()
    save_file(tensors, plain / "model.safetensors")
    return plain, stored


def test_mxfp4_experts_are_those_of_transformers(
    oss: tuple[Path, dict[str, Tensor]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The reference is transformers' own function; numbers stay exact: on a CPU in 8 bits, and on a GPU in 4."""
    plain, stored = oss
    quantised = save(tmp_path / "quantised", plain, MXFP4, stored)
    torch.testing.assert_close(logits(quantised), logits(plain), atol=1e-4, rtol=0)
    exact, found = logits(plain, library=load()), logits(quantised, library=load())
    assert 0 < (found - exact).norm() / exact.norm() < 0.05
    apart = experts_of(quantised)
    kept = request.getfixturevalue("on_gpu")
    stacked = experts_of(quantised)
    for part in ("gate_up", "down"):
        stack = getattr(stacked, part)
        assert (stack.weight.bits, stack.weight.floats, stack.weight.scales.dtype) == (
            4,
            True,
            torch.bfloat16,
        )
        eye = torch.eye(stack.weight.inputs)
        for weight, layer in zip(stack.weight.dequantised(torch.float32), getattr(apart, part), strict=True):
            torch.testing.assert_close(weight.t(), layer(eye) - layer.bias)
    assert len(kept) == 2 * 2 * 4


def test_mxfp4_blocks_and_scales_may_be_in_several_files(
    oss: tuple[Path, dict[str, Tensor]], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plain, stored = oss
    whole = save(tmp_path / "whole", plain, MXFP4, stored)
    cut = save(tmp_path / "cut", plain, MXFP4, {})
    (cut / "model.safetensors").unlink()
    names = sorted(stored)
    files = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(names)}
    for file in {*files.values()}:
        save_file({name: stored[name] for name in names if files[name] == file}, cut / file)
    assert len({files[f"model.layers.0.mlp.experts.down_proj_{part}"] for part in ("blocks", "scales")}) == 2
    (cut / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}), "utf-8")
    assert torch.equal(logits(cut), logits(whole))
    request.getfixturevalue("on_gpu")
    stacks = [experts_of(folder).down.weight for folder in (cut, whole)]
    assert torch.equal(*(stack.levels for stack in stacks))


DOWN = "model.layers.0.mlp.experts.down_proj"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_blocks": None}, rf"{DOWN}_blocks is missing"),
        ({"_scales": None}, rf"{DOWN}_scales is missing"),
        ({"_blocks": None, "_scales": None}, rf"missing: {DOWN}$"),
        ({"_scales": lambda scales: scales[:, :, :0]}, rf"{DOWN}_scales has shape \[4, 64, 0\]"),
        ({"_blocks": lambda blocks: blocks[:3]}, rf"{DOWN}_blocks has shape \[3, 64, 1, 16\]"),
        ({"_blocks": lambda blocks: blocks.transpose(1, 3)}, rf"{DOWN}_blocks has shape \[4, 16, 1, 64\]"),
        ({"_blocks": lambda blocks: blocks.view(torch.int8)}, rf"{DOWN}_blocks has type torch.int8"),
        ({"": lambda _: torch.zeros(4, 32, 64)}, rf"not used: {DOWN}$"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_mxfp4_tensors_that_do_not_fit_are_named(
    changes: dict[str, Any],
    message: str,
    device: str,
    oss: tuple[Path, dict[str, Tensor]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    plain, tensors = oss[0], dict(oss[1])
    if device == "gpu":
        request.getfixturevalue("on_gpu")
    for part, change in changes.items():
        found = tensors.pop(DOWN + part, None)
        if change is not None:
            tensors[DOWN + part] = change(found)
    with pytest.raises(WeightsError, match=message):
        load_model(save(tmp_path / "changed", plain, MXFP4, tensors))


def experts_of(folder: Path) -> Any:
    return load_model(folder, torch.float32)._layers[0].feed_forward


def test_blocks_of_fp8_are_those_of_transformers() -> None:
    parts, dequantised = fp8_blocks(96, 64)
    theirs = Fp8Dequantize(None)._dequantize_one(parts["weight"], parts["weight_scale_inv"], torch.float32)
    torch.testing.assert_close(dequantised, theirs)


@pytest.mark.parametrize("case", CASES)
def test_tensors_that_do_not_fit_are_named(case: str, tmp_path: Path) -> None:
    """Each tensor of a module is left out, cut, and of another type in turn; one more is not used."""
    config, make, _ = CASES[case]
    plain, quantised = write(tmp_path, config, make)
    tensors = load_file(quantised / "model.safetensors")
    module = "model.layers.0.mlp.down_proj."
    for name in [name for name in tensors if name.startswith(module)]:
        optional = name.endswith("g_idx")
        for change in (None, tensors[name][:-1], tensors[name].double()):
            if change is None and optional:
                continue
            changed = {key: tensor for key, tensor in tensors.items() if key != name}
            if change is not None:
                changed[name] = change
            with pytest.raises(WeightsError, match=module):
                load_model(save(quantised, plain, config, changed))
    with pytest.raises(WeightsError, match=f"not used: {module}azp"):
        load_model(save(quantised, plain, config, tensors | {f"{module}azp": torch.zeros(1)}))


@pytest.mark.parametrize("case", ["fp8 by tensor", "packed int4", "GPTQ", "AWQ", "torchao int8"])
def test_a_quantised_tensor_in_the_place_of_a_vector_is_named(case: str, tmp_path: Path) -> None:
    config, make, _ = CASES[case]
    plain, quantised = write(tmp_path, config, make)
    tensors = load_file(quantised / "model.safetensors")
    module = "model.layers.1.mlp.down_proj."
    copied = {
        name.replace(module, "model.norm."): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith(module)
    }
    with pytest.raises(WeightsError, match=r"not used: model\.norm\."):
        load_model(save(quantised, plain, config, copied | tensors))


@pytest.mark.parametrize("case", ["fp8 by tensor", "packed int4", "GPTQ", "AWQ", "torchao int8"])
def test_a_quantised_matrix_in_the_place_of_all_experts_is_named(case: str, tmp_path: Path) -> None:
    config, make, _ = CASES[case]
    model = Case("granitemoe", WIDE | {"num_local_experts": 2, "num_experts_per_tok": 1}).config()
    plain, quantised = write(tmp_path, config, make, model)
    tensors = load_file(quantised / "model.safetensors")
    module = "model.layers.0.block_sparse_moe.input_linear."
    experts = {f"{module}{end}": part for end, part in make(64, 64)[0].items()}
    del tensors[f"{module}weight"]
    with pytest.raises(WeightsError, match=module):
        load_model(save(quantised, plain, config, experts | tensors))


def test_a_bias_that_the_model_does_not_have_is_zero_in_gptq(tmp_path: Path) -> None:
    config, make, _ = CASES["GPTQ"]
    plain, quantised = write(tmp_path, config, make)
    tensors = load_file(quantised / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.bias"
    load_model(save(quantised, plain, config, tensors | {name: torch.zeros(96)}))
    with pytest.raises(WeightsError, match=f"not used: {name}"):
        load_model(save(quantised, plain, config, tensors | {name: torch.eye(1, 96)[0]}))


def test_the_order_of_inputs_names_groups_that_exist(tmp_path: Path) -> None:
    config, make, _ = CASES["GPTQ in another order"]
    plain, quantised = write(tmp_path, config, make)
    tensors = load_file(quantised / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.g_idx"][3] = 2
    with pytest.raises(WeightsError, match=r"up_proj\.g_idx names groups that do not exist"):
        load_model(save(quantised, plain, config, tensors))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            {
                "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
                "weight_block_size": [128, 128],
            },
            id="DeepSeek V3.1",
        ),
        pytest.param(
            {
                "bits": 4, "damp_percent": 0.01, "dataset": None, "desc_act": False, "group_size": 128,
                "model_file_base_name": "model", "model_name_or_path": None, "modules_in_block_to_quantize": None,
                "quant_method": "gptq", "static_groups": False, "sym": True, "true_sequential": True,
                "dynamic": {"-:.*visual.*": {}, "-:lm_head": {}},
            },
            id="Qwen2.5 GPTQ",
        ),
        pytest.param(
            {
                "bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq",
                "version": "gemm", "zero_point": True,
            },
            id="Qwen3 AWQ",
        ),
        pytest.param(
            compressed(
                "pack-quantized",
                of_bits(4, 32, actorder=None, block_structure=None, observer="minmax", observer_kwargs={}),
                input_activations=None,
                output_activations=None,
            ),
            id="Kimi K2 Thinking",
        ),
        pytest.param(
            {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"], "quant_method": "mxfp4"},
            id="gpt-oss",
        ),
    ],
)  # fmt: skip
def test_what_published_checkpoints_say_is_read(config: Json) -> None:
    assert describe(LLAMA.to_dict() | {"quantization_config": config}).stored is not None


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"bits": 4}, "quant_method None"),
        ({"quant_method": "hqq"}, "quant_method 'hqq'"),
        ({"quant_method": ["gptq"]}, "quant_method"),
        (FP8 | {"activation_scheme": "none"}, "activation_scheme 'none'"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size"),
        (FP8 | {"weight_block_size": [0, 128]}, "weight_block_size"),
        (FP8 | {"fmt": "e5m2"}, "fmt 'e5m2'"),
        (FP8 | {"surprise": 1}, "surprise is not known"),
        (compressed("marlin-24", of_bits(4, 32)), "format 'marlin-24'"),
        (compressed("pack-quantized", of_bits(3, 32)), "weights.num_bits 3"),
        (compressed("int-quantized", of_bits(8, None, symmetric=False)), "weights.symmetric False"),
        (compressed("pack-quantized", of_bits(4, 32, dynamic=True)), "weights.dynamic True"),
        (compressed("pack-quantized", of_bits(4, 32, strategy="block")), "weights.strategy 'block'"),
        (compressed("pack-quantized", of_bits(4, None, strategy="group")), "weights.group_size"),
        (
            compressed("float-quantized", FLOATS, input_activations=TOKENS | {"dynamic": False}),
            "dynamic False",
        ),
        (compressed("float-quantized", FLOATS, output_activations=TOKENS), "output_activations"),
        (compressed("float-quantized", FLOATS) | {"kv_cache_scheme": TOKENS}, "kv_cache_scheme"),
        (
            compressed("float-quantized", FLOATS) | {"sparsity_config": {"format": "sparse-24"}},
            "sparsity_config",
        ),
        (compressed("float-quantized", FLOATS) | {"config_groups": {}}, "config_groups"),
        (compressed("float-quantized", FLOATS, targets=["re:.*mlp.*"]), "targets"),
        (GPTQ | {"bits": 3}, "bits 3"),
        (GPTQ | {"group_size": 0}, "group_size"),
        (GPTQ | {"dynamic": {"-:lm_head": {}, "+:.*down.*": {"bits": 8}}}, "dynamic"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        (AWQ | {"version": "gemv"}, "version 'gemv'"),
        (AWQ | {"bits": 8}, "bits 8"),
        (AWQ | {"group_size": None}, "group_size"),
        ({"quant_method": "mxfp4", "surprise": 1}, "surprise"),
        (torchao("Int8WeightOnlyConfig", surprise=1), "surprise"),
        (torchao("Int8WeightOnlyConfig", granularity=granularity("PerBlock", block_size=[1, 8])), "PerBlock"),
        (torchao("Int4WeightOnlyConfig", int4_packing_format="tile_packed_to_4d"), "tile_packed_to_4d"),
        (torchao("UIntXWeightOnlyConfig"), "UIntXWeightOnlyConfig"),
        (torchao("IntxWeightOnlyConfig", weight_dtype="uint4"), "weight_dtype 'uint4'"),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, "quant_type 'int4_weight_only'"),
        ({"quant_method": "torchao", "quant_type": {"default": {}, "lm_head": {}}}, "quant_type"),
    ],
)
def test_what_a_format_has_besides_is_refused_by_name(config: Json, field: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"quantization_config.*{field}"):
        describe(LLAMA.to_dict() | {"quantization_config": config})
