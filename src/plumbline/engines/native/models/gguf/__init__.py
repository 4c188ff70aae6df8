"""Read GGUF files: their metadata as a description, their tensors as weights of our engine."""

from plumbline.engines.native.models.gguf.architectures import ARCHITECTURES
from plumbline.engines.native.models.gguf.description import GgufModel, read_model
from plumbline.engines.native.models.gguf.load import load_gguf

__all__ = ["ARCHITECTURES", "GgufModel", "load_gguf", "read_model"]
