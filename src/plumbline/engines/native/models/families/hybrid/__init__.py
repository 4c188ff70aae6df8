"""Families in which some layers keep a state of one size instead of the keys and values of all tokens."""

from plumbline.engines.native.models.families.hybrid import granite, qwen

__all__ = ["FAMILIES"]

FAMILIES = qwen.FAMILIES | granite.FAMILIES
"""The families by `model_type`."""
