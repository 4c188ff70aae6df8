"""Compute attention over the paged cache.

paged     the operation, and its reference implementation in torch
_capped   capped scores and sinks in torch
_kernels  the Triton kernels
_triton   the launches of the Triton kernels
"""

from plumbline_kernels._attention_batch import AttentionBatch, RowSelection
from plumbline_kernels.attention.paged import paged_attention, paged_attention_torch

__all__ = ["AttentionBatch", "RowSelection", "paged_attention", "paged_attention_torch"]
