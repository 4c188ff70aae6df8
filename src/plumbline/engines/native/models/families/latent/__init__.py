"""Families with latent attention: DeepSeek V2 and V3, and what has their attention."""

from plumbline.engines.native.models.families.latent import axk1, deepseek, glm, indexed, minicpm, youtu

__all__ = ["FAMILIES"]

FAMILIES = {
    name: family
    for module in (deepseek, glm, youtu, axk1, minicpm, indexed)
    for name, family in module.FAMILIES.items()
}
"""The families by `model_type`."""
