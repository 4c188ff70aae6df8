"""List the launches of one layer, or of the sampling of a step, with their grids, bytes and products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.roofline.shapes import CONTEXT, ModelShape, StepLoad
from plumbline.engines.native.engine_config import GPU_BLOCK_SIZE
from plumbline_kernels import (
    _experts_triton,
    lora,
    norm,
    rope_kv,
    swiglu,
)
from plumbline_kernels._backend import CompileCase, cdiv, next_power_of_2, tuning
from plumbline_kernels.attention import _triton as attention_triton
from plumbline_kernels.narrow import _triton as narrow
from plumbline_kernels.sampling import _gumbel

__all__ = ["Launch", "launches", "narrow_launches"]

_RANK = 16
"""Of adapters; all tokens have one, at the projection of q, k and v."""
_GROUP = 128
"""Inputs of a narrow weight that share a scale."""
_BLOCK_SIZE = GPU_BLOCK_SIZE
"""Tokens in a block of the cache."""
_MXFP4 = 32
"""The same of MXFP4."""
_SAMPLE_OPERATIONS = 12
"""What a token costs in a pass: three operations to scale it, and three for each of three keys."""


_SUM_OPERATIONS = 3 * 64
"""What a token costs beside each of 64 borders: a comparison, a selection and a sum."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of a kernel. Bytes are of bf16 tensors unless the kernel has fp32."""

    kernel: str
    case: CompileCase
    programs: int
    least_bytes: float
    """That must move once, for all programs together."""
    flops: float = 0.0
    """Useful operations of matrix instructions, for all programs together."""
    tile_flops: float = 0.0
    """Operations that one iteration of a program computes."""
    tile_exponentials: float = 0.0
    """Of one iteration."""
    tile_operations: float = 0.0
    """Other operations of one iteration, where they matter, counted in the source."""
    iterations: float = 0.0
    """Of the loop of a program; 0 if it has none, and loads once."""
    cached: bool = False
    """Whether most of what the loop loads is in the L2 cache, because other programs load it, too."""
    per_step: int = 1
    """Launches in a step of the model."""


def launches(shape: ModelShape, load: StepLoad, capability: int = 90) -> Iterator[Launch]:
    """Yield the launches of a step on a GPU of some compute capability."""
    for launch in _of_layer(shape, load, capability):
        yield replace(launch, per_step=launch.per_step * shape.layers)
    yield from _of_sampling(shape, load.sequences)


def narrow_launches(shape: ModelShape, load: StepLoad, capability: int = 90) -> Iterator[Launch]:
    """Yield what takes the place of products in a step with weights of 8 or 4 bits, one launch of each kind."""
    for launch in (*_narrow_experts(shape, load.tokens, capability), *_narrow(shape, load.tokens)):
        yield replace(launch, per_step=launch.per_step * shape.layers)


def _of_layer(shape: ModelShape, load: StepLoad, capability: int) -> Iterator[Launch]:
    tokens = load.tokens
    yield _norm(shape, tokens)
    yield _rope(shape, tokens)
    yield from (
        _prefill(shape, tokens, capability) if load.prompt else _decode(shape, load.sequences, capability)
    )
    rows = tokens * shape.top_k
    if shape.experts:
        yield from _experts(shape, tokens, capability)
    yield _activation(shape, rows)
    yield from _adapters(shape, tokens)


def _case(
    module: Any, name: str, constants: dict[str, Any], options: dict[str, int], *capability: int
) -> CompileCase:
    """Return a launch that the module compiles, with other constants."""
    case = next(case for case in module.compile_cases(*capability) if case.name.startswith(name))
    return replace(case, constants={**case.constants, **constants}, options={**case.options, **options})


def _norm(shape: ModelShape, tokens: int) -> Launch:
    width = shape.hidden
    options = {"num_warps": norm._num_warps(width)}
    return Launch(
        kernel="add_rms_norm",
        case=_case(norm, "norm D=4096 add=True centred=False", {"BLOCK": next_power_of_2(width)}, options),
        programs=tokens,
        least_bytes=tokens * width * 2 * 4,
        per_step=2,
    )


def _rope(shape: ModelShape, tokens: int) -> Launch:
    heads = shape.heads + 2 * shape.kv_heads
    config = tuning("rope_kv")
    constants = {"H": shape.heads, "KV": shape.kv_heads, "TEMPERATURE": False}
    return Launch(
        kernel="rope_kv_write",
        case=_case(rope_kv, f"rope_kv_write hd={shape.head_dim} norm=0", constants, config),
        programs=tokens * cdiv(heads, config["heads"]),
        least_bytes=tokens * heads * shape.head_dim * 2 * 2,
    )


def _attention_case(shape: ModelShape, segments: int, capability: int) -> tuple[CompileCase, dict[str, int]]:
    group = shape.heads // shape.kv_heads
    config, _ = attention_triton._tiles(segments > 0, group, shape.head_dim, _BLOCK_SIZE, 2, capability)
    constants = {"H": shape.heads, "GROUP": group, "BLOCK_M": config["block_m"]}
    constants["BLOCK_Q"] = 1 if segments else config["block_m"] // group
    return attention_triton._attend_case("attend", shape.head_dim, segments, capability, **constants), config


def _decode(shape: ModelShape, sequences: int, capability: int) -> Iterator[Launch]:
    _, config = _attention_case(shape, 1, capability)
    segments = attention_triton.num_segments(sequences * shape.kv_heads, CONTEXT, config["tile"])
    case, _ = _attention_case(shape, segments, capability)
    width = shape.kv_heads * shape.head_dim
    yield Launch(
        kernel="attention decode",
        case=case,
        programs=sequences * shape.kv_heads * segments,
        least_bytes=sequences * CONTEXT * width * 2 * 2,
        flops=4.0 * sequences * shape.heads * CONTEXT * shape.head_dim,
        tile_flops=4.0 * config["block_m"] * config["tile"] * shape.head_dim,
        tile_exponentials=config["block_m"] * config["tile"],
        iterations=cdiv(cdiv(CONTEXT, config["tile"]), segments),
    )
    if segments > 1:
        rows = sequences * shape.heads
        yield Launch(
            kernel="attention reduce",
            case=_case(
                attention_triton,
                f"paged_attention reduce hd={shape.head_dim}",
                {"H": shape.heads, "SEGMENTS": segments, "SINKS": False},
                {},
            ),
            programs=rows,
            least_bytes=rows * shape.head_dim * (4 * segments + 2),
        )


def _prefill(shape: ModelShape, tokens: int, capability: int) -> Iterator[Launch]:
    case, config = _attention_case(shape, 0, capability)
    block_q = config["block_m"] // (shape.heads // shape.kv_heads)
    yield Launch(
        kernel="attention prefill",
        case=case,
        programs=(tokens // block_q + 1) * shape.kv_heads,
        least_bytes=tokens * (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim * 2,
        flops=2.0 * shape.heads * tokens**2 * shape.head_dim,
        tile_flops=4.0 * config["block_m"] * config["tile"] * shape.head_dim,
        tile_exponentials=config["block_m"] * config["tile"],
        # A program sees half of the prompt on average.
        iterations=cdiv(tokens // 2 + block_q, config["tile"]),
        cached=True,
    )


def _experts(shape: ModelShape, tokens: int, capability: int) -> Iterator[Launch]:
    yield from _grouped(shape, tokens, capability, "", 2.0, {})


def _narrow_experts(shape: ModelShape, tokens: int, capability: int) -> Iterator[Launch]:
    """Yield the products of experts with MXFP4."""
    if not shape.experts:
        return
    weights = {"FLOATS": True, "SHIFTED": False, "STEP": _MXFP4}
    yield from _grouped(shape, tokens, capability, " bits=4 floats", 0.5 + 2 / _MXFP4, weights)


def _grouped(
    shape: ModelShape,
    tokens: int,
    capability: int,
    width: str,
    weight_bytes: float,
    constants: dict[str, Any],
) -> Iterator[Launch]:
    rows, number = tokens * shape.top_k, shape.experts
    kind = "decode" if rows <= 16 * number else "prefill"
    config = tuning(f"experts_{'narrow_' if width else ''}{kind}", capability)
    active = number * (1 - (1 - shape.top_k / number) ** tokens)
    blocks = active * cdiv(max(round(rows / active), 1), config["block_m"])
    for part, inputs, outputs in (
        ("gate_up", shape.hidden, 2 * shape.inner),
        ("down", shape.inner, shape.hidden),
    ):
        yield Launch(
            kernel=f"experts {part}{' MXFP4' if width else ''}",
            case=_case(
                _experts_triton,
                f"experts {kind} {part}{width}",
                {"TOP_K": shape.top_k, "BIAS": False, **constants},
                {},
                capability,
            ),
            programs=round(blocks) * cdiv(outputs, config["block_n"]),
            least_bytes=active * outputs * inputs * weight_bytes + rows * (inputs + outputs) * 2,
            flops=2.0 * rows * inputs * outputs,
            tile_flops=2.0 * config["block_m"] * config["block_n"] * config["block_k"],
            iterations=cdiv(inputs, config["block_k"]),
            cached=kind == "prefill",
        )


def _narrow(shape: ModelShape, tokens: int) -> Iterator[Launch]:
    """Yield the projection of q, k and v with each kind of weights, of which a step has one."""
    if tokens > narrow._MANY_ROWS:
        return  # cuBLAS computes them.
    kind = "decode" if tokens <= narrow._FEW_ROWS else "prefill"
    config = tuning(f"narrow_{kind}")
    inputs, outputs = shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    programs, tiles = (
        cdiv(tokens, config["block_m"]) * cdiv(outputs, config["block_n"]),
        cdiv(inputs, config["block_k"]),
    )
    splits = narrow.num_splits(programs, tiles)
    sums = splits * tokens * outputs * 4 if splits > 1 else 0
    for name, bits, floats in (("int8", 8, False), ("int4", 4, False), ("fp8", 8, True)):
        constants = {"BIAS": False, "SHIFTED": False, "STEP": 0}
        width = f"bits={bits}{' floats' if floats else ''}"
        yield Launch(
            kernel=f"linear {name}",
            case=_case(narrow, f"narrow {kind} {width}", constants, {}),
            programs=programs * splits,
            least_bytes=outputs * inputs * (bits / 8 + 2 / _GROUP) + tokens * (inputs + outputs) * 2 + sums,
            flops=2.0 * tokens * inputs * outputs,
            tile_flops=2.0 * config["block_m"] * config["block_n"] * config["block_k"],
            iterations=cdiv(tiles, splits),
            cached=kind == "prefill",
        )


def _activation(shape: ModelShape, rows: int) -> Launch:
    config = tuning("silu_mul")
    return Launch(
        kernel="silu_mul",
        case=_case(swiglu, "silu_mul", {}, {}),
        programs=rows * cdiv(shape.inner, config["block"]),
        least_bytes=rows * shape.inner * 2 * 3,
    )


def _adapters(shape: ModelShape, tokens: int) -> Iterator[Launch]:
    config = lora._config(tokens)
    kind = "decode" if config is tuning("lora_decode") else "prefill"
    inputs, rank = shape.hidden, 3 * _RANK
    blocks = cdiv(tokens, config["block_m"])
    splits = lora._num_splits(blocks * cdiv(rank, config["block_r"]), cdiv(inputs, config["block_k"]))
    outputs = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    block_m, block_r = config["block_m"], config["block_r"]
    yield Launch(
        kernel="lora shrink",
        case=_case(lora, f"lora {kind} shrink", {"SPLITS": splits}, {}),
        programs=blocks * cdiv(rank, block_r) * splits,
        least_bytes=tokens * inputs * 2 + rank * inputs * 2 + tokens * rank * 4 * splits,
        flops=2.0 * tokens * inputs * rank,
        tile_flops=2.0 * block_m * block_r * config["block_k"],
        iterations=cdiv(inputs, config["block_k"] * splits),
    )
    yield Launch(
        kernel="lora expand",
        case=_case(lora, f"lora {kind} expand", {"SPLITS": splits}, {}),
        programs=blocks * cdiv(outputs, config["block_n"]),
        least_bytes=tokens * outputs * 2 * 2 + rank * outputs * 2 + tokens * rank * 4 * splits,
        flops=2.0 * tokens * outputs * rank,
        tile_flops=2.0 * block_m * config["block_n"] * block_r,
        iterations=cdiv(rank, block_r),
    )


def _of_sampling(shape: ModelShape, rows: int) -> Iterator[Launch]:
    """Yield the launches for rows with top_p, without top_k."""
    find, search, draw = tuning("sample_sums"), tuning("sample_threshold"), tuning("sample_draw")
    parts = rows * cdiv(shape.vocab, find["block"])
    logits = rows * shape.vocab * 4
    yield Launch(
        kernel="sample extremes",
        case=_case(_gumbel, "sample extremes", {}, {}),
        programs=parts,
        least_bytes=logits,
    )
    yield Launch(
        kernel="sample sums",
        case=_case(_gumbel, "sample sums", {}, {}),
        programs=parts,
        least_bytes=logits,
        tile_exponentials=find["block"],
        tile_operations=_SUM_OPERATIONS * find["block"],
        cached=True,
    )
    yield Launch(
        kernel="sample threshold",
        case=_case(_gumbel, "sample threshold", {}, {}),
        programs=rows,
        least_bytes=logits,
        # The tokens of one region are copied, and searched for two bits of the threshold at a time.
        iterations=cdiv(shape.vocab, search["block"]) + 16,
        tile_exponentials=search["block"],
        tile_operations=_SAMPLE_OPERATIONS * search["block"],
        cached=True,
    )
    blocks = cdiv(shape.vocab, draw["block"])
    yield Launch(
        kernel="sample draw",
        case=_case(_gumbel, "sample draw", {}, {}),
        programs=rows * blocks,
        least_bytes=rows * shape.vocab * 4,
    )
    yield Launch(
        kernel="sample winner",
        case=_case(_gumbel, "sample winner", {"BLOCKS": next_power_of_2(blocks)}, {}),
        programs=rows,
        least_bytes=rows * blocks * 8,
    )
