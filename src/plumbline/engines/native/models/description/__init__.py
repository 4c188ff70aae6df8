"""Describe a model: the shapes and the arithmetic of every layer, as frozen values.

A family (`families/`) writes a description from a `config.json`, the loader fetches the weights that it asks for, and
one loop (`transformer.py`) runs it. Equal parts of a description are equal values, so layers may share what is derived
from them, such as rotary tables.
"""

from plumbline.engines.native.models.description.feed_forward import (
    Activation,
    Dense,
    Experts,
    FeedForward,
    Router,
)
from plumbline.engines.native.models.description.mixers import (
    Attention,
    DeltaNet,
    HeadNorm,
    Latent,
    Mixer,
    Rope,
    Selective,
    ShortConv,
)
from plumbline.engines.native.models.description.model import (
    LayerDescription,
    ModelDescription,
    Norm,
    Placement,
    Positions,
)
from plumbline.engines.native.models.description.unsupported import UnsupportedModelError

__all__ = [
    "Activation",
    "Attention",
    "DeltaNet",
    "Dense",
    "Experts",
    "FeedForward",
    "HeadNorm",
    "Latent",
    "LayerDescription",
    "Mixer",
    "ModelDescription",
    "Norm",
    "Placement",
    "Positions",
    "Rope",
    "Router",
    "Selective",
    "ShortConv",
    "UnsupportedModelError",
]
