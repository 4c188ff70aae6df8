"""Read images for a vision-language model: pixels, a tower over patches, a projector to the text.

`families` has all towers; a text model does not import it.
"""

from plumbline.engines.native.models.vision.interface import (
    Preparation,
    UnwantedError,
    Vision,
    VisionEncoder,
)

__all__ = ["Preparation", "UnwantedError", "Vision", "VisionEncoder"]
