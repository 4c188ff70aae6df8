"""Families in which some layers keep a state of one size instead of the keys and values of all tokens."""

from plumbline.engines.native.models.families.hybrid import (
    bamba,
    falcon,
    granite,
    jamba,
    lfm,
    nemotron,
    olmo,
    qwen,
)

__all__ = ["FAMILIES"]

FAMILIES = {
    name: family
    for module in (qwen, granite, bamba, nemotron, lfm, olmo, falcon, jamba)
    for name, family in module.FAMILIES.items()
}
"""The families by `model_type`."""
