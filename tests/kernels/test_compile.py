"""Every kernel compiles for every GPU of the last generations, keeps its registers and fits its shared memory.

None is there: the shapes are those that the server launches, with blocks of 64. AMD's gfx942 compiles and fits too,
with the tiles of the smallest NVIDIA GPUs; no kernel has run on one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from benchmarks.roofline.compiled import compile_for, usage

from plumbline_kernels import (
    _experts_triton,
    logits,
    lora,
    norm,
    product,
    rope_kv,
    routing,
    swiglu,
)
from plumbline_kernels._backend import CompileCase, tuning
from plumbline_kernels.attention import _exact as exact_attention
from plumbline_kernels.attention import _triton as attention_triton
from plumbline_kernels.delta import _triton as delta
from plumbline_kernels.devices import CAPABILITIES, gpu_problem, shared_bytes
from plumbline_kernels.latent import _triton as latent
from plumbline_kernels.narrow import _exact as exact_narrow
from plumbline_kernels.narrow import _triton as narrow
from plumbline_kernels.sampling import _gumbel

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.long

AMD, AMD_SHARED = "gfx942", 64 * 1024


def cases(capability: int) -> Iterator[CompileCase]:
    """Yield the launches of all kernels, with the tiles that a GPU gets."""
    for module in (attention_triton, exact_attention, _experts_triton, delta, latent, product):
        yield from module.compile_cases(capability)
    for module in (norm, rope_kv, lora, narrow, exact_narrow, swiglu, logits, routing, _gumbel):
        yield from module.compile_cases()


CASES = {
    f"sm_{capability} {case.name}": (capability, case)
    for capability in CAPABILITIES
    for case in cases(capability)
}


SPILLS = (
    {
        "sm_90 latent attention": 400,
        "sm_90 experts prefill down bits=8": 144,
        "sm_90 product few": 16,
        "sm_100 product": 32,
        "sm_103 product": 32,
    }
    | {
        f"sm_{capability} exact attention hd={head_dim}": most
        for capability in CAPABILITIES
        for head_dim, most in ((80, 128), (96, 128), (128, 128), (192, 160), (256, 160), (512, 800))
    }
    | {
        f"sm_{capability} paged_attention hd={head_dim} segments": 16
        for capability in CAPABILITIES
        for head_dim in (192, 256, 512)
    }
)
"""Bytes of stack, where tiles that spill were faster: 1.6 times those that do not, on an H200; and where the pages of
decodes take two registers more than there are."""


@pytest.mark.parametrize("name", CASES)
def test_compiles_without_spills_and_within_shared_memory(name: str) -> None:
    """No byte of stack but where measured, and on sm_90 the matrix instruction that the tiles are chosen for."""
    capability, case = CASES[name]
    kernel = compile_for(case, capability)

    stack = next((most for case, most in SPILLS.items() if name.startswith(case)), 0)
    assert usage(kernel.asm["cubin"])["STACK"] <= stack
    assert kernel.metadata.shared <= shared_bytes(capability)
    for instruction in case.instructions:
        assert capability != 90 or instruction in kernel.asm["ptx"]


def test_latent_attention_in_fp32_fits_the_shared_memory_with_the_tiles_of_sm_80() -> None:
    case = next(case for case in latent.compile_cases(80) if case.name == "latent attention segments=1")
    types = {name: "*fp32" if kind == "*bf16" else kind for name, kind in case.signature.items()}

    assert compile_for(replace(case, signature=types), 90).metadata.shared <= shared_bytes(90)


@pytest.mark.parametrize("name", [case.name for case in cases(94)])
def test_compiles_for_gfx942_within_its_shared_memory(name: str) -> None:
    case = next(case for case in cases(94) if case.name == name)
    assert compile_for(case, AMD).metadata.shared <= AMD_SHARED


def test_tiles_depend_on_shared_memory_and_not_on_the_order_of_numbers() -> None:
    prompts = {capability: tuning("attention_prefill_256", capability) for capability in CAPABILITIES}

    assert prompts[120] == prompts[121] == prompts[86] == prompts[89] == prompts[80]
    assert prompts[100] == prompts[103]


def test_older_gpus_are_refused_and_unknown_ones_get_the_smallest_tiles() -> None:
    assert all(gpu_problem(capability) is None for capability in (*CAPABILITIES, 87, 110, 130))
    for capability in (60, 70, 75):
        assert "8.0 or newer" in (gpu_problem(capability) or "")
    assert shared_bytes(130) == shared_bytes(86)


def test_a_register_spill_is_detected() -> None:
    """The gate closes: the prefill kernel with the tiles of a decode's warps needs more registers than there are."""
    _, case = CASES["sm_90 paged_attention hd=64 segments=0"]
    starved = CompileCase(
        case.name,
        case.kernel,
        case.signature,
        case.constants,
        case.options | {"num_warps": 2},  # type: ignore[operator]
    )

    assert usage(compile_for(starved, 90).asm["cubin"])["STACK"] > 0
