"""Define how a vision-language model reads an image: its description, its pixels and its rows.

Each family has a file, which describes the tower by the config and prepares pixels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from plumbline.engines.native.models.vision.description import Tower
from plumbline.engines.native.models.vision.layout import ImageLayout
from plumbline.engines.native.models.vision.projectors import Projector

__all__ = ["Encode", "Preparation", "UnwantedError", "Vision", "VisionEncoder"]

Encode = Callable[[str], tuple[int, ...]]
"""Return the tokens of a text; special tokens that it spells are themselves."""


class UnwantedError(Exception):
    """Nothing needs the image that is being encoded any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision(ABC):
    """How a vision-language model reads an image."""

    tower: Tower
    projector: Projector
    placeholder: int | str
    """The token that a prompt has in the place of an image, or its text if the config does not name it by its id."""
    token: int
    """The token of an image's positions."""
    hidden_size: int
    """The width of the text."""
    text_layers: int = 0
    """How many layers of the text, from the first on, add a further part of an image's rows to their results."""
    whole: bool = False
    """Whether the positions of an image attend to each other, so that one step must compute them all."""

    @property
    def tokens(self) -> frozenset[int]:
        """The tokens of images that the config names, which prompts must not have."""
        return frozenset(token for token in (self.placeholder, self.token) if isinstance(token, int))

    @property
    def unused(self) -> tuple[str, ...]:
        """What the names of tensors begin with that are not needed."""
        return self.later_layers

    @property
    def later_layers(self) -> tuple[str, ...]:
        """What the names of layers begin with that the projector does not need."""
        last = max(self.projector.layers_read(self.tower))
        return tuple(self.tower.names.layer.format(index) for index in range(last, self.tower.layers))

    def tiles(self, pixels: Tensor) -> Iterable[Tensor]:
        """Cut the pixels of an image into those that the tower reads one after the other."""
        return (pixels,)

    @abstractmethod
    def layout(self, height: int, width: int, encode: Encode) -> ImageLayout:
        """Return the tokens of an image.

        Args:
            height: of what `Preparation.pixels` returns.
            width: likewise.
            encode: returns the tokens of a text that is not named by its id in the config, such as an end of a line.
        """


class Preparation(Protocol):
    """Turns an image file into the pixels that a tower reads, as the processor of the model's folder says."""

    def size(self, data: bytes) -> tuple[int, int]:
        """Return the height and the width of what `pixels` returns.

        Raises:
            ImageError: the file cannot be decoded.
        """
        ...

    def pixels(self, data: bytes) -> Tensor:
        """Return a file as fp32 [3, height, width], normalised.

        Raises:
            ImageError: the file cannot be decoded.
        """
        ...


class VisionEncoder(Protocol):
    """The tower and the projector of a model. Stateless, so any thread may call it."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        ...

    def encode(self, pixels: Tensor, is_wanted: Callable[[], bool] = lambda: True) -> Tensor:
        """Return an image as rows of the text.

        Args:
            pixels: fp32 [3, height, width], normalised.
            is_wanted: asked before each layer and within large ones; a large tower takes a minute on a CPU.

        Returns:
            [rows, (1 + text_layers) * hidden_size], in the type of the text: as many as the layout of the image has.

        Raises:
            UnwantedError: the image is no longer wanted.
        """
        ...
