"""Say which GPUs the kernels run on, and what each has of what limits their tiles."""

from __future__ import annotations

__all__ = ["CAPABILITIES", "gpu_problem", "shared_bytes"]

_KIB = 1024
_SHARED = {
    80: 163 * _KIB,
    86: 99 * _KIB,
    87: 163 * _KIB,
    89: 99 * _KIB,
    90: 227 * _KIB,
    100: 227 * _KIB,
    103: 227 * _KIB,
    120: 99 * _KIB,
    121: 99 * _KIB,
}
"""Bytes of shared memory that a program may take, by compute capability (CUDA C++ Programming Guide, table of technical
specifications)."""
CAPABILITIES = tuple(capability for capability in _SHARED if capability != 87)
"""Those that the kernels are compiled for in tests (tests/kernels/test_compile.py)."""


def shared_bytes(capability: int) -> int:
    """Return the bytes of shared memory that a program may take; the least there is for a GPU that is not known."""
    return _SHARED.get(capability, min(_SHARED.values()))


def gpu_problem(capability: int) -> str | None:
    """Return why the kernels do not run on a GPU of this compute capability, or None if they do."""
    if capability < min(_SHARED):
        # Turing and older have 64 KiB of shared memory and no bf16.
        return (
            f"our kernels need a GPU of compute capability 8.0 or newer, not {capability // 10}.{capability % 10}: "
            "--engine transformers runs the model there, and llama.cpp a GGUF file of it"
        )
    return None
