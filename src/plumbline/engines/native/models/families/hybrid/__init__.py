"""Families in which some layers keep a state of one size instead of the keys and values of all tokens."""

from plumbline.engines.native.models.families.hybrid import bamba, granite, nemotron, qwen

__all__ = ["FAMILIES"]

FAMILIES = qwen.FAMILIES | granite.FAMILIES | bamba.FAMILIES | nemotron.FAMILIES
"""The families by `model_type`."""
