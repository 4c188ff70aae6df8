"""Families of the years before Llama: layer norms, biases, blocks without a gate, positions with embeddings."""

from plumbline.engines.native.models.families.classic import falcon, gpt2, gptj, neo, neox, opt

__all__ = ["FAMILIES"]

FAMILIES = {
    name: family
    for module in (gpt2, neo, neox, gptj, falcon, opt)
    for name, family in module.FAMILIES.items()
}
"""The families by `model_type`."""
