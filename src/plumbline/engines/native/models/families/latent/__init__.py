"""Families with latent attention: DeepSeek V2 and V3, and what has their attention."""

from plumbline.engines.native.models.families.latent import deepseek, glm, youtu

__all__ = ["FAMILIES"]

FAMILIES = deepseek.FAMILIES | glm.FAMILIES | youtu.FAMILIES
"""The families by `model_type`."""
