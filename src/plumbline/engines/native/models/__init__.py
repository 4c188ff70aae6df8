"""Describe models from Hugging Face folders, load them, and run them with one transformer."""

from plumbline.engines.native.models.checkpoint import WeightsError
from plumbline.engines.native.models.description import ModelDescription, Rope, UnsupportedModelError
from plumbline.engines.native.models.families import describe, read_description
from plumbline.engines.native.models.loading.model_folder import load_model, random_model
from plumbline.engines.native.models.transformer import Transformer

__all__ = [
    "ModelDescription",
    "Rope",
    "Transformer",
    "UnsupportedModelError",
    "WeightsError",
    "describe",
    "load_model",
    "random_model",
    "read_description",
]
