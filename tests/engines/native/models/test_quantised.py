"""A quantised checkpoint computes what its dequantised weights compute, or is refused with the name that does not fit.

The laws, for random weights of each format:

* In fp32 the logits are those of a folder with the dequantised weights, within 1e-4.
* Dequantised weights are what the formula of the format gives, which the tests write number by number, or what
  transformers computes where it has a function for a CPU.
* Packed for the compiled kernels, integers of the checkpoint are kept, and only their scales become bf16.
* A tensor that is missing, has another shape or type, or is not used is named, and so is a field that is not known.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.weights.model_driver import Driver
from support.weights.model_families import DEEPSEEK, WIDE_LATENT, Case
from torch import Tensor
from transformers import AutoModelForCausalLM, Ernie4_5Config, GptOssConfig, LlamaConfig, Qwen3MoeConfig
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from plumbline.engines.native.models import UnsupportedModelError, WeightsError, describe, load_model
from plumbline_kernels.cpu.library import Library, PackedWeight, load

Json = dict[str, Any]
Made = tuple[dict[str, Tensor], Tensor]
"""The tensors of a module by the ends of their names, and its dequantised weight."""

PACK = Library.pack
WIDTHS = {"vocab_size": 40, "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 64}
LLAMA = LlamaConfig(
    **WIDTHS, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False
)
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


def integers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape)


def scales(*shape: int) -> Tensor:
    return torch.rand(shape) * 0.02 + 0.01


def words(numbers: Tensor, bits: int, places: list[int] | None = None) -> Tensor:
    """Pack each row [N, K] of unsigned numbers to int32; `places` says where the numbers of a word go."""
    count = 32 // bits
    packed = []
    for row in numbers.tolist():
        for start in range(0, len(row), count):
            word = 0
            for index, number in enumerate(row[start : start + count]):
                word |= number << bits * (places[index] if places else index)
            packed.append(word - (1 << 32) if word >> 31 else word)
    return torch.tensor(packed, dtype=torch.int32).view(len(numbers), -1)


def fp8_blocks(out: int, width: int) -> Made:
    weight, factors = torch.randn(out, width).to(torch.float8_e4m3fn), scales(-(-out // 48), -(-width // 32))
    rows, columns = torch.arange(out) // 48, torch.arange(width) // 32
    return {"weight": weight, "weight_scale_inv": factors}, weight.float() * factors[rows][:, columns]


def fp8_tensor(out: int, width: int) -> Made:
    weight, factor = torch.randn(out, width).to(torch.float8_e4m3fn), scales(1)
    return {"weight": weight, "weight_scale": factor}, weight.float() * factor


def fp8_channel(out: int, width: int) -> Made:
    weight, factors = torch.randn(out, width).to(torch.float8_e4m3fn), scales(out, 1).bfloat16()
    return {"weight": weight, "weight_scale": factors}, weight.float() * factors.float()


def int8(out: int, width: int) -> Made:
    weight, factors = integers(-128, 128, out, width).to(torch.int8), scales(out, 1) / 16
    return {"weight": weight, "weight_scale": factors}, weight * factors


def packed(bits: int, group: int, order: bool = False, symmetric: bool = True) -> Callable[[int, int], Made]:
    def make(out: int, width: int) -> Made:
        levels, zeros = integers(0, 1 << bits, out, width), torch.full((out, width // group), 1 << bits - 1)
        factors = scales(out, width // group) / (1 << bits - 4)
        places = torch.arange(width) // group
        tensors = {
            "weight_packed": words(levels, bits),
            "weight_scale": factors,
            "weight_shape": torch.tensor([out, width]),
        }
        if order:
            places = places[torch.randperm(width)]
            tensors["weight_g_idx"] = places.int()
        if not symmetric:
            zeros = integers(0, 1 << bits, out, width // group)
            tensors["weight_zero_point"] = words(zeros.t(), bits).t()
        return tensors, (levels - zeros[:, places]) * factors[:, places]

    return make


def gptq(
    bits: int, group: int, symmetric: bool, first: int = 1, order: bool = False
) -> Callable[[int, int], Made]:
    def make(out: int, width: int) -> Made:
        levels, groups = integers(0, 1 << bits, out, width), width // group
        zeros = integers(1, 1 << bits, out, groups)
        if symmetric:
            zeros[:] = 1 << bits - 1
        factors = (scales(out, groups) / (1 << bits - 4)).half()
        places = torch.arange(width) // group
        if order:
            places = places[torch.randperm(width)]
        tensors = {
            "qweight": words(levels, bits).t().contiguous(),
            "qzeros": words((zeros - first).t(), bits),
            "scales": factors.t().contiguous(),
            "g_idx": places.int(),
        }
        return tensors, (levels - zeros[:, places]) * factors.float()[:, places]

    return make


def awq(out: int, width: int) -> Made:
    levels, zeros, factors = (
        integers(0, 16, out, width),
        integers(0, 16, out, width // 32),
        scales(out, width // 32),
    )
    # Output 1 of eight is the fifth number of a word, counted from its lowest bits.
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    tensors = {
        "qweight": words(levels.t(), 4, order),
        "qzeros": words(zeros.t(), 4, order),
        "scales": factors.t().contiguous().half(),
    }
    places = torch.arange(width) // 32
    return tensors, (levels - zeros[:, places]) * factors.half().float()[:, places]


def torchao_integers(bits: int, group: int | None, zeros: bool = False) -> Callable[[int, int], Made]:
    """One number a byte; the tensors that torchao 0.18 writes have these names, shapes and types."""

    def make(out: int, width: int) -> Made:
        groups = width // (group or width)
        most = 1 << bits - 1
        levels, factors = integers(-most, most, out, width), scales(out, groups) / most
        points = integers(-2, 3, out, groups) if zeros else torch.zeros(out, groups, dtype=torch.int64)
        places = torch.arange(width) // (group or width)
        tensors = {"_weight_qdata": levels.to(torch.int8), "_weight_scale": factors}
        if zeros:
            tensors["_weight_zero_point"] = points.to(torch.int8)
        return tensors, (levels - points[:, places]) * factors[:, places]

    return make


def torchao_halves(out: int, width: int) -> Made:
    levels, factors, shifts = integers(-8, 8, out, width), scales(width // 32, out), scales(width // 32, out)
    low, high = levels[:, ::2] & 15, levels[:, 1::2] & 15
    places = torch.arange(width) // 32
    tensors = {
        "_weight_qdata": (low | high << 4).to(torch.uint8).view(torch.int8),
        "_weight_scale": factors.bfloat16(),
        "_weight_zero_point": shifts.bfloat16(),
    }
    factors, shifts = factors.bfloat16().float().t(), shifts.bfloat16().float().t()
    return tensors, levels * factors[:, places] + shifts[:, places]


def torchao_floats(out: int, width: int) -> Made:
    weight, factors = torch.randn(out, width).to(torch.float8_e4m3fn), scales(out, 1)
    return {"_weight_qdata": weight, "_weight_scale": factors}, weight.float() * factors


def torchao(kind: str, **fields: Any) -> Json:
    return {
        "quant_method": "torchao",
        "quant_type": {"default": {"_type": kind, "_version": 2, "_data": fields}},
        "modules_to_not_convert": None,
        "include_input_output_embeddings": False,
        "untie_embedding_weights": False,
    }


def granularity(kind: str, **fields: Any) -> Json:
    return {"_type": kind, "_version": 1, "_data": fields}


def compressed(form: str, weights: Json, **more: Any) -> Json:
    group = {"targets": ["Linear"], "weights": {"symmetric": True, "dynamic": False, **weights}, **more}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "sparsity_config": {},
    }


def of_bits(bits: int, group: int | None, **more: Any) -> Json:
    kind = "channel" if group is None else "group"
    return {"num_bits": bits, "type": "int", "strategy": kind, "group_size": group, **more}


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [48, 32]}
FLOATS = {"num_bits": 8, "type": "float", "strategy": "channel"}
TOKENS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
GPTQ = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "desc_act": False,
    "sym": True,
    "damp_percent": 0.1,
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}

ROW, GROUP = granularity("PerRow", dim=-1), granularity("PerGroup", group_size=32)
INTX = {
    "weight_dtype": {"_type": "torch.dtype", "_data": "int4"},
    "intx_packing_format": {"_type": "IntxPackingFormat", "_data": "UNPACKED_TO_INT8"},
}
PLAIN = {"int4_packing_format": {"_type": "Int4PackingFormat", "_data": "PLAIN"}}

CASES: dict[str, tuple[Json, Callable[[int, int], Made], int]] = {
    "fp8 in blocks": (FP8, fp8_blocks, 0),
    "fp8 by tensor": (FP8 | {"weight_block_size": None}, fp8_tensor, 0),
    "compressed fp8": (compressed("float-quantized", FLOATS, input_activations=TOKENS), fp8_channel, 0),
    "compressed int8": (compressed("int-quantized", of_bits(8, None)), int8, 8),
    "packed int4": (compressed("pack-quantized", of_bits(4, 32)), packed(4, 32), 4),
    "packed int8": (compressed("pack-quantized", of_bits(8, 16)), packed(8, 16), 8),
    "packed int4 in another order": (
        compressed("pack-quantized", of_bits(4, 32, actorder="group")), packed(4, 32, order=True), 0,
    ),
    "packed int4 with zero points": (
        compressed("pack-quantized", of_bits(4, 32, symmetric=False)), packed(4, 32, symmetric=False), 8,
    ),
    "GPTQ": (GPTQ, gptq(4, 32, symmetric=True), 4),
    "GPTQ of 8 bits": (GPTQ | {"bits": 8}, gptq(8, 32, symmetric=True), 8),
    "GPTQ with zero points": (
        GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"}, gptq(4, 32, symmetric=False, first=0), 8,
    ),
    "GPTQ in another order": (GPTQ | {"desc_act": True}, gptq(4, 32, symmetric=True, order=True), 0),
    "AWQ": (AWQ, awq, 8),
    "torchao int8": (torchao("Int8WeightOnlyConfig", granularity=ROW), torchao_integers(8, None), 8),
    "torchao int8 in groups": (torchao("Int8WeightOnlyConfig", granularity=GROUP), torchao_integers(8, 32), 8),
    "torchao int4": (torchao("IntxWeightOnlyConfig", **INTX, granularity=GROUP), torchao_integers(4, 32, True), 8),
    "torchao packed int4": (torchao("Int4WeightOnlyConfig", group_size=32, **PLAIN), torchao_halves, 4),
    "torchao float8": (torchao("Float8WeightOnlyConfig", set_inductor_config=True), torchao_floats, 0),
}  # fmt: skip
"""The config, the writer of a module, and the bits that the compiled kernels keep, by format."""


@pytest.fixture(params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, int]:
    """A quantised folder, one with the same weights dequantised, and the bits that the kernels keep."""
    config, make, bits = CASES[request.param]
    return *write(tmp_path, config, make), bits


def write(
    path: Path, config: Json, make: Callable[[int, int], Made], model: Any = LLAMA
) -> tuple[Path, Path]:
    """Quantise the projections of a small model; its output layer stays as it is."""
    torch.manual_seed(0)
    plain, quantised = path / "plain", path / "quantised"
    AutoModelForCausalLM.from_config(model).save_pretrained(plain)
    tensors = load_file(plain / "model.safetensors")
    stored = dict(tensors)
    for name, weight in tensors.items():
        if name.endswith("proj.weight"):
            parts, dequantised = make(*weight.shape)
            del stored[name]
            stored |= {name.removesuffix("weight") + end: part for end, part in parts.items()}
            tensors[name] = dequantised.float().contiguous()
    save_file(tensors, plain / "model.safetensors")
    return plain, save(quantised, plain, config, stored)


def save(folder: Path, plain: Path, config: Json, tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    values = json.loads((plain / "config.json").read_text()) | {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(values))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


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

    def pack(library: Library, weight: Tensor, *args: Any) -> PackedWeight:
        packed_bits.append((PACK(library, weight, *args)).bits)
        return PACK(library, weight, *args)

    monkeypatch.setattr(Library, "pack", pack)
    found = logits(quantised, library=load())
    assert packed_bits == [bits] * 8 + [0]
    # What is left are inputs rounded to 8 bits, and scales in bf16.
    assert (found - exact).norm() / exact.norm() < (0.05 if bits else 1e-5)


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


def test_mxfp4_experts_are_those_of_transformers(tmp_path: Path) -> None:
    """The reference is transformers' own function; on the kernels the numbers stay exact, as integers of 8 bits."""
    torch.manual_seed(0)
    plain = tmp_path / "plain"
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
    quantised = save(tmp_path / "quantised", plain, {"quant_method": "mxfp4"}, stored)
    torch.testing.assert_close(logits(quantised), logits(plain), atol=1e-4, rtol=0)
    exact, found = logits(plain, library=load()), logits(quantised, library=load())
    assert 0 < (found - exact).norm() / exact.norm() < 0.05
    stored["model.layers.0.mlp.experts.down_proj_scales"] = exponents[:, :, :0]
    with pytest.raises(WeightsError, match=r"down_proj_scales has shape \[4, 64, 0\]"):
        load_model(save(quantised, plain, {"quant_method": "mxfp4"}, stored))


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
    module = "model.layers.1.mlp.down_proj."
    for name in [name for name in tensors if name.startswith(module)]:
        optional = name.endswith("g_idx")
        for change in (None, tensors[name][:-1], tensors[name].view(torch.uint8), tensors[name].double()):
            if change is None and optional:
                continue
            changed = {key: tensor for key, tensor in tensors.items() if key != name}
            if change is not None:
                changed[name] = change
            with pytest.raises(WeightsError, match=module):
                load_model(save(quantised, plain, config, changed))
    with pytest.raises(WeightsError, match=f"not used: {module}azp"):
        load_model(save(quantised, plain, config, tensors | {f"{module}azp": torch.zeros(1)}))


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
        (FP8 | {"activation_scheme": "static"}, "activation_scheme 'static'"),
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
        (GPTQ | {"dynamic": {"-:lm_head": {}}}, "dynamic"),
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
