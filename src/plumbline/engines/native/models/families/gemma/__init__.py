"""Gemma 1 to 4, text, and VaultGemma."""

from plumbline.engines.native.models.families.gemma import gemma1, gemma2, gemma3, gemma4

__all__ = ["FAMILIES"]

FAMILIES = gemma1.FAMILIES | gemma2.FAMILIES | gemma3.FAMILIES | gemma4.FAMILIES
"""The families by `model_type`."""
