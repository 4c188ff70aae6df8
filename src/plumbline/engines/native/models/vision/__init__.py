"""Read images for a model of images and text: pixels, a tower over patches, a projector to the text."""

from plumbline.engines.native.models.vision.description import Vision
from plumbline.engines.native.models.vision.encoder import VisionEncoder, load_encoder
from plumbline.engines.native.models.vision.families import TOWERS, VISIONS, read_vision
from plumbline.engines.native.models.vision.pixels import Preparation, read_preparation

__all__ = [
    "TOWERS",
    "VISIONS",
    "Preparation",
    "Vision",
    "VisionEncoder",
    "load_encoder",
    "read_preparation",
    "read_vision",
]
