"""Choose how a narrow product is cut."""

from math import gcd

from plumbline_kernels._backend import cdiv
from plumbline_kernels.narrow.weight import NarrowWeight

__all__ = ["SPLITS", "num_splits", "step_of"]

_RESIDENT = 6 * 132
"""Programs that an H200 runs at a time."""
SPLITS = (1, 2, 4, 6, 8)


def step_of(weight: NarrowWeight, block_k: int) -> int:
    """Return `STEP` of `narrow_dot` for tiles of so many inputs."""
    groups = weight.scales.shape[-2]
    shared = gcd(weight.inputs // groups, block_k)
    return 0 if groups == 1 or shared == block_k else shared


def num_splits(programs: int, tiles: int) -> int:
    """Return in how many parts the inputs are cut, so that programs fill a GPU, and its last round of them as well.

    Each part has two tiles at least.
    """
    possible = [splits for splits in SPLITS if 2 * splits <= tiles] or [1]
    return min(possible, key=lambda splits: cdiv(programs * splits, _RESIDENT) / splits)
