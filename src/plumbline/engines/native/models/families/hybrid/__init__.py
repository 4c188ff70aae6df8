"""Families in which some layers keep a state of one size instead of the keys and values of all tokens."""

from plumbline.engines.native.models.families.hybrid import qwen

__all__ = ["FAMILIES"]

FAMILIES = qwen.FAMILIES
"""The families by `model_type`."""
