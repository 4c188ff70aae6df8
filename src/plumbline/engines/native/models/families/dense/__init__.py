"""Families with one feed-forward block in each layer."""

from plumbline.engines.native.models.families.dense import (
    cohere,
    exaone,
    gemma,
    gemma4,
    glm,
    granite,
    hunyuan,
    llama,
    mistral,
    olmo,
    phi,
    qwen,
    ungated,
)

__all__ = ["FAMILIES"]

FAMILIES = {
    name: family
    for module in (
        llama, mistral, qwen, gemma, gemma4, phi, granite, olmo, glm, cohere, exaone, hunyuan, ungated
    )
    for name, family in module.FAMILIES.items()
}  # fmt: skip
"""The families by `model_type`."""
