"""Describe a tower: a transformer over the patches of an image, without a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plumbline.engines.native.models.vision.layers import Activation

__all__ = ["AxialRotation", "Tower", "TowerNames", "Windows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerNames:
    """The names of tensors, without `.weight` and `.bias`; empty where a tower has none."""

    patches: str
    layer: str
    """What the names of a layer begin with, with a place for its number; the next ones follow it."""
    before_mixer: str
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """One name if the checkpoint has them in one tensor."""
    q_norm: str = ""
    k_norm: str = ""
    out: str = "self_attn.o_proj"
    after_mixer: str = ""
    before_feed_forward: str
    up: tuple[str, ...] = ("mlp.fc1",)
    """The first layer of a feed-forward block; two names are its gate and itself."""
    down: str = "mlp.fc2"
    after_feed_forward: str = ""
    class_row: str = ""
    positions: str = ""
    first_norm: str = ""
    weight: str = "weight"
    """What follows the name of a linear layer of a layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxialRotation:
    """Heads are rotated by the line and the column of a patch."""

    theta: float
    """The base."""
    columns_first: bool = False
    start: int = 0
    """The number of the first line and column."""
    alternating: bool = False
    """Whether lines have the even frequencies of the head and columns the odd ones, and not each all of half a head."""
    apart: bool = False
    """Whether each half of a head is rotated for itself."""
    neighbours: bool = False
    """Whether the checkpoint rotates neighbouring numbers together, and not those of two halves."""
    exact: bool = False
    """Whether it is computed in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Attention within squares of an image."""

    side: int
    """Merged squares of a side of a window."""
    full_layers: frozenset[int]
    """The layers in which all patches attend to each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A transformer over patches.

    In a layer without windows each patch attends to all, so the time grows with the square of the patches. The memory
    does not, as no scores are kept: n patches take about 9 * n * hidden_size numbers at once, and n * hidden_size for
    each further layer that the projector reads. Processors of releases allow 65,536 patches, which become 16,384
    tokens. With 27 layers of 1,152 they are 3e14 multiplications: seconds on a GPU, and an hour on a CPU of 1e11 a
    second, which gives the image up before (`native/images.py`).
    """

    hidden_size: int
    width: int
    """Of feed-forward blocks."""
    layers: int
    heads: int
    head_dim: int
    activation: Activation
    rms: bool
    """Whether norms are by the root of the mean square, without a bias."""
    eps: float
    bias: bool
    """Whether linear layers have one."""
    scores_scale: float | None = None
    """On products of queries and keys; None for one over the root of `head_dim`."""
    value_norm: bool = False
    """Whether values are normalised, without a weight."""
    packed: bool = True
    """Whether queries, keys and values are one product, and a gate and its layer."""
    clipped: bool = False
    """Whether inputs and outputs of linear layers are clipped to bounds of the checkpoint."""
    rotation: AxialRotation | None = None
    windows: Windows | None = None

    patch_size: int
    """Pixels of a side of a patch."""
    patch_kernel: Literal["conv", "linear", "linear, colours last"] = "conv"
    """The tensor that embeds patches; in the last kind the colours of a pixel are neighbours."""
    patch_bias: bool = False
    frames: int | None = None
    """The frames of a video that the convolution has; an image is as many equal ones."""
    from_zero: bool = False
    """Whether pixels are from 0 to 1, and are moved to -1 to 1."""
    merge: int = 1
    """Patches of a side of a square whose patches are neighbours, because the projector merges them."""
    image_size: int = 0
    """Pixels of a side of an image, if they all have one."""
    class_row: Literal["first", "last"] | None = None
    positions: Literal["each", "axes", "stretched"] | None = None
    """Learned ones: of each row, of lines and of columns, or of a square that is stretched over an image."""
    num_positions: int = 0
    """Rows of the table; of a stretched one a side of the square."""
    names: TowerNames

    @property
    def side(self) -> int:
        """Patches of a side of an image."""
        return self.image_size // self.patch_size

    @property
    def square(self) -> int:
        """Pixels of a side of a merged square."""
        return self.patch_size * self.merge
