"""Describe the towers of Qwen-VL, which read images of any size, and the tokens of an image."""

from __future__ import annotations

from dataclasses import dataclass

from plumbline.engines.native.models.vision.interface import Encode, Vision
from plumbline.engines.native.models.vision.layers import Activation
from plumbline.engines.native.models.vision.layout import ImageLayout

__all__ = ["QwenVision", "Tower", "TowerNames", "Windows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerNames:
    """The names of tensors that differ between versions, without `.weight` and `.bias`."""

    up: tuple[str, ...]
    """The first layer of a feed-forward block; two names are its gate and itself."""
    down: str
    norm: str
    """Of the merger."""
    first: str
    second: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Attention within squares of an image."""

    side: int
    """Merged squares of a side of a window."""
    full_layers: frozenset[int]
    """The layers in which all patches attend to each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A transformer over the patches of an image, whose heads rotate by the row and the column of a patch.

    In a layer without windows each patch attends to all, so the time grows with the square of the patches. The memory
    does not, as no scores are kept: n patches take about 9 * n * hidden_size numbers at once. Processors of releases
    allow 65,536 patches, which become 16,384 tokens. With 27 layers of 1,152 they are 3e14 multiplications: seconds on
    a GPU, and an hour on a CPU of 1e11 a second, which gives the image up before (`native/images.py`).
    """

    hidden_size: int
    width: int
    """Of feed-forward blocks."""
    layers: int
    heads: int
    patch_size: int
    merge: int
    """Patches of a side of the square that becomes a row."""
    frames: int
    """The frames of a video that a patch has; an image is as many equal ones."""
    theta: float
    activation: Activation
    rms: bool
    """Whether norms are by the root of the mean square, without a bias."""
    patch_bias: bool
    positions: int = 0
    """Rows and columns of a learned table of positions, which is stretched over an image; 0 for none."""
    windows: Windows | None = None
    further: tuple[int, ...] = ()
    """The layers whose results are merged as well, for a layer of the text each."""
    names: TowerNames

    @property
    def square(self) -> int:
        """Pixels of a side of the square that becomes a row."""
        return self.patch_size * self.merge


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVision(Vision):
    """How a model reads images in squares of patches."""

    tower: Tower

    def layout(self, height: int, width: int, encode: Encode) -> ImageLayout:
        """See `Vision.layout`."""
        side = self.tower.square
        return ImageLayout.of_grid(self.token, height // side, width // side)

    @property
    def unused(self) -> tuple[str, ...]:
        """See `Vision.unused`."""
        return ("visual.rotary_pos_emb.",)
