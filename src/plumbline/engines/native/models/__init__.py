"""Load models from Hugging Face folders and run them with one transformer."""

from plumbline.engines.native.models.config import ModelConfig, RopeConfig, UnsupportedModelError, load_config
from plumbline.engines.native.models.loader import WeightsError, load_model, random_model
from plumbline.engines.native.models.transformer import Transformer

__all__ = [
    "ModelConfig",
    "RopeConfig",
    "Transformer",
    "UnsupportedModelError",
    "WeightsError",
    "load_config",
    "load_model",
    "random_model",
]
