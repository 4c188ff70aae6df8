"""Families with experts in some or all layers."""

from plumbline.engines.native.models.families.experts import (
    cohere,
    ernie,
    exaone,
    glm,
    gpt_oss,
    granite,
    hunyuan,
    llama4,
    minimax,
    mixtral,
    olmoe,
    qwen,
)

__all__ = ["FAMILIES"]

FAMILIES = {
    name: family
    for module in (
        mixtral,
        qwen,
        olmoe,
        granite,
        ernie,
        glm,
        gpt_oss,
        minimax,
        hunyuan,
        exaone,
        llama4,
        cohere,
    )
    for name, family in module.FAMILIES.items()
}
"""The families by `model_type`."""
