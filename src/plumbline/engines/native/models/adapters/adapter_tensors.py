"""Read the tensors of a LoRA adapter, and lay them out for the linear layers of a model.

A layer that stacks several projections (q, k and v; gate and up) gets one pair for all of them: the matrices down are
stacked, and those up stand on the diagonal of a block matrix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from plumbline.engines.adapters import WEIGHTS, read_config
from plumbline.engines.native.models.adapters.adapter_config import AdapterConfig, AdapterError
from plumbline.engines.native.models.names import Names
from plumbline.engines.native.models.weights import LinearPlace
from plumbline_kernels.lora import padded_rank

__all__ = ["AdapterPart", "read_adapter"]

_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_TEXT = (("language_model.model.", "model."), ("model.language_model.", "model."))
"""Prefixes of the language model's tensors in vision-language models, and what they are in the model alone."""
_SHOWN = 200
"""Characters of a tensor's name in an error."""


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """What an adapter adds at one linear layer."""

    place: LinearPlace
    down: Tensor
    """[rank, in], the rank padded with zeros (`padded_rank`)."""
    up: Tensor
    """[out, rank], with the scale, its rows in the order of the layer's."""


def read_adapter(
    folder: Path,
    places: list[LinearPlace],
    names: Names,
    *,
    max_rank: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[AdapterPart]:
    """Read the adapter of a PEFT folder.

    Args:
        folder: with `adapter_config.json` and `adapter_model.safetensors`.
        places: the linear layers of the model.
        names: of its tensors.
        max_rank: the largest rank of a module.
        dtype: of the results.
        device: of the results.

    Raises:
        AdapterError: the adapter cannot be used, or does not fit the model.
        RefusedRequestError: its configuration cannot be read.
    """
    config = AdapterConfig(read_config(folder))
    path = folder / WEIGHTS
    if not path.is_file():
        raise AdapterError(f"the adapter has no {WEIGHTS}; convert its weights to safetensors")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            reader = _Reader(config, file, places, names, max_rank)
            return [reader.part(index, dtype, device) for index in reader.places]
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{WEIGHTS} is truncated, or not a safetensors file: {error}") from error


class _Reader:
    """The tensors of one file, by module."""

    def __init__(
        self, config: AdapterConfig, file: Any, places: list[LinearPlace], names: Names, max_rank: int
    ) -> None:
        self._config, self._file, self._places, self._max_rank = config, file, places, max_rank
        known = {name: index for index, place in enumerate(places) for name in place.names}
        self._stored: dict[str, dict[str, str]] = {}
        """By module: the name of its tensor A and of its tensor B."""
        self._names: dict[str, str] = {}
        """By module: the name that it has in the adapter, for which the patterns of the configuration are."""
        for key in file.keys():  # noqa: SIM118 - not a mapping
            module, matrix, name = _module(key, known, names)
            self._stored.setdefault(module, {})[matrix] = key
            self._names[module] = name
        self.places = sorted({known[module] for module in self._stored})
        if not self.places:
            raise AdapterError(f"{WEIGHTS} has no tensors")
        for name in self._names.values():
            config.check_target(name)

    def part(self, index: int, dtype: torch.dtype, device: torch.device) -> AdapterPart:
        """Combine the pairs of a layer's projections."""
        place = self._places[index]
        pairs = [
            None if name not in self._stored else self._pair(name, place.inputs, width)
            for name, width in zip(place.names, place.widths, strict=True)
        ]
        rank = padded_rank(sum(len(pair[0]) for pair in pairs if pair is not None))
        down = torch.zeros(rank, place.inputs)
        up = torch.zeros(sum(place.widths), rank)
        at = row = 0
        for pair, width in zip(pairs, place.widths, strict=True):
            if pair is not None:
                below = at + len(pair[0])
                down[at:below] = pair[0]
                up[row : row + width, at:below] = pair[1]
                at = below
            row += width
        if place.factors is not None:
            up *= place.factors.to(up.device).unsqueeze(1)
        if place.rows is not None:
            up = up[place.rows.to(up.device)]
        down, up = down.to(device, dtype), up.to(device, dtype)
        if not (down.isfinite().all() and up.isfinite().all()):
            raise AdapterError(
                f"the tensors of {' and '.join(place.names)} have numbers that {dtype} cannot have"
            )
        return AdapterPart(place, down, up)

    def _pair(self, module: str, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
        """Read the tensors of a module, fp32 [rank, in] and, with the scale, [out, rank]."""
        stored, name = self._stored[module], self._names[module]
        rank = self._config.rank(name)
        if rank > self._max_rank:
            raise AdapterError(
                f"the adapter has rank {rank} at {module}; this server accepts at most {self._max_rank} "
                "(--max-lora-rank)"
            )
        found = []
        for matrix, shape in (("A", [rank, inputs]), ("B", [outputs, rank])):
            if matrix not in stored:
                raise AdapterError(f"{WEIGHTS} has no lora_{matrix} for {module}")
            # The shape is known without reading the tensor.
            size = self._file.get_slice(stored[matrix]).get_shape()
            if size != shape:
                raise AdapterError(
                    f"{stored[matrix]} has shape {size}, and {shape} fits the model and the rank"
                )
            tensor = self._file.get_tensor(stored[matrix])
            if tensor.dtype not in _FLOATS:
                raise AdapterError(f"{stored[matrix]} has type {tensor.dtype}, which is not supported")
            found.append(tensor.float())
        return found[0], found[1] * self._config.scale(name)


def _module(key: str, known: Mapping[str, int], names: Names) -> tuple[str, str, str]:
    """Return the module of a tensor, whether it is A or B, and the module's name in the adapter.

    Raises:
        AdapterError: the tensor is none of a linear layer of the model; the text states what it is.
    """
    match = _TENSOR.fullmatch(key)
    for name in _spellings(match[1] if match else ""):
        if match and name in known:
            return name, match[2], match[1]
    raise AdapterError(f"the tensor {key[:_SHOWN]} is not supported: {_reason(key, names)}")


def _spellings(name: str) -> Iterator[str]:
    yield name
    for prefix, plain in _TEXT:
        if name.startswith(prefix):
            yield plain + name.removeprefix(prefix)


def _reason(key: str, names: Names) -> str:
    last = {part.rpartition(".")[2]: part for part in (names.head, names.embedding)}
    parts = key.split(".")
    if "lora_magnitude_vector" in key:
        return "DoRA (use_dora) is"
    if last.keys() & set(parts) or "lora_embedding_A" in key or "lora_embedding_B" in key:
        return "adapters of the embedding and of the output layer are; train without them in target_modules"
    if "experts" in parts:
        return "adapters of experts are"
    if _TENSOR.fullmatch(key):
        return "the model has no linear layer of this name that adapters can change"
    return "it is no lora_A or lora_B of a linear layer"
