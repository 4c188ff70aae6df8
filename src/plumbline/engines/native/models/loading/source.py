"""Fetch the norms and the linear layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from plumbline.engines.native.models.description import ModelDescription, UnsupportedModelError
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.loading.projections import (
    build_linear,
    in_order,
    merge,
    merge_stored,
    scaled,
)
from plumbline.engines.native.models.loading.rounding import Rounding
from plumbline.engines.native.models.names import Names
from plumbline.engines.native.models.stored import Grid, StoredWeight, dense
from plumbline.engines.native.models.weights import LinearPlace, NormWeights
from plumbline_kernels.cpu.library import Library

__all__ = ["Fetch", "FetchStack", "StreamedLinear", "StreamedStacks", "WeightSource"]

Fetch = Callable[[str, tuple[int, ...], torch.dtype | None], Tensor | StoredWeight]
"""Return a tensor by its name and shape, in a type; None for the model's. Quantised ones come as they are stored."""

FetchStack = Callable[[str, tuple[int, int, int], bool], Iterator[tuple[Tensor, Grid | None]]]
"""Return the matrices [out, in] of a tensor of all experts, which is not in memory at once, and their grids.

It takes the name, the shape [E, out, in], and whether it is stored as [E, in, out].
"""


class StreamedLinear(Linear):
    """A linear layer whose weight is read for each call."""

    __slots__ = ("_read",)

    def __init__(self, shape: tuple[int, int], read: Callable[[], Callable[[Tensor, bool], Tensor]]) -> None:
        """Take the shape [out, in] of the weight, and what returns the layer."""
        super().__init__(torch.empty(0, 0, dtype=torch.float16))
        self.shape, self._read = shape, read

    def __call__(self, x: Tensor, exact: bool = False) -> Tensor:
        """Map [T, in] to [T, out]."""
        return self._read()(x, exact)


class StreamedStacks:
    """Read the projections of all experts of a layer when the first of them is called."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Linear]] = {}

    def stack(
        self, name: str, number: int, shape: tuple[int, int], read: Callable[[], Iterable[Linear]]
    ) -> list[Linear]:
        """Return one projection of each expert, of which those of one layer are in memory at a time.

        Args:
            name: of the stack.
            number: of experts.
            shape: [out, in] of each.
            read: returns them.
        """

        def layer(expert: int) -> Linear:
            if name not in self._kept:
                if len(self._kept) == _STACKS_OF_A_LAYER:
                    self._kept.clear()
                self._kept[name] = [*read()]
            return self._kept[name][expert]

        return [StreamedLinear(shape, partial(layer, expert)) for expert in range(number)]


_STACKS_OF_A_LAYER = 2
"""To the gates and what they multiply, and back."""


@dataclass(frozen=True, slots=True)
class WeightSource:
    """Fetches norms and linear layers of a model, and lists the linear layers."""

    description: ModelDescription
    fetch_weight: Fetch
    library: Library | None
    """Compiled kernels for which weights are packed."""
    bits: int | None
    """See `load_model`."""
    stacked: bool
    """Whether experts are one tensor, as the kernels of a GPU take them."""
    device: torch.device
    dtype: torch.dtype
    fetch_stack: FetchStack | None = None
    """None where stacks are plain tensors."""
    streamed: bool = False
    """Whether linear layers are read when they are called."""
    in_order: bool = False
    """Whether weights are read in the order in which a token passes them, in which random ones are drawn."""
    places: list[LinearPlace] = field(default_factory=list)
    stacks: StreamedStacks = field(default_factory=StreamedStacks)

    @property
    def names(self) -> Names:
        """The names of tensors."""
        return self.description.names

    def fetch(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor:
        """Fetch a tensor that is not quantised; see `Fetch`."""
        return dense(self.fetch_weight(name, shape, dtype), dtype or self.dtype, self.device)

    def matrices(self, name: str, shape: tuple[int, int, int]) -> Iterator[tuple[Tensor, Grid | None]]:
        """Fetch the matrices of a tensor of all experts [E, out, in]."""
        turned = self.names.experts_transposed
        if self.fetch_stack is not None:
            yield from self.fetch_stack(name, shape, turned)
            return
        number, outputs, inputs = shape
        for weight in self.fetch(name, (number, inputs, outputs) if turned else shape, None):
            yield weight.t() if turned else weight, None

    def merged(self, parts: list[Tensor | StoredWeight]) -> tuple[Tensor, Grid | None]:
        """Stack weights along the output, and their grids; see `projection`."""
        return merge_stored(parts, self.dtype, self.device, self.bits, levels=self.library is not None)

    def norm(self, name: str) -> NormWeights:
        """Fetch the weights of a norm of rows."""
        norm, shape = self.description.norm, (self.description.hidden_size,)
        if not norm.weights:
            return NormWeights(torch.ones(shape, device=self.device))
        bias = self.fetch(f"{name}.bias", shape, torch.float32) if norm.bias else None
        return NormWeights(self.fetch(f"{name}.weight", shape, torch.float32) + norm.offset, bias)

    def linear(
        self,
        prefix: str,
        names: tuple[str, ...],
        outputs: Iterable[int],
        inputs: int,
        bias: bool,
        rows: Tensor | None = None,
        factors: Tensor | None = None,
        rounding: Rounding | None = None,
    ) -> Linear:
        """Build one linear layer from the named projections.

        Args:
            prefix: what the names begin with.
            names: of the projections; one name has all of them.
            outputs: the width of each.
            inputs: the width of their input.
            bias: whether they have a bias.
            rows: int64 [out], the order of its rows; None as they are in the checkpoint.
            factors: fp32 [out], on the rows in the order of the checkpoint.
            rounding: None for that of the model.

        Raises:
            UnsupportedModelError: there are factors, and the weights are quantised.
        """
        outputs = tuple(outputs)

        def read() -> Linear:
            parts = self.projection(prefix, names, outputs, inputs, bias)
            if factors is not None:
                parts = scaled(*parts, factors.to(self.device))
            if rows is not None:
                parts = in_order(*parts, rows)
            return build_linear(*parts, self.library, rounding or Rounding(self.bits))

        layer = StreamedLinear((sum(outputs), inputs), read) if self.streamed else read()
        widths = outputs if len(names) > 1 else (sum(outputs),)
        named = tuple(prefix + name for name in names)
        self.places.append(LinearPlace(layer, named, widths, inputs, rows, factors))
        return layer

    def projection(
        self, prefix: str, names: tuple[str, ...], outputs: Iterable[int], inputs: int, bias: bool
    ) -> tuple[Tensor, Tensor | None, Grid | None]:
        """Fetch weight, bias and grid of the named projections, stacked along the output; one name has all of them.

        For compiled kernels that keep the grid, the weight is its levels, int8.
        """
        widths = tuple(outputs) if len(names) > 1 else (sum(outputs),)
        parts = [(prefix + name, width) for name, width in zip(names, widths, strict=True)]
        found = [self._matrix(f"{name}.weight", (width, inputs)) for name, width in parts]
        weight, grid = self.merged(found)
        if not bias:
            return weight, None, grid
        return weight, merge([self.fetch(f"{name}.bias", (width,), None) for name, width in parts]), grid

    def _matrix(self, name: str, shape: tuple[int, int]) -> Tensor | StoredWeight:
        """Fetch a weight [out, in].

        Raises:
            UnsupportedModelError: it is stored as [in, out] and quantised.
        """
        if not self.names.transposed:
            return self.fetch_weight(name, shape, None)
        weight = self.fetch_weight(name, (shape[1], shape[0]), None)
        if not isinstance(weight, Tensor):
            raise UnsupportedModelError(
                f"{name} is quantised and stored as [in, out], which is not supported"
            )
        return weight.t()
