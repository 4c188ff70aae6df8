"""Read the tensors of a GGUF file by the names that the loader has for them, mapped into memory."""

from __future__ import annotations

import math
import mmap
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plumbline.base.gguf_file import Tensor as Entry
from plumbline.base.workers.memory import forget
from plumbline.engines.native.models.checkpoint import WeightsError, some
from plumbline.engines.native.models.description import UnsupportedModelError
from plumbline.engines.native.models.gguf.blocks import BLOCKS
from plumbline.engines.native.models.gguf.description import ROPE_NUMBERS, GgufModel
from plumbline.engines.native.models.stored import StoredWeight, dense
from plumbline_kernels.cpu.library import Library

__all__ = ["GgufTensors"]

_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_MERGED = {"self_attn.qkv_proj": "attn_qkv", "mlp.experts.gate_up_proj": "ffn_gate_up_exps"}
"""Merged projections of a layer, as files name them."""
_OF_LAYER = re.compile(r"[a-z.]+\.(\d+)\.(.+)")
"""The number of a layer, and the part of it, in the names of a family's checkpoint."""
_MOST_MISSING = 1000
_MOST_NUMBERS_A_BYTE = 8
_PLAIN = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
"""The types of numbers that are stored as they are, by their number."""


class GgufTensors:
    """The tensors of a GGUF file; every one must be used, and every weight found."""

    def __init__(
        self, model: GgufModel, dtype: torch.dtype, device: torch.device, library: Library | None = None
    ) -> None:
        """Map the file, or the pieces of one that is cut; a library of compiled kernels unpacks the types that it has.

        Raises:
            UnsupportedModelError: the gguf package, which knows the names of tensors, is missing or does not know the
                architecture.
        """
        self._file, self._entries = model.file, model.tensors
        self._dtype, self._device, self._library = dtype, device, library
        self._names = _names(model)
        self._data = {file: _mapped(file) for file in {each.file for each in model.tensors.values()}}
        self._missing: list[str] = []
        self._unused = {name for name in model.tensors if name not in ROPE_NUMBERS}
        self._numbers = model.numbers

    def fetch_weight(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> Tensor | StoredWeight:
        """Read a tensor in a type, or as it is stored if it is quantised.

        A missing one is recorded and replaced by zeros until `finish` refuses the file.
        """
        dtype = dtype or self._dtype
        if (number := self._numbers.get(name)) is not None:
            return torch.full(shape, number, dtype=dtype, device=self._device)
        base, _, end = name.rpartition(".")
        # Files have one tensor for all experts of a layer, [E, out, in].
        expert = _EXPERT.search(base)
        if expert is not None:
            base = base[: expert.start(1) - 1] + base[expert.end(1) :]
        stored, apart = self._stored(base, end, expert and expert[1])
        entry = self._entries.get(stored)
        if apart:
            expert = None
        if entry is None and end == "weight" and base.endswith("kv_b_proj"):
            return self._keys_and_values(base, shape, dtype)
        if entry is None:
            return self._without(f"{stored} ({name})", shape, dtype)
        self._unused.discard(stored)
        if expert is not None:
            entry = self._part(stored, entry, int(expert[1]))
        if stored.endswith(".ssm_norm.weight"):  # Files have the groups of a state space apart.
            entry = replace(entry, shape=(math.prod(entry.shape),))
        if [size for size in entry.shape if size != 1] != [size for size in shape if size != 1]:
            raise WeightsError(f"{stored} has shape {list(entry.shape)}, the metadata ask for {list(shape)}")
        found = self._read(stored, entry, dtype)
        if not isinstance(found, Tensor):
            return found
        # Files have the decays of delta nets and state spaces as -exp(A_log).
        return (-found).log().view(shape) if stored.endswith(".ssm_a") else found.view(shape)

    def _stored(self, base: str, end: str, expert: str | None) -> tuple[str, bool]:
        """Return the name that files have for a tensor, and whether it is that of an expert alone."""
        stored = self._names.get_name(f"{base}.{end}") or f"{self._stored_name(base)}.{end}"
        bare = stored.removesuffix(".weight")
        if stored not in self._entries and bare in self._entries:  # Norms of Falcon-H1.
            return bare, False
        # The first files of Mixtral have experts apart.
        apart = stored.replace("_exps.", f".{expert}.")
        if expert is not None and stored not in self._entries and apart in self._entries:
            return apart, True
        return stored, False

    def _stored_name(self, base: str) -> str | None:
        """Return the name that files have for a tensor, without its end."""
        found: str | None = self._names.get_name(base)
        of_layer = _OF_LAYER.match(base)
        if found is not None or of_layer is None:
            return found
        # The package knows some parts by the prefix of most families alone, and merged projections of few.
        number, part = of_layer.groups()
        found = self._names.get_name(f"model.layers.{number}.{part}")
        return found or (f"blk.{number}.{_MERGED[part]}" if part in _MERGED else None)

    def _keys_and_values(self, base: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Join the projections of latent attention to keys, [H, rank, key], and to values, [H, value, rank]."""
        found = []
        for part in ("k_b_proj", "v_b_proj"):
            stored = f"{self._names.get_name(base.replace('kv_b_proj', part))}.weight"
            entry = self._entries.get(stored)
            if entry is None or len(entry.shape) != 3:
                return self._without(stored, shape, dtype)
            self._unused.discard(stored)
            heads, rows, columns = entry.shape
            whole = self._read(stored, replace(entry, shape=(heads * rows, columns)), dtype)
            found.append(dense(whole, dtype, self._device).view(heads, rows, columns))
        keys, values = found
        rows, columns = len(keys) * (keys.shape[2] + values.shape[1]), keys.shape[1]
        if (len(keys), columns) != (len(values), values.shape[2]) or (rows, columns) != shape:
            raise WeightsError(
                f"{base} has shapes {list(keys.shape)} and {list(values.shape)}, the metadata ask for {list(shape)}"
            )
        return torch.cat((keys.transpose(1, 2), values), 1).flatten(0, 1)

    def _without(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Record a missing tensor, and return zeros.

        Raises:
            WeightsError: there are many, or the tensor would be larger than all of the file, so metadata are wrong.
        """
        self._missing.append(name)
        most = _MOST_NUMBERS_A_BYTE * sum(len(data) for data in self._data.values())
        if len(self._missing) > _MOST_MISSING or math.prod(shape) > most:
            self._unused.clear()
            self.finish()
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def finish(self) -> None:
        """Refuse the file if a tensor was missing or not used.

        Raises:
            WeightsError: see above; the message names them.
        """
        problems = []
        if self._missing:
            problems.append(f"missing: {some(self._missing)}")
        if self._unused:
            problems.append(f"not used: {some(sorted(self._unused))}")
        if problems:
            raise WeightsError(
                f"the tensors of {self._file.name} do not fit its metadata; " + "; ".join(problems)
            )

    def _part(self, name: str, entry: Entry, index: int) -> Entry:
        """Return the matrix, or the biases, of an expert."""
        if len(entry.shape) not in (2, 3) or index >= entry.shape[0]:
            raise WeightsError(f"{name} has shape {list(entry.shape)}, without a part for expert {index}")
        if len(entry.shape) == 2:
            size = _size(name, entry.kind, 1, entry.shape[1])
            return Entry(entry.shape[1:], entry.kind, entry.offset + index * size, entry.file)
        _, rows, columns = entry.shape
        size = _size(name, entry.kind, rows, columns)
        return Entry((rows, columns), entry.kind, entry.offset + index * size, entry.file)

    def _read(self, name: str, entry: Entry, dtype: torch.dtype) -> Tensor | StoredWeight:
        if entry.kind in _PLAIN:
            size = _PLAIN[entry.kind].itemsize * math.prod(entry.shape)
            stored = self._bytes(name, entry, size).view(_PLAIN[entry.kind]).view(entry.shape)
            return stored.to(self._device, dtype)
        if len(entry.shape) != 2:
            raise WeightsError(f"{name} of type {entry.kind} must be a matrix")
        data = self._bytes(name, entry, _size(name, entry.kind, *entry.shape))
        blocks = BLOCKS.get(entry.kind)
        try:
            if blocks is None:
                return _dequantised(name, data.view(entry.shape[0], -1), entry.kind, dtype).to(self._device)
            return blocks.read(data, (entry.shape[0], entry.shape[1]), self._library)
        finally:
            forget(data.data_ptr(), data.nbytes)

    def _bytes(self, name: str, entry: Entry, size: int) -> Tensor:
        data = self._data[entry.file]
        if entry.offset + size > len(data):
            raise WeightsError(f"{entry.file.name} ends inside {name}: it is truncated")
        return data[entry.offset : entry.offset + size]


def _size(name: str, kind: int, rows: int, columns: int) -> int:
    """Return the bytes of a matrix of a type.

    Raises:
        WeightsError: the type is not known, or rows are not whole blocks.
    """
    import gguf

    if kind in _PLAIN:
        return rows * columns * _PLAIN[kind].itemsize
    try:
        found = gguf.GGMLQuantizationType(kind)
        width, size = gguf.GGML_QUANT_SIZES[found]
    except (KeyError, ValueError):
        raise WeightsError(f"{name} has type {kind}, which is not known") from None
    if columns % width:
        raise WeightsError(f"{name} of type {found.name} must have rows of whole blocks of {width} numbers")
    return int(rows * columns // width * size)


def _mapped(file: Path) -> Tensor:
    """Return the bytes of a file; nothing is read before it is used, and nothing can be written."""
    with file.open("rb") as stream:
        # A private mapping, because torch has no read-only tensors.
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    return torch.frombuffer(data, dtype=torch.uint8)


def _names(model: GgufModel) -> Any:
    try:
        import gguf
    except ImportError:
        raise UnsupportedModelError("the gguf package is missing: pip install gguf") from None
    for number, name in gguf.MODEL_ARCH_NAMES.items():
        if name == model.architecture:
            return gguf.get_tensor_name_map(number, model.blocks)
    raise UnsupportedModelError(
        f"the installed gguf package does not know {model.architecture}: pip install --upgrade gguf"
    )


_ROWS = 1024
"""Rows that are dequantised at once, which bounds the memory."""


def _dequantised(name: str, rows: Tensor, number: int, dtype: torch.dtype) -> Tensor:
    import gguf

    kind = gguf.GGMLQuantizationType(number)
    try:
        parts = [
            torch.from_numpy(gguf.quants.dequantize(part.numpy(), kind)).to(dtype)
            for part in torch.split(rows, _ROWS)
        ]
    except NotImplementedError:
        raise WeightsError(f"{name} has type {kind.name}, which the gguf package cannot dequantise") from None
    return torch.cat(parts)
