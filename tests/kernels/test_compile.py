"""Every kernel compiles for A100, H100 and B200 without a GPU, keeps its registers and fits its shared memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.roofline.compiled import compile_for, usage

from plumbline_kernels import (
    _experts_triton,
    _sampling_triton,
    logits,
    lora,
    norm,
    rope_kv,
    swiglu,
)
from plumbline_kernels._backend import CompileCase
from plumbline_kernels.attention import _triton as attention_triton
from plumbline_kernels.delta import _triton as delta
from plumbline_kernels.latent import _triton as latent
from plumbline_kernels.narrow import _triton as narrow

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.long

SHARED_LIMITS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of a program, by compute capability."""
CASES = {
    f"sm_{capability} {case.name}": (capability, case)
    for capability in SHARED_LIMITS
    for cases in (
        *(module.compile_cases(capability) for module in (attention_triton, _experts_triton, delta, latent)),
        *(
            module.compile_cases()
            for module in (norm, rope_kv, lora, narrow, swiglu, logits, _sampling_triton)
        ),
    )
    for case in cases
}


SPILLS = {"sm_90 latent attention": 400}
"""Bytes of stack where tiles that spill were faster: 1.6 times those that do not, on an H200."""


@pytest.mark.parametrize("name", CASES)
def test_compiles_without_spills_and_within_shared_memory(name: str) -> None:
    """No byte of stack but where measured, and on sm_90 the matrix instruction that the tiles are chosen for."""
    capability, case = CASES[name]
    kernel = compile_for(case, capability)

    stack = next((most for case, most in SPILLS.items() if name.startswith(case)), 0)
    assert usage(kernel.asm["cubin"])["STACK"] <= stack
    assert kernel.metadata.shared <= SHARED_LIMITS[capability]
    for instruction in case.instructions:
        assert capability != 90 or instruction in kernel.asm["ptx"]


def test_latent_attention_in_fp32_fits_the_shared_memory_with_the_tiles_of_sm_80() -> None:
    case = next(case for case in latent.compile_cases(80) if case.name == "latent attention segments=1")
    types = {name: "*fp32" if kind == "*bf16" else kind for name, kind in case.signature.items()}

    assert compile_for(replace(case, signature=types), 90).metadata.shared <= SHARED_LIMITS[90]


def test_a_register_spill_is_detected() -> None:
    """The gate closes: the prefill kernel with the tiles of a decode's warps needs more registers than there are."""
    _, case = CASES["sm_90 paged_attention hd=128 segments=0"]
    starved = CompileCase(
        case.name, case.kernel, case.signature, case.constants, case.options | {"num_warps": 2}
    )

    assert usage(compile_for(starved, 90).asm["cubin"])["STACK"] > 0
