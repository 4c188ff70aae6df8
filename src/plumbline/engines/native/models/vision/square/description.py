"""Describe a tower that reads images of one square size, its projector and the tokens of an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plumbline.engines.native.models.vision.interface import Encode, Vision
from plumbline.engines.native.models.vision.layers import Activation
from plumbline.engines.native.models.vision.layout import ImageLayout

__all__ = ["LlavaProjector", "PoolingProjector", "SquareVision", "Tower"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A transformer over the patches of a square image, without a mask; positions are learned."""

    kind: Literal["clip", "siglip"]
    """CLIP has a class token before the patches and a norm before the layers, SigLIP a bias of patches."""
    hidden_size: int
    width: int
    """Of feed-forward blocks."""
    layers: int
    heads: int
    image_size: int
    """Pixels of a side."""
    patch_size: int
    activation: Activation
    eps: float

    @property
    def side(self) -> int:
        """Patches of a side."""
        return self.image_size // self.patch_size

    @property
    def positions(self) -> int:
        """Rows of a layer: the patches, and the class token if there is one."""
        return self.side**2 + (self.kind == "clip")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaProjector:
    """Two linear layers over the results of one or several layers of the tower, side by side."""

    layers: tuple[int, ...]
    """0 stands for the embedded patches, n for the result of the n-th layer."""
    drops_first: bool
    """Whether the first row, CLIP's class token, is left out."""
    activation: Activation
    bias: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingProjector:
    """Gemma's: squares of the tower's last rows are averaged, normalised and projected once."""

    side: int
    """Patches of a side of a square."""
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareVision(Vision):
    """How a model reads images of one square size."""

    tower: Tower
    projector: LlavaProjector | PoolingProjector
    starts: tuple[int, ...] = ()
    """Tokens before an image."""
    ends: tuple[int, ...] = ()
    """Tokens after it."""
    around: str = ""
    """The text around all these, such as empty lines."""

    def layout(self, height: int, width: int, encode: Encode) -> ImageLayout:
        """See `Vision.layout`; all images have one size."""
        around = encode(self.around) if self.around else ()
        before, after = (*around, *self.starts), (*self.ends, *around)
        return ImageLayout.within(before, self.token, self.num_tokens, after)

    @property
    def last_layer(self) -> int:
        """How many layers of the tower run."""
        return (
            self.tower.layers if isinstance(self.projector, PoolingProjector) else max(self.projector.layers)
        )

    @property
    def unused(self) -> tuple[str, ...]:
        """See `Vision.unused`; layers that the projector does not need are among them."""
        later = (
            f"vision_tower.encoder.layers.{index}." for index in range(self.last_layer, self.tower.layers)
        )
        names = ["embeddings.position_ids", "head."]
        if isinstance(self.projector, LlavaProjector):
            names.append("post_layernorm.")
        return (*(f"vision_tower.{name}" for name in names), *later)

    @property
    def num_tokens(self) -> int:
        """Positions of an image in the text."""
        if isinstance(self.projector, PoolingProjector):
            return int((self.tower.side // self.projector.side) ** 2)
        return self.tower.positions - self.projector.drops_first
