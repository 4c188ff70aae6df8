"""Run latent attention: a cache of latents, from which all heads take their keys and values.

net      the operations, and torch's version of them
_triton  the Triton kernels of those that a library has not
"""

from plumbline_kernels.latent.net import (
    latent_attention,
    latent_queries_torch,
    latent_values_torch,
    latent_write,
    latent_write_torch,
)

__all__ = [
    "latent_attention",
    "latent_queries_torch",
    "latent_values_torch",
    "latent_write",
    "latent_write_torch",
]
