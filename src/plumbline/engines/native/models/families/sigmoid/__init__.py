"""Families whose experts are chosen by sigmoids, with attention of their own."""

from plumbline.engines.native.models.families.sigmoid import arcee, flint, hunyuan

__all__ = ["FAMILIES"]

FAMILIES = arcee.FAMILIES | hunyuan.FAMILIES | flint.FAMILIES
"""The families by `model_type`."""
