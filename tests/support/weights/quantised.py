"""Write small quantised checkpoints, each beside one with the same weights dequantised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig

Json = dict[str, Any]
Made = tuple[dict[str, Tensor], Tensor]
"""The tensors of a module by the ends of their names, and its dequantised weight."""
WIDTHS = {"vocab_size": 40, "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 64}
LLAMA = LlamaConfig(
    **WIDTHS, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=False
)


def integers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape)


def scales(*shape: int) -> Tensor:
    return torch.rand(shape) * 0.02 + 0.01


def words(numbers: Tensor, bits: int, places: list[int] | None = None) -> Tensor:
    """Pack each row [N, K] of unsigned numbers to int32; `places` says where the numbers of a word go."""
    count = 32 // bits
    shifts = bits * torch.tensor(places or range(count))
    padded = functional.pad(numbers.long(), (0, -numbers.shape[1] % count))
    found = (padded.unflatten(1, (-1, count)) << shifts).sum(-1)
    return torch.where(found >> 31 > 0, found - (1 << 32), found).int()


def fp8_blocks(out: int, width: int) -> Made:
    weight, factors = torch.randn(out, width).to(torch.float8_e4m3fn), scales(-(-out // 48), -(-width // 32))
    rows, columns = torch.arange(out) // 48, torch.arange(width) // 32
    return {"weight": weight, "weight_scale_inv": factors}, weight.float() * factors[rows][:, columns]


def fp8_tensor(out: int, width: int) -> Made:
    weight, factor = torch.randn(out, width).to(torch.float8_e4m3fn), scales(1)
    made = {"weight": weight, "weight_scale_inv": factor, "activation_scale": scales(1)}
    return made, weight.float() * factor


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
    "fp8 by tensor": (FP8 | {"weight_block_size": None, "activation_scheme": "static"}, fp8_tensor, 0),
    "compressed fp8": (compressed("float-quantized", FLOATS, input_activations=TOKENS), fp8_channel, 0),
    "compressed int8": (compressed("int-quantized", of_bits(8, None)), int8, 8),
    "packed int4": (compressed("pack-quantized", of_bits(4, 32)), packed(4, 32), 4),
    "packed int8": (compressed("pack-quantized", of_bits(8, 16)), packed(8, 16), 8),
    "packed int4 in another order": (
        compressed("pack-quantized", of_bits(4, 32, actorder="group")), packed(4, 32, order=True), 0,
    ),
    "packed int4 with zero points": (
        compressed("pack-quantized", of_bits(4, 32, symmetric=False)), packed(4, 32, symmetric=False), 4,
    ),
    "GPTQ": (GPTQ, gptq(4, 32, symmetric=True), 4),
    "GPTQ of 8 bits": (GPTQ | {"bits": 8}, gptq(8, 32, symmetric=True), 8),
    "GPTQ with zero points": (
        GPTQ | {"sym": False, "checkpoint_format": "gptq_v2"}, gptq(4, 32, symmetric=False, first=0), 4,
    ),
    "GPTQ in another order": (GPTQ | {"desc_act": True}, gptq(4, 32, symmetric=True, order=True), 0),
    "AWQ": (AWQ, awq, 4),
    "torchao int8": (torchao("Int8WeightOnlyConfig", granularity=ROW), torchao_integers(8, None), 8),
    "torchao int8 in groups": (torchao("Int8WeightOnlyConfig", granularity=GROUP), torchao_integers(8, 32), 8),
    "torchao int4": (torchao("IntxWeightOnlyConfig", **INTX, granularity=GROUP), torchao_integers(4, 32, True), 4),
    "torchao packed int4": (torchao("Int4WeightOnlyConfig", group_size=32, **PLAIN), torchao_halves, 4),
    "torchao float8": (torchao("Float8WeightOnlyConfig", set_inductor_config=True), torchao_floats, 0),
}  # fmt: skip


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


"""The config, the writer of a module, and the bits that the compiled kernels keep, by format."""
