"""Describe a model for our engine, and decide what runs it: the device, the type of its numbers, compiled kernels."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from plumbline.engines.native.models import ModelDescription, UnsupportedModelError, read_description
from plumbline.engines.native.models.gguf import GgufModel, read_model
from plumbline.engines.native.models.support import compiled_problem, kernels_problem
from plumbline.engines.native.models.vision import Preparation, Vision
from plumbline.server.settings import OptionError, Settings
from plumbline_kernels.cpu.build import CompileError
from plumbline_kernels.cpu.library import Library
from plumbline_kernels.cpu.library import load as compiled_kernels
from plumbline_kernels.devices import gpu_problem

__all__ = ["DTYPES", "Images", "NativeModel", "compiled", "describe_model", "device_of", "native_dtype"]

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
)


class Images(NamedTuple):
    """How our engine reads the images of a model."""

    vision: Vision
    preparation: Preparation


class NativeModel(NamedTuple):
    """A model that our engine runs: its description, and its file if it is one."""

    description: ModelDescription
    gguf: GgufModel | None
    images: Images | None = None
    no_images: str = ""
    """Why the images of a vision-language model are not read."""

    @property
    def is_quantised(self) -> bool:
        """Whether its weights are stored in less than 16 bits."""
        return self.description.stored is not None or (self.gguf is not None and self.gguf.is_quantised)


def describe_model(settings: Settings, folder: Path, gguf: Path | None) -> NativeModel:
    """Describe a model for our engine.

    Raises:
        UnsupportedModelError: the engine does not run it, or not on the device.
    """
    file = None if gguf is None else read_model(gguf)
    description = read_description(folder) if file is None else file.description
    device = device_of(settings.device)
    problem = None if device.type == "cpu" else _gpu_problem(device) or kernels_problem(description)
    if problem is not None:
        raise UnsupportedModelError(f"it cannot run on {device}: {problem}; --device cpu runs it")
    if not description.is_text_of_more:
        return NativeModel(description, file)
    # It has the towers of all families, which a text model does without.
    from plumbline.engines.native.models.vision.families import read_preparation, read_vision

    try:
        vision = read_vision(json.loads((folder / "config.json").read_text("utf-8")), description)
        return NativeModel(description, None, Images(vision, read_preparation(folder, vision)))
    except UnsupportedModelError as error:
        return NativeModel(description, None, no_images=str(error))


def _gpu_problem(device: torch.device) -> str | None:
    """Return why our kernels do not run on a GPU of NVIDIA, or None."""
    if device.type != "cuda" or torch.version.hip is not None:
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return gpu_problem(10 * major + minor)


def native_dtype(settings: Settings, model: NativeModel) -> torch.dtype:
    """Return the type of weights and activations.

    On a CPU, for which fp16 has no compiled kernels, GGUF files and quantised checkpoints in fp16 run in bf16.
    """
    given, own = DTYPES.get(settings.dtype), model.description.dtype
    whole = model.description.stored is None and model.gguf is None
    if given is None and own == torch.float16 and device_of(settings.device).type == "cpu" and not whole:
        return torch.bfloat16
    return given or own


def compiled(
    settings: Settings, model: ModelDescription, dtype: torch.dtype, device: torch.device
) -> tuple[Library | None, str]:
    """Return the compiled kernels, or None and the reason why there are none for this model."""
    if settings.compile == "off":
        return None, "--compile is off"
    if device.type != "cpu":
        return None, f"kernels are compiled for a CPU, not for {device.type}"
    try:
        library = copy.copy(compiled_kernels())  # Models have their own numbers of threads.
    except (CompileError, OSError) as error:
        return None, f"kernels cannot be compiled: {error}"
    problem = compiled_problem(model, dtype, library)
    return (library, "") if problem is None else (None, problem)


def device_of(name: str) -> torch.device:
    """Return the device that `--device` names.

    Raises:
        OptionError: torch does not know it, does not find it here, or cannot compute on it.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(
            "--device", f"must be a device that torch knows, such as cpu or cuda:1, got {name!r}"
        ) from error
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= count:
        raise OptionError(
            "--device",
            f"is {name}, and torch finds {count} devices of CUDA here: leave it out, or give another",
        )
    if device.type not in ("cpu", "cuda") and (problem := _device_problem(device)):
        raise OptionError("--device", f"is {name}, and {problem}: leave it out, or give cpu")
    return device


def _device_problem(device: torch.device) -> str | None:
    """Return why torch cannot compute on a device of another kind, such as MPS without macOS."""
    if device.type == "meta":
        return "its tensors have no data"
    try:
        torch.zeros(1, device=device)
    except Exception as error:  # Each backend of torch raises a class of its own choice.
        return f"torch cannot use it here ({type(error).__name__})"
    return None
