"""Families with one feed-forward block in each layer."""

from plumbline.engines.native.models.families.dense import (
    cohere,
    exaone,
    glm,
    granite,
    hunyuan,
    llama,
    ministral,
    mistral,
    olmo,
    phi,
    qwen,
    smollm,
    ungated,
)

__all__ = ["FAMILIES"]

FAMILIES = {
    name: family
    for module in (
        llama, smollm, mistral, ministral, qwen, phi, granite, olmo, glm, cohere, exaone, hunyuan, ungated
    )
    for name, family in module.FAMILIES.items()
}  # fmt: skip
"""The families by `model_type`."""
