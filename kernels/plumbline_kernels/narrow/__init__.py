"""Multiply with weights that are kept in 8 or 4 bits: integers (W8A16, W4A16), or floats (e4m3 and e2m1, MXFP4).

A weight [out, in] is levels times the scale of their group of inputs, and shifted. A decode step reads every weight
once, so half or a quarter of the bytes is up to twice or four times the speed on a GPU. Levels are exact in the inputs'
own type, so tiles of one group are multiplied as they are and the products scaled; sums are fp32.

weight   weights of levels, and how others are rounded to such
tiles    how a product is cut
linear   the product, and torch's version of it
_triton  its Triton kernels; those of experts multiply with `narrow_dot`, too
"""

from plumbline_kernels.narrow.linear import narrow_linear, narrow_linear_torch
from plumbline_kernels.narrow.weight import NarrowWeight, pack_narrow, stack_narrow

__all__ = ["NarrowWeight", "narrow_linear", "narrow_linear_torch", "pack_narrow", "stack_narrow"]
