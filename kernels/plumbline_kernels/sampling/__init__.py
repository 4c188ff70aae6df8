"""Draw tokens from logits.

draw       temperature, top-k, top-p, min-p and the draw
_gumbel    the kernels of the draw
_limits    the kernels that find the least logit of a row that its limits keep
"""

from plumbline_kernels.logits import apply_bitmask, apply_penalties
from plumbline_kernels.sampling.draw import gumbel_noise, random_bits, sample, sample_torch

__all__ = ["apply_bitmask", "apply_penalties", "gumbel_noise", "random_bits", "sample", "sample_torch"]
