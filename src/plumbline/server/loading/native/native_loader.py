"""Load a model into our own engine: from a folder or from a GGUF file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from plumbline.engines.constraints.grammar import LarkCompiler
from plumbline.engines.native.adapter_table import AdapterTable
from plumbline.engines.native.cuda import SideStream
from plumbline.engines.native.engine import NativeEngine
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.graphs import Capture, CudaRecorder
from plumbline.engines.native.images import ImageReader
from plumbline.engines.native.models import (
    ModelDescription,
    Transformer,
    UnsupportedModelError,
    load_model,
)
from plumbline.engines.native.models.gguf import load_gguf
from plumbline.engines.native.models.loading.rounding_loss import NO_TEXTS, Texts, texts_problem
from plumbline.engines.native.models.support import exact_problem
from plumbline.engines.native.models.vision import Vision
from plumbline.engines.native.models.vision.interface import Encode
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.native.threads import candidates, fastest
from plumbline.engines.native.warm import warm_up
from plumbline.server.loading.adapter_ranks import largest_rank
from plumbline.server.loading.native.compile_share import Job
from plumbline.server.loading.native.compilers import CompilerError, Compilers
from plumbline.server.loading.native.memory import (
    adapter_bytes,
    check_device_memory,
    check_memory,
    engine_config,
    gpu_cache_bytes,
    held_bytes,
    loaded_bytes,
    num_snapshots,
    recorded_bytes,
)
from plumbline.server.loading.native.native_model import (
    NativeModel,
    compiled,
    describe_model,
    device_of,
    native_dtype,
)
from plumbline.server.settings import OptionError, Settings
from plumbline_kernels._backend import capability_of, num_compiled
from plumbline_kernels.cpu.library import Library

__all__ = ["build_native"]

_log = logging.getLogger("plumbline.engines")

_MOST_LOSS = 1.03
"""With each kind of text: SmolLM2 135M has less, Qwen2.5-Coder 0.5B and Gemma 3 270M have more."""
_BITS = {"auto": None, "none": 0, "int8": 8, "int4": 4}


def build_native(
    settings: Settings,
    name: str,
    folder: Path,
    gguf: Path | None,
    compiler: Callable[[frozenset[int], int], LarkCompiler | None],
    encode: Callable[[str], list[int]],
    more_ends: frozenset[int] = frozenset(),
    texts: Texts = NO_TEXTS,
) -> NativeEngine:
    """Load the model into our engine; the caller starts it.

    Args:
        settings: of the model.
        name: of the model.
        folder: the model's; that of a file has the text side only.
        gguf: the model's file, if it is one.
        compiler: makes the grammar compiler for the ends of answers and the size of the vocabulary.
        encode: encodes a text, in which special tokens are themselves.
        more_ends: tokens that end an answer besides those that the model names.
        texts: tokens of texts to measure the rounding of weights with.

    Raises:
        OptionError: the settings and the model do not fit.
        UnsupportedModelError, WeightsError: the model cannot be served.
    """
    device = device_of(settings.device)
    model = describe_model(settings, folder, gguf)
    described = model.description
    if settings.batch_invariant and device.type != "cpu" and (problem := exact_problem(described)):
        raise OptionError(
            "--batch-invariant", f"is not possible for this model on {device}: {problem}; --device cpu has it"
        )
    _check_rows(settings, model)
    if settings.quantization == "int4" and (problem := texts_problem(described, texts)):
        raise OptionError(
            "--quantization",
            f"is int4, and what that costs this model cannot be measured: {problem}; give int8",
        )
    dtype = native_dtype(settings, model)
    if dtype != described.dtype and settings.dtype == "auto":
        _log.info("the weights are float16: on a CPU they run in bfloat16 (--dtype float16 keeps it)")
    if model.no_images:
        _log.warning(
            "only the text of this model is run, and requests with images are refused: %s", model.no_images
        )
    # Before the weights are read, and before tables of so many positions are made.
    weights, graphs, room = 0, recorded_bytes(settings, model), None
    rows = settings.max_num_seqs + num_snapshots(settings, described, dtype)
    states = rows * described.state_bytes(dtype.itemsize)
    check_device_memory(settings, device)
    if device.type == "cuda":
        weights = loaded_bytes(settings, model, folder, dtype)
        room = gpu_cache_bytes(settings, device, weights + graphs + states)
    config = engine_config(model, settings, dtype, room)
    held = held_bytes(described, config, dtype)
    check_memory(held, weights, graphs, device)
    library, without = _cpu_kernels(settings, described, dtype, device)
    with _compilers(settings, model, folder, dtype, config) as compilers:
        loaded = _load(settings, model, folder, dtype, config, library, texts)
        _check_rounding(loaded.rounding_losses, is_file=gguf is not None)
        if room is not None:
            # The sizes of weights were estimates: some quantised ones are dequantised, and towers left out.
            widths = [sum(place.layer.shape) for place in loaded.places]
            taken = graphs + states + adapter_bytes(settings, widths, dtype)
            room = gpu_cache_bytes(settings, device, taken)
            config = engine_config(model, settings, dtype, room)
            held = held_bytes(described, config, dtype)
        capture = None
        if graphs:
            capture = Capture(
                CudaRecorder(), config.max_num_seqs, config.blocks_per_sequence, config.batch_invariant
            )
        runner = ModelRunner(
            loaded,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            device=device,
            num_states=config.max_num_seqs + config.num_snapshots,
            capture=capture,
            exact=config.batch_invariant,
        )
        adapters = None
        if settings.loras or settings.lora_dir:
            adapters = AdapterTable(loaded, capacity=settings.max_loras, max_rank=largest_rank(settings))
        if compilers is not None:
            try:
                compilers.wait()
            except CompilerError as error:
                raise OptionError("--engine", f"is plumbline, and {error}; give another") from error
    _prepare_steps(runner, config, 0 if adapters is None else adapters.max_rank)
    # After the places of adapters: the first step records which operations there are.
    means = without if loaded.library is None else _share(settings, runner, loaded.library)
    ends = described.eos_token_ids | more_ends
    return NativeEngine(
        config,
        runner,
        model=name,
        eos_token_ids=ends,
        grammars=compiler(ends, runner.vocab_size),
        runs_on=f"{device} in {str(dtype).removeprefix('torch.')} with {means}",
        cache_bytes=held,
        adapters=adapters,
        images=_image_reader(loaded, model, config, encode, hangs_after=3 * settings.stuck_after),
        stuck_after=settings.stuck_after,
        rounding_losses=loaded.rounding_losses,
    )


def _check_rounding(losses: Mapping[str, float], *, is_file: bool) -> None:
    """Refuse a model that rounding to 4 bits makes worse than is worth it.

    Raises:
        OptionError: it does.
    """
    kind = max(losses, key=losses.__getitem__, default="")
    if kind and losses[kind] > _MOST_LOSS:
        instead = "or auto, which keeps the bits of the file" if is_file else "or a GGUF file of 4 or 5 bits"
        raise OptionError(
            "--quantization",
            f"is int4, with which this model has {losses[kind]:.3f} times the perplexity of its own weights on a text "
            f"({kind}), more than {_MOST_LOSS}: give int8, {instead}",
        )


def _check_rows(settings: Settings, model: NativeModel) -> None:
    """Refuse adapters of a GGUF file whose rows are not in the order that adapters were trained with.

    Raises:
        OptionError: they are not.
    """
    wanted = settings.loras or settings.lora_dir
    if wanted and model.gguf is not None and model.gguf.order == "other":
        raise OptionError(
            "--lora" if settings.loras else "--lora-dir",
            f"is not supported with GGUF files of {model.gguf.architecture}, whose weights the converter changes: give "
            "the model's folder as --model",
        )


def _compilers(
    settings: Settings, model: NativeModel, folder: Path, dtype: torch.dtype, config: EngineConfig
) -> Compilers | nullcontext[None]:
    """Begin to compile the kernels of a model on a GPU while its weights are read.

    Files and AMD's GPUs do without: the steps before the first request compile one after the other what is missing.
    """
    device = device_of(settings.device)
    if device.type != "cuda" or model.gguf is not None or torch.version.hip is not None:
        return nullcontext()
    return Compilers(
        Job(
            folder=str(folder),
            capability=capability_of(device),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            block_size=config.block_size,
            max_model_len=config.max_model_len,
            dtype=str(dtype).removeprefix("torch."),
            bits=_BITS[settings.quantization],
            max_rank=largest_rank(settings) if settings.loras or settings.lora_dir else 0,
            max_loras=settings.max_loras,
            images=model.images is not None,
            exact=config.batch_invariant,
        )
    )


def _prepare_steps(runner: ModelRunner, config: EngineConfig, max_rank: int) -> None:
    """Compile what the steps of a model on a GPU need and record its decodes, so that no request waits for it."""
    if runner.device.type != "cuda":
        return
    began, before = time.monotonic(), num_compiled()
    try:
        if runner.graphs is not None:
            runner.graphs.record_all()
    except Exception as error:  # Triton's OutOfResources is no RuntimeError.
        raise OptionError(
            "--cuda-graphs",
            f"cannot be recorded on {runner.device}: {error}; --no-cuda-graphs starts without them",
        ) from error
    try:
        warm_up(runner, config, max_rank=max_rank)
    except Exception as error:
        raise OptionError(
            "--engine", f"is plumbline, whose kernels do not run on {runner.device}: {error}; give another"
        ) from error
    count, seconds = num_compiled() - before, time.monotonic() - began
    _log.info("prepared %d kernels in %.0f s (plumbline warm compiles them before)", count, seconds)


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

    @cache
    def tokens(text: str) -> tuple[int, ...]:
        return tuple(encode(text))

    aside = SideStream(device) if (device := loaded.device).type == "cuda" else None

    def encoded(data: bytes, is_wanted: Callable[[], bool]) -> Tensor:
        pixels = preparation.pixels(data)
        if aside is None:
            return encoder.encode(pixels, is_wanted)
        return aside.run(lambda: encoder.encode(pixels, is_wanted))

    return ImageReader(
        encoded,
        lambda data: vision.layout(*preparation.size(data), tokens),
        placeholder=_placeholder(vision, tokens),
        tokens=vision.tokens,
        row_bytes=encoder.row_bytes,
        max_model_len=config.max_model_len,
        whole=vision.whole,
        hangs_after=hangs_after,
    )


def _placeholder(vision: Vision, encode: Encode) -> int:
    """Return the token that a prompt has in the place of an image."""
    if isinstance(vision.placeholder, int):
        return vision.placeholder
    found = encode(vision.placeholder)
    if len(found) != 1:
        raise UnsupportedModelError(
            f"its tokenizer has no token {vision.placeholder}, which stands for an image in prompts"
        )
    return found[0]


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
    config: EngineConfig,
    library: Library | None,
    texts: Texts,
) -> Transformer:
    device, bits = device_of(settings.device), _BITS[settings.quantization]
    if model.gguf is not None:
        return load_gguf(model.gguf, dtype, device, config.max_model_len, library, bits, texts)
    # The length that is not given is that of the config, which may be longer than a table needs.
    return load_model(
        folder,
        dtype=dtype,
        device=device,
        max_model_len=settings.max_model_len,
        library=library,
        bits=bits,
        vision=None if model.images is None else model.images.vision,
        largest_step=config.max_num_batched_tokens,
        texts=texts,
    )


def _cpu_kernels(
    settings: Settings, model: ModelDescription, dtype: torch.dtype, device: torch.device
) -> tuple[Library | None, str]:
    """Return compiled kernels that run the model, or None and what computes instead.

    Raises:
        OptionError: `--compile on` or `--quantization` needs them, and they cannot be had.
    """
    library, problem = compiled(settings, model, dtype, device)
    if library is not None:
        return library, ""
    if settings.compile == "on":
        raise OptionError("--compile", f"is on, but {problem}")
    if settings.quantization in ("int8", "int4"):
        advice = (
            ""
            if device.type == "cpu"
            else ": give a checkpoint in 4 or 8 bits (AWQ, GPTQ, FP8, GGUF) instead"
        )
        raise OptionError(
            "--quantization",
            f"is {settings.quantization}, which needs compiled kernels, but {problem}{advice}",
        )
    if settings.threads is not None:
        raise OptionError("--threads", f"is {settings.threads}, which needs compiled kernels, but {problem}")
    if device.type != "cpu":
        return None, "Triton kernels"
    return None, f"torch (compiled kernels would be 1.2 to 5 times as fast: {problem})"
