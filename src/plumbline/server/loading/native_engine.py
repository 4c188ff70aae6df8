"""Load a model into our own engine: from a folder or from a GGUF file."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from plumbline.engines.constraints.grammar import LarkCompiler
from plumbline.engines.native.adapter_table import AdapterTable
from plumbline.engines.native.config import EngineConfig
from plumbline.engines.native.engine import NativeEngine
from plumbline.engines.native.graphs import Capture, CudaRecorder
from plumbline.engines.native.images import ImageReader
from plumbline.engines.native.models import (
    ModelDescription,
    Transformer,
    UnsupportedModelError,
    load_model,
    read_description,
)
from plumbline.engines.native.models.gguf import GgufModel, load_gguf, read_model
from plumbline.engines.native.models.support import compiled_problem, kernels_problem
from plumbline.engines.native.models.vision import (
    Preparation,
    Vision,
    read_preparation,
    read_vision,
)
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.native.threads import candidates, fastest
from plumbline.server.loading.adapter_ranks import largest_rank
from plumbline.server.loading.memory import device_bytes
from plumbline.server.settings import OptionError, Settings
from plumbline.server.settings.sizes import size_text
from plumbline_kernels.cpu.build import CompileError
from plumbline_kernels.cpu.library import Library
from plumbline_kernels.cpu.library import load as compiled_kernels

__all__ = [
    "CACHE_BYTES",
    "DTYPES",
    "NUM_BATCHED_TOKENS",
    "NativeModel",
    "build_native",
    "cache_bytes",
    "compiled",
    "describe_model",
    "device_of",
    "native_dtype",
]

_log = logging.getLogger("plumbline.engines")

CACHE_BYTES: Mapping[str, int] = MappingProxyType(
    {"plumbline": 256 * 1024**2, "llama_cpp": 1024**3, "transformers": 4 * 1024**3, "vllm": 4 * 1024**3}
)
"""Bytes of keys and values by engine, unless `--kv-cache-bytes` is given. Ours allocates them at the start,
llama.cpp and transformers what requests need. vLLM takes as many on a CPU, and on a GPU what its weights leave."""
NUM_BATCHED_TOKENS = 1024
"""Tokens in a step of our engine and llama.cpp."""
DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
)
_BLOCK_SIZE = 16
"""Tokens in a block of the cache."""
_BITS = {"auto": None, "none": 0, "int8": 8, "int4": 4}


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
    """Why the images of a model of images and text are not read."""

    @property
    def is_quantised(self) -> bool:
        """Whether its weights are stored in less than 16 bits."""
        return self.description.stored is not None or (self.gguf is not None and self.gguf.is_quantised)


def cache_bytes(settings: Settings, engine: str, gguf: Path | None) -> int:
    """Return the bytes of keys and values that an engine takes; a GGUF file gets the same on ours and on llama.cpp."""
    return settings.kv_cache_bytes or CACHE_BYTES["llama_cpp" if gguf is not None else engine]


def describe_model(settings: Settings, folder: Path, gguf: Path | None) -> NativeModel:
    """Describe a model for our engine.

    Raises:
        UnsupportedModelError: the engine does not run it, or not on the device.
    """
    file = None if gguf is None else read_model(gguf)
    description = read_description(folder) if file is None else file.description
    device = device_of(settings.device)
    problem = None if device.type == "cpu" else kernels_problem(description)
    if problem is not None:
        raise UnsupportedModelError(f"it cannot run on {device}: {problem}; --device cpu runs it")
    if not description.is_text_of_more:
        return NativeModel(description, file)
    try:
        vision = read_vision(json.loads((folder / "config.json").read_text("utf-8")), description)
        return NativeModel(description, None, Images(vision, read_preparation(folder, vision)))
    except UnsupportedModelError as error:
        return NativeModel(description, None, no_images=str(error))


def build_native(
    settings: Settings,
    name: str,
    folder: Path,
    gguf: Path | None,
    compiler: Callable[[frozenset[int], int], LarkCompiler | None],
    encode: Callable[[str], list[int]],
) -> NativeEngine:
    """Load the model into our engine; the caller starts it.

    Args:
        settings: of the model.
        name: of the model.
        folder: the model's; that of a file has the text side only.
        gguf: the model's file, if it is one.
        compiler: makes the grammar compiler for the ends of answers and the size of the vocabulary.
        encode: encodes a text.

    Raises:
        OptionError: the settings and the model do not fit.
        UnsupportedModelError, WeightsError: the model cannot be served.
    """
    device = device_of(settings.device)
    if settings.batch_invariant and device.type != "cpu":
        raise OptionError(
            "--batch-invariant", f"needs --device cpu: on {device} sums depend on the number of rows"
        )
    model = describe_model(settings, folder, gguf)
    described = model.description
    dtype = native_dtype(settings, model)
    if dtype != described.dtype and settings.dtype == "auto":
        _log.info("the weights are float16: on a CPU they run in bfloat16 (--dtype float16 keeps it)")
    if model.no_images:
        _log.warning(
            "only the text of this model is run, and requests with images are refused: %s", model.no_images
        )
    # Before the weights are read, and before tables of so many positions are made.
    config = _config(model, settings, dtype)
    if settings.enable_prefix_caching and described.state_bytes(1):
        _log.warning(
            "the prefix cache is off: layers of %s keep a state of the whole sequence, so prompts with the same "
            "beginning are computed from the start",
            described.model_type,
        )
    held = config.num_blocks * config.block_size * described.cache_width * dtype.itemsize
    held += config.max_num_seqs * described.state_bytes(dtype.itemsize)
    _check_memory(held, device)
    library = _cpu_kernels(settings, described, dtype, device)
    loaded = _load(settings, model, folder, dtype, config.max_model_len, library)
    capture = None
    if settings.cuda_graphs and device.type == "cuda":
        capture = Capture(CudaRecorder(), config.max_num_seqs, config.blocks_per_sequence)
    runner = ModelRunner(
        loaded,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        device=device,
        num_states=config.max_num_seqs,
        capture=capture,
    )
    adapters = None
    if settings.loras or settings.lora_dir:
        adapters = AdapterTable(loaded, capacity=settings.max_loras, max_rank=largest_rank(settings))
    _record(runner)
    # After the places of adapters: the first step records which operations there are.
    means = _share(settings, runner, loaded.library) if loaded.library is not None else ""
    ends = described.eos_token_ids
    return NativeEngine(
        config,
        runner,
        model=name,
        eos_token_ids=ends,
        grammars=compiler(ends, runner.vocab_size),
        runs_on=_runs_on(device, dtype, means),
        cache_bytes=held,
        adapters=adapters,
        images=_image_reader(loaded, model, config, encode, hangs_after=3 * settings.stuck_after),
        stuck_after=settings.stuck_after,
    )


def _record(runner: ModelRunner) -> None:
    """Record the decode steps of a model on a GPU, so that no request waits for it."""
    if runner.graphs is None:
        return
    try:
        runner.graphs.record_all()
    except RuntimeError as error:
        raise OptionError(
            "--cuda-graphs",
            f"cannot be recorded on {runner.device}: {error}; --no-cuda-graphs starts without them",
        ) from error


def _image_reader(
    loaded: Transformer,
    model: NativeModel,
    config: EngineConfig,
    encode: Callable[[str], list[int]],
    *,
    hangs_after: float,
) -> ImageReader | None:
    encoder = loaded.vision
    if encoder is None or model.images is None:
        return None
    vision, preparation = model.images
    around = tuple(encode(vision.around)) if vision.around else ()
    return ImageReader(
        lambda data, is_wanted: encoder.encode(preparation.pixels(data), is_wanted),
        placeholder=vision.placeholder,
        token=vision.token,
        before=(*around, vision.placeholder) if vision.ends else around,
        after=(*vision.ends, *around),
        whole=vision.whole,
        num_tokens=vision.num_tokens,
        image_bytes=encoder.row_bytes,
        max_model_len=config.max_model_len,
        hangs_after=hangs_after,
    )


def _runs_on(device: torch.device, dtype: torch.dtype, compiled: str) -> str:
    """Say where our engine computes, in which type, and with what."""
    means = compiled or ("torch" if device.type == "cpu" else "Triton kernels")
    return f"{device} in {str(dtype).removeprefix('torch.')} with {means}"


def _share(settings: Settings, runner: ModelRunner, library: Library) -> str:
    """Set how many threads share a step of compiled kernels; returns these kernels and the number in words."""
    most = library.threads
    library.threads = settings.threads or fastest(candidates(most), runner.decode)
    count = library.threads
    measured = f"measured on {most} cores; " if most > 1 and not settings.threads else ""
    return f"compiled kernels on {count} thread{'s' if count > 1 else ''} ({measured}--threads)"


def _load(
    settings: Settings,
    model: NativeModel,
    folder: Path,
    dtype: torch.dtype,
    max_model_len: int,
    library: Library | None,
) -> Transformer:
    device, bits = device_of(settings.device), _BITS[settings.quantization]
    if model.gguf is not None:
        return load_gguf(model.gguf, dtype, device, max_model_len, library, bits)
    # The length that is not given is that of the config, which may be longer than a table needs.
    return load_model(
        folder,
        dtype=dtype,
        device=device,
        max_model_len=settings.max_model_len,
        library=library,
        bits=bits,
        vision=None if model.images is None else model.images.vision,
    )


def native_dtype(settings: Settings, model: NativeModel) -> torch.dtype:
    """Return the type of weights and activations.

    On a CPU, for which fp16 has no compiled kernels, GGUF files and quantised checkpoints in fp16 run in bf16.
    """
    given, own = DTYPES.get(settings.dtype), model.description.dtype
    whole = model.description.stored is None and model.gguf is None
    if given is None and own == torch.float16 and device_of(settings.device).type == "cpu" and not whole:
        return torch.bfloat16
    return given or own


def _cpu_kernels(
    settings: Settings, model: ModelDescription, dtype: torch.dtype, device: torch.device
) -> Library | None:
    """Return compiled kernels that run the model, or None if torch or a GPU does.

    Raises:
        OptionError: `--compile on` or `--quantization` needs them, and they cannot be had.
    """
    library, problem = compiled(settings, model, dtype, device)
    if library is not None:
        return library
    if settings.compile == "on":
        raise OptionError("--compile", f"is on, but {problem}")
    if settings.quantization in ("int8", "int4"):
        raise OptionError(
            "--quantization", f"is {settings.quantization}, which needs compiled kernels, but {problem}"
        )
    if settings.threads is not None:
        raise OptionError("--threads", f"is {settings.threads}, which needs compiled kernels, but {problem}")
    if settings.compile == "auto" and device.type == "cpu":
        _log.info("runs without compiled kernels, which are 1.2 to 5 times as fast: %s", problem)
    return None


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


def _config(model: NativeModel, settings: Settings, dtype: torch.dtype) -> EngineConfig:
    described = model.description
    block_size = settings.block_size or _BLOCK_SIZE
    block_bytes = described.cache_width * dtype.itemsize * block_size
    size = cache_bytes(settings, "plumbline", None if model.gguf is None else model.gguf.file)
    max_model_len = settings.max_model_len or described.context_length
    if model.gguf is not None and settings.max_model_len is None:
        max_model_len = _held(size // block_bytes * block_size, max_model_len)
    blocks_per_sequence = -(-max_model_len // block_size)
    num_blocks = min(size // block_bytes, blocks_per_sequence * settings.max_num_seqs)
    if num_blocks < blocks_per_sequence:
        needed = blocks_per_sequence * block_bytes
        raise OptionError(
            "--kv-cache-bytes",
            f"must be at least {needed}, which one request of {max_model_len} tokens takes, got {size}: give "
            "more, or a smaller --max-model-len",
        )
    return EngineConfig(
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=max(
            settings.max_num_batched_tokens or NUM_BATCHED_TOKENS, settings.max_num_seqs
        ),
        max_num_waiting=settings.max_num_waiting,
        max_seqs_per_client=settings.client_limit,
        enable_prefix_caching=settings.enable_prefix_caching,
        batch_invariant=settings.batch_invariant,
        speculation=settings.speculation,
    )


def _check_memory(held: int, device: torch.device) -> None:
    """Refuse a cache that is larger than all the memory there is; its pages would be missing when requests use them.

    A GPU refuses it by itself, and at once.
    """
    if device.type == "cpu" and held > (there := device_bytes(device)):
        raise OptionError(
            "--kv-cache-bytes",
            f"makes a cache of {size_text(held)}, and {device} has {size_text(there)}: give less, or a smaller "
            "--max-num-seqs",
        )


def _held(cached: int, context: int) -> int:
    """Return the tokens of a request at most: the model's, or what the cache holds of them, as with llama.cpp."""
    if 0 < cached < context:
        _log.info(
            "the cache holds %d tokens, so requests have so many at most, of %d that the model was made for: "
            "--kv-cache-bytes gives it more",
            cached,
            context,
        )
        return cached
    return context


def device_of(name: str) -> torch.device:
    """Return the device that `--device` names.

    Raises:
        OptionError: torch does not know it, or does not find it here.
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
    return device
