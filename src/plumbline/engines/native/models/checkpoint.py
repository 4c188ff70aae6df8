"""Read the safetensors files of a model folder one tensor at a time, mapped into memory."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from plumbline.base.workers.memory import forget
from plumbline.engines.native.models.fields import MOST_SHOWN
from plumbline.engines.native.models.stored import Grid, StoredFormat, StoredWeight, dense
from plumbline.port.progress import report

__all__ = ["Checkpoint", "WeightsError", "some"]

_log = logging.getLogger("plumbline.engines")


class WeightsError(ValueError):
    """The weights do not match the config; the message lists the names."""


_TEXT = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("lm_head.", "lm_head."),
    ("model.layers.", "model.layers."),
    ("model.embed_tokens.", "model.embed_tokens."),
    ("model.norm.", "model.norm."),
)
"""Prefixes of the language model's tensors in vision-language models, and what they are in the model alone."""
_IMAGES = (
    ("model.vision_tower.vision_model.", "vision_tower."),
    ("vision_tower.vision_model.", "vision_tower."),
    ("model.vision_tower.", "vision_tower."),
    ("vision_tower.", "vision_tower."),
    ("vision_model.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("multi_modal_projector.", "multi_modal_projector."),
    ("model.embed_vision.", "embed_vision."),
    ("model.visual.", "visual."),
    ("visual.", "visual."),
)
"""The same of a tower and a projector, of releases and of transformers 4 and 5."""


_OLD = "rotary_emb.inv_freq"
"""Rotary frequencies of old checkpoints, which the config determines."""
_PARTS = ("weight", "qweight", "weight_packed", "_weight_qdata")
"""What the names of a weight end with, plain and quantised."""
_LONGEST = 255
"""Bytes of the name of a file that file systems take; looking for a longer one is an error of the system."""
_PLAIN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Checkpoint:
    """The tensors of a model folder; every one must be used, and every weight found."""

    def __init__(
        self, folder: Path, dtype: torch.dtype, device: torch.device, form: StoredFormat | None = None
    ) -> None:
        """Take the folder, the type and place of the tensors that are fetched, and the format of quantised ones."""
        self.folder, self.dtype, self.device = folder, dtype, device
        self._form = form
        self._files: dict[str, Any] = {}
        self._where: dict[str, str] = {}
        self._stored: dict[str, str] = {}
        """The names in the files of tensors that have another one here."""
        self._size = self._read_bytes = 0
        self._last: Tensor | None = None
        """The tensor that was read last."""
        self.missing: list[str] = []
        self.unused: set[str] = set()
        self.left: set[str] = set()
        """Tensors that the model does without, which are named but not refused."""

    def __enter__(self) -> Checkpoint:
        """Open every file and index its tensors."""
        for name in self._file_names():
            path = self.folder / name
            if not path.is_file():
                raise WeightsError(f"{path} is named by the index but missing")
            try:
                file: Any = safe_open(path, framework="pt", device="cpu")
            except SafetensorError as error:
                raise WeightsError(f"{path} is truncated, or not a safetensors file: {error}") from error
            self._files[name] = file.__enter__()
            self._size += path.stat().st_size
            self._where |= dict.fromkeys(file.keys(), name)
        self.unused = set(self._where)
        self._leave(lambda name: name.endswith(_OLD))
        return self

    def __exit__(self, *exc: object) -> None:
        """Unmap the files."""
        self._forget_last()
        self._files.clear()

    def _file_names(self) -> list[str]:
        index = self.folder / "model.safetensors.index.json"
        if index.exists():
            return _files_of_index(index)
        if (self.folder / "model.safetensors").exists():
            return ["model.safetensors"]
        raise WeightsError(f"{self.folder} has neither model.safetensors nor model.safetensors.index.json")

    def fetch(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """Read a tensor; a missing one is recorded and replaced by zeros until `finish` refuses the checkpoint."""
        return dense(self.fetch_weight(name, shape, dtype), dtype or self.dtype, self.device)

    def fetch_weight(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> Tensor | StoredWeight:
        """Read a tensor as `fetch` does, or as it is stored if it is quantised."""
        if self._form is not None and len(shape) == 2:
            stored = self._form.read(self, name, (shape[0], shape[1]))
            if stored is not None:
                return stored
        return self._plain(name, shape).to(self.device, dtype or self.dtype)

    def fetch_stack(
        self, name: str, shape: tuple[int, int, int], turned: bool
    ) -> Iterator[tuple[Tensor, Grid | None]]:
        """Read a tensor of all experts [E, out, in] as `fetch_weight` does, and convert one matrix of it at a time.

        Args:
            name: of the tensor.
            shape: of the result.
            turned: whether it is stored as [E, in, out].
        """
        stored = None if self._form is None else self._form.read_stack(self, name, shape, turned)
        if stored is None:
            number, outputs, inputs = shape
            for matrix in self._plain(name, (number, inputs, outputs) if turned else shape):
                yield (matrix.t() if turned else matrix).to(self.device, self.dtype), None
            return
        for weight in stored:
            yield weight.dequantised(self.dtype).to(self.device), weight.grid

    def _plain(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Map a tensor that is not quantised."""
        if not self.has(name):
            self.missing.append(name)
            return torch.zeros(1, dtype=self.dtype).expand(shape)
        tensor = self._read(name)
        if [size for size in tensor.shape if size != 1] != [size for size in shape if size != 1]:
            raise WeightsError(f"{name} has shape {list(tensor.shape)}, the config asks for {list(shape)}")
        if tensor.dtype not in _PLAIN:
            raise WeightsError(f"{name} has type {tensor.dtype}, and the config gives it no quantised format")
        return tensor.view(shape)

    def take(self, name: str, *shapes: tuple[int, ...], types: tuple[torch.dtype, ...]) -> Tensor:
        """Read a tensor as it is stored; see `Tensors`."""
        if not self.has(name):
            raise WeightsError(f"{name} is missing, and the weight beside it is quantised")
        tensor = self._read(name)
        if tuple(tensor.shape) not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise WeightsError(f"{name} has shape {list(tensor.shape)}, the config asks for {expected}")
        if tensor.dtype not in types:
            raise WeightsError(
                f"{name} has type {tensor.dtype}, the config asks for {' or '.join(map(str, types))}"
            )
        return tensor

    def ignore_zeros(self, name: str) -> None:
        """Accept that a tensor is not used if it is zero; see `Tensors`."""
        if name in self.unused and self._read(name).any():
            self.unused.add(name)

    def _read(self, name: str) -> Tensor:
        self.unused.discard(name)
        stored = self._stored.get(name, name)
        tensor: Tensor = self._files[self._where[stored]].get_tensor(stored)
        # What was read before is used by now, or it is kept and read again.
        self._forget_last()
        self._last = tensor
        self._read_bytes = min(self._read_bytes + tensor.nbytes, self._size)
        report("loading weights", self._read_bytes, self._size)
        return tensor

    def _forget_last(self) -> None:
        if self._last is not None:
            forget(self._last.data_ptr(), self._last.nbytes)
        self._last = None

    def has(self, name: str) -> bool:
        """Return whether there is such a tensor."""
        return self._stored.get(name, name) in self._where

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, as it is stored."""
        stored = self._stored.get(name, name)
        return tuple(self._files[self._where[stored]].get_slice(stored).get_shape())

    def take_text(self, *, with_images: bool = False) -> None:
        """Name the tensors of a text as if it were all; leave those of images alone, or name them in one way."""
        prefixes = (*_TEXT, *_IMAGES) if with_images else _TEXT
        for stored in self._where:
            for prefix, plain in prefixes:
                if stored.startswith(prefix):
                    self._stored[plain + stored.removeprefix(prefix)] = stored
                    break
        self.unused = set(self._stored)
        self.left = self._where.keys() - set(self._stored.values())
        self._leave(lambda name: name.endswith(_OLD))

    def ignore(self, prefixes: tuple[str, ...], ends: tuple[str, ...] = ()) -> None:
        """Accept that tensors are not used whose names begin or end in one of these ways, and name them."""
        self._leave(lambda name: name.startswith(prefixes) or name.endswith(ends))

    def add_base(self, base: str, embedding: str) -> None:
        """Name the tensors of a checkpoint without an output layer, as those of GPT-2, as if it had one.

        Args:
            base: what their names begin with then.
            embedding: the name of one of them.
        """
        if self.has(f"{embedding}.weight") or not self.has(f"{embedding.removeprefix(base)}.weight"):
            return
        self._stored = {base + name: name for name in self._where}
        self.left = {base + name for name in self.left}
        self.unused = set(self._stored) - self.left

    def skip(self, prefixes: tuple[str, ...]) -> None:
        """Accept in silence tensors that the model's own definition computes nothing with."""
        self.unused = {name for name in self.unused if not name.startswith(prefixes)}

    def _leave(self, is_left: Callable[[str], bool]) -> None:
        left = {name for name in self.unused if is_left(name)}
        self.left |= left
        self.unused -= left

    def head_of(self, head: str, embedding: str) -> Literal["none", "copy", "own"]:
        """Return which output layer there is: none, a copy of the embedding, or one of its own.

        A config that ties them may be wrong. As in transformers and vLLM, what the checkpoint has wins. A tied model
        may also have been saved with the name of its output layer alone, which is then the embedding.

        Args:
            head: the name of the output layer, without `.weight`.
            embedding: that of the embedding.
        """
        if not any(self.has(f"{head}.{part}") for part in _PARTS):
            return "none"
        first, second = (f"{name}.weight" for name in (head, embedding))
        if not self.has(first):
            return "own"
        if not self.has(second):
            self._stored[second] = self._stored.get(first, first)
            self.unused.discard(first)
            return "copy"
        tensors = self._read(first), self._read(second)
        if tensors[0].dtype != tensors[1].dtype or not torch.equal(*tensors):
            return "own"
        return "copy"

    def finish(self) -> None:
        """Refuse the checkpoint if a tensor was missing or not used, and name those that the model does without."""
        if self.left:
            _log.warning(
                "%d tensors of the checkpoint are not used: %s",
                len(self.left),
                some([f"{name:.120}" for name in sorted(self.left)]),
            )
        problems = []
        if self.missing:
            problems.append(f"missing: {some(self.missing)}")
        if self.unused:
            problems.append(f"not used: {some(sorted(self.unused))}")
        if problems:
            raise WeightsError(f"the weights in {self.folder} do not fit its config; " + "; ".join(problems))


def _files_of_index(index: Path) -> list[str]:
    """Return the files that an index names, which are beside it.

    Raises:
        WeightsError: the index has no `weight_map`, or it names something else than a file of the folder.
    """
    found = json.loads(index.read_text(encoding="utf-8"))
    files = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(files, dict):
        raise WeightsError(f"{index} has no weight_map, an object with the file of each tensor")
    for name, file in files.items():
        named = isinstance(file, str) and file.isprintable() and Path(file).name == file
        if not named or len(file.encode()) > _LONGEST:
            raise WeightsError(f"{index} has {file!r:.80} for {name!r:.80}, which is not the name of a file")
    return sorted(set(files.values()))


def some(names: list[str]) -> str:
    """Return the first of some names, which may come from a damaged file, and how many more there are."""
    shown = ", ".join(f"{name!r:.{MOST_SHOWN}}"[1:-1] for name in names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
