"""Read images for a vision-language model: pixels, a tower over patches, a projector to the text."""

from plumbline.engines.native.models.vision.families import (
    VISIONS,
    load_encoder,
    read_preparation,
    read_vision,
)
from plumbline.engines.native.models.vision.interface import (
    Preparation,
    UnwantedError,
    Vision,
    VisionEncoder,
)

__all__ = [
    "VISIONS",
    "Preparation",
    "UnwantedError",
    "Vision",
    "VisionEncoder",
    "load_encoder",
    "read_preparation",
    "read_vision",
]
