"""Choose the engine of a model, with the reason, and build it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import torch

from plumbline.engines.constraints.grammar import LarkCompiler, Vocabulary
from plumbline.engines.native.adapter_table import AdapterTable
from plumbline.engines.native.config import EngineConfig
from plumbline.engines.native.engine import NativeEngine
from plumbline.engines.native.models import (
    ModelDescription,
    UnsupportedModelError,
    load_model,
    read_description,
)
from plumbline.engines.native.models.support import compiled_problem, kernels_problem
from plumbline.engines.native.runner import ModelRunner
from plumbline.engines.port import Engine, EngineInfo
from plumbline.server.loading.adapter_ranks import largest_rank, vllm_rank
from plumbline.server.settings import OPTIONS, OptionError, Settings
from plumbline.text.gguf import disagreement
from plumbline.text.tokenizer import TextTokenizer, UnsupportedTokenizerError
from plumbline_kernels.cpu.build import CompileError
from plumbline_kernels.cpu.library import Library
from plumbline_kernels.cpu.library import load as compiled_kernels

__all__ = [
    "CACHE_BYTES",
    "EngineChoice",
    "build_engine",
    "choose_engine",
    "device_of",
    "folder_vocabulary",
    "vocabulary",
]

_log = logging.getLogger("plumbline.engines")

CACHE_BYTES: Mapping[str, int] = MappingProxyType(
    {"plumbline": 256 * 1024**2, "llama_cpp": 1024**3, "transformers": 4 * 1024**3, "vllm": 4 * 1024**3}
)
"""Bytes of keys and values by engine, unless `--kv-cache-bytes` is given. Ours allocates them at the start,
llama.cpp and transformers what requests need. vLLM takes as many on a CPU, and on a GPU what its weights leave."""
_BLOCK_SIZE = 16
"""Tokens in a block of our engine's cache."""
_NUM_BATCHED_TOKENS = 1024
"""Tokens in a step of our engine and llama.cpp."""
_BITS = {"auto": None, "none": 0, "int8": 8, "int4": 4}
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_LLAMA_CPP_DTYPES: dict[str, tuple[str, ...]] = {
    "auto": (),
    # Its fast attention computes with half precision.
    "float32": ("type_k=f32", "type_v=f32", "flash_attn_type=0"),
    "float16": ("type_k=f16", "type_v=f16"),
    "bfloat16": ("type_k=bf16", "type_v=bf16"),
}
"""llama.cpp's types of keys and values by `--dtype`; the weights have the file's."""


class EngineChoice(msgspec.Struct, frozen=True):
    """The engine of a model: `plumbline`, `vllm`, `transformers` or `llama_cpp`, and why."""

    name: str
    reason: str


def choose_engine(settings: Settings, folder: Path, gguf: Path | None) -> EngineChoice:
    """Choose the engine that `--engine` names, or one that fits the model.

    llama.cpp runs GGUF files. Our own engine runs what it supports, vLLM the rest where it is installed, transformers
    otherwise.

    Args:
        settings: with `engine`.
        folder: the model's.
        gguf: its GGUF file, if it is one.

    Raises:
        OptionError: the engine does not run such a file, or lacks an option that was given.
    """
    if gguf is not None and settings.engine not in ("auto", "llama_cpp"):
        raise OptionError("--engine", f"must be llama_cpp or auto for a GGUF file, got {settings.engine}")
    if gguf is None and settings.engine == "llama_cpp":
        raise OptionError("--engine", "is llama_cpp, which runs GGUF files only: give one as --model")
    chosen = (
        EngineChoice(settings.engine, "--engine")
        if settings.engine != "auto"
        else _by_model(settings, folder, gguf)
    )
    for option in OPTIONS:
        engines = option.about.engines
        if engines and chosen.name not in engines and getattr(settings, option.field) != option.default:
            advice = f"; {option.about.advice}" if option.about.advice else ""
            raise OptionError(
                option.label,
                f"is an option of {', '.join(engines)}, and the engine is {chosen.name} ({chosen.reason}): leave it "
                f"out, or give another --engine{advice}",
            )
    return chosen


def _by_model(settings: Settings, folder: Path, gguf: Path | None) -> EngineChoice:
    if gguf is not None:
        return EngineChoice("llama_cpp", "the model is a GGUF file")
    try:
        described = _described(settings, folder)
        if described.is_text_of_more:
            raise UnsupportedModelError("of this model it runs the text alone, and not images")
    except UnsupportedModelError as error:
        if find_spec("vllm") is not None:
            return EngineChoice("vllm", f"ours does not run this model, and vLLM is installed: {error}")
        return EngineChoice("transformers", f"ours does not run this model: {error}")
    device = device_of(settings.device)
    if described.stored is not None and device.type != "cpu":
        if find_spec("vllm") is not None:
            return EngineChoice(
                "vllm", f"it has kernels for quantised weights on {device}, where ours dequantises them"
            )
        return EngineChoice("plumbline", f"it supports this model, and dequantises its weights on {device}")
    quantised = "" if described.stored is None else " and reads its quantised weights"
    return EngineChoice("plumbline", f"it supports this model{quantised}")


def _described(settings: Settings, folder: Path) -> ModelDescription:
    """Describe a model for our engine.

    Raises:
        UnsupportedModelError: the engine does not run it, or not on the device.
    """
    description = read_description(folder)
    device = device_of(settings.device)
    problem = None if device.type == "cpu" else kernels_problem(description)
    if problem is not None:
        raise UnsupportedModelError(f"it cannot run on {device}: {problem}; --device cpu runs it")
    return description


def build_engine(
    choice: EngineChoice,
    settings: Settings,
    name: str,
    tokenizer: TextTokenizer,
    folder: Path,
    gguf: Path | None,
) -> Engine:
    """Load the model into its engine; the caller starts it.

    Raises:
        OptionError: the settings and the model do not fit.
        UnsupportedModelError, UnsupportedTokenizerError, WeightsError, LlamaCppError: the model cannot be served.
    """
    device = device_of(settings.device)
    if device.type == "cpu":
        # Two intra-op threads are slower than one for the small matrices of a decode step, and the event loop needs
        # a core of its own.
        torch.set_num_threads(1)
    if choice.name == "llama_cpp":
        assert gguf is not None
        return _llama_cpp(settings, name, tokenizer, gguf)
    if choice.name == "vllm":
        return _vllm(settings, name, tokenizer, folder)
    if choice.name == "transformers":
        return _transformers(settings, name, tokenizer, folder, device)
    return _native(settings, name, tokenizer, folder, device)


def _native(
    settings: Settings, name: str, tokenizer: TextTokenizer, folder: Path, device: torch.device
) -> Engine:
    described = _described(settings, folder)
    dtype = _dtype(settings, described, device)
    if described.is_text_of_more:
        _log.warning("only the text of this model is run: requests with images are refused")
    # Before the weights are read, and before tables of so many positions are made.
    config = _native_config(described, settings, dtype or described.dtype)
    library = _cpu_kernels(settings, described, dtype or described.dtype, device)
    model = load_model(
        folder,
        dtype=dtype,
        device=device,
        max_model_len=settings.max_model_len,
        library=library,
        bits=_BITS[settings.quantization],
    )
    runner = ModelRunner(model, num_blocks=config.num_blocks, block_size=config.block_size, device=device)
    adapters = None
    if settings.loras or settings.lora_dir:
        adapters = AdapterTable(model, capacity=settings.max_loras, max_rank=largest_rank(settings))
    ends = described.eos_token_ids
    return NativeEngine(
        config,
        runner,
        model=name,
        eos_token_ids=ends,
        grammars=_compiler(tokenizer, ends, runner.vocab_size),
        runs_on=_runs_on(device, dtype or described.dtype, compiled=model.library is not None),
        cache_bytes=config.num_blocks
        * config.block_size
        * described.cache_width
        * (dtype or described.dtype).itemsize,
        adapters=adapters,
    )


def _runs_on(device: torch.device, dtype: torch.dtype, *, compiled: bool) -> str:
    """Say where our engine computes, in which type, and with what."""
    means = "compiled kernels" if compiled else "torch" if device.type == "cpu" else "Triton kernels"
    return f"{device} in {str(dtype).removeprefix('torch.')} with {means}"


def _dtype(settings: Settings, model: ModelDescription, device: torch.device) -> torch.dtype | None:
    """Return the type of weights, or None for the config's."""
    given = _DTYPES.get(settings.dtype)
    if given is None and model.stored is not None and device.type == "cpu" and model.dtype == torch.float16:
        # GPTQ and AWQ checkpoints say fp16, for which a CPU has no compiled kernels.
        _log.info(
            "the config says float16: on a CPU quantised weights run in bfloat16 (--dtype float16 keeps it)"
        )
        return torch.bfloat16
    return given


def _cpu_kernels(
    settings: Settings, model: ModelDescription, dtype: torch.dtype, device: torch.device
) -> Library | None:
    """Return compiled kernels that run the model, or None if torch or a GPU does.

    Raises:
        OptionError: `--compile on` or `--quantization` needs them, and they cannot be had.
    """
    library, problem = _compiled(settings, model, dtype, device)
    if library is not None:
        return library
    if settings.compile == "on":
        raise OptionError("--compile", f"is on, but {problem}")
    if settings.quantization in ("int8", "int4"):
        raise OptionError(
            "--quantization", f"is {settings.quantization}, which needs compiled kernels, but {problem}"
        )
    if settings.compile == "auto" and device.type == "cpu":
        _log.info("runs without compiled kernels, which are 1.2 to 5 times as fast: %s", problem)
    return None


def _compiled(
    settings: Settings, model: ModelDescription, dtype: torch.dtype, device: torch.device
) -> tuple[Library | None, str]:
    """Return the compiled kernels, or None and the reason why there are none for this model."""
    if settings.compile == "off":
        return None, "--compile is off"
    if device.type != "cpu":
        return None, f"kernels are compiled for a CPU, not for {device.type}"
    try:
        library = compiled_kernels()
    except (CompileError, OSError) as error:
        return None, f"kernels cannot be compiled: {error}"
    problem = compiled_problem(model, dtype, library)
    return (library, "") if problem is None else (None, problem)


def _transformers(
    settings: Settings, name: str, tokenizer: TextTokenizer, folder: Path, device: torch.device
) -> Engine:
    from plumbline.engines.transformers.engine import TransformersEngine

    return TransformersEngine.from_folder(
        folder,
        model=name,
        dtype=_DTYPES.get(settings.dtype),
        device=device,
        trust_remote_code=settings.trust_remote_code,
        max_model_len=settings.max_model_len,
        max_num_running=settings.max_num_seqs,
        max_num_waiting=settings.max_num_waiting,
        max_seqs_per_client=settings.client_limit,
        cache_bytes=settings.kv_cache_bytes or CACHE_BYTES["transformers"],
        grammars=lambda info: _compiler(tokenizer, info.eos_token_ids, info.vocab_size),
    )


def _vllm(settings: Settings, name: str, tokenizer: TextTokenizer, folder: Path) -> Engine:
    from plumbline.engines.vllm.configuration import read_options
    from plumbline.engines.vllm.engine import VllmEngine

    options: dict[str, Any] = {"dtype": settings.dtype, "max_num_seqs": settings.max_num_seqs}
    options["enable_prefix_caching"] = settings.enable_prefix_caching
    if settings.max_model_len is not None:
        options["max_model_len"] = settings.max_model_len
    if settings.device_memory is not None:
        options["gpu_memory_utilization"] = settings.device_memory
    if settings.trust_remote_code:
        options["trust_remote_code"] = True
    return VllmEngine(
        folder,
        model=name,
        eos_token_ids=_eos_token_ids(folder),
        vocabulary="plumbline.server.loading.engines:folder_vocabulary",
        max_num_waiting=settings.max_num_waiting,
        max_seqs_per_client=settings.client_limit,
        cache_bytes=settings.kv_cache_bytes,
        options={**options, **read_options(settings.engine_args)},
        max_adapters=settings.max_loras if settings.loras or settings.lora_dir else 0,
        max_rank=vllm_rank(settings),
        grammars=lambda info: _compiler(tokenizer, info.eos_token_ids, info.vocab_size),
    )


def _eos_token_ids(folder: Path) -> frozenset[int]:
    """Return the ends of sequence that a model folder names, in the generation config or else in the config."""
    for file in ("generation_config.json", "config.json"):
        path = folder / file
        config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        for part in (config, config.get("text_config") or {}):
            found = part.get("eos_token_id")
            if found is not None:
                return frozenset([found] if isinstance(found, int) else found)
    return frozenset()


def folder_vocabulary(folder: str, eos_token_ids: frozenset[int], vocab_size: int) -> Vocabulary:
    """Return the tokens of a model folder, for an engine whose grammars run in another process."""
    return vocabulary(TextTokenizer.from_folder(Path(folder)), eos_token_ids, vocab_size)


def _llama_cpp(settings: Settings, name: str, tokenizer: TextTokenizer, gguf: Path) -> Engine:
    from plumbline.engines.llama_cpp.engine import LlamaCppEngine

    def grammars(info: EngineInfo) -> LarkCompiler | None:
        return _compiler(tokenizer, info.eos_token_ids, info.vocab_size)

    engine = LlamaCppEngine(
        gguf,
        model=name,
        max_model_len=settings.max_model_len,
        max_num_running=settings.max_num_seqs,
        max_num_waiting=settings.max_num_waiting,
        max_batch=max(settings.max_num_batched_tokens or _NUM_BATCHED_TOKENS, settings.max_num_seqs),
        max_seqs_per_client=settings.client_limit,
        cache_bytes=settings.kv_cache_bytes or CACHE_BYTES["llama_cpp"],
        shares_prefixes=settings.enable_prefix_caching,
        options=[*_LLAMA_CPP_DTYPES[settings.dtype], *_offload(settings.device), *settings.engine_args],
        markers=frozenset(tokenizer.added.values()),
        grammars=grammars,
    )
    text = disagreement(tokenizer, engine.tokenize, partial(engine.tokenize, special=True))
    if text is not None:
        raise UnsupportedTokenizerError(
            f"The tokenizer of {gguf.name} cannot be used: transformers and llama.cpp encode {text!r} differently."
        )
    return engine


def _offload(device: str) -> tuple[str, ...]:
    """Return llama.cpp's options for `--device`; by default it takes the devices that it was built for."""
    if device == "auto":
        return ()
    if device == "cpu":
        return ("n_gpu_layers=0",)
    raise OptionError(
        "--device",
        f"must be auto or cpu with llama_cpp, got {device!r}: leave it out, and give --engine-args n_gpu_layers=N "
        "main_gpu=N",
    )


def _compiler(
    tokenizer: TextTokenizer, eos_token_ids: frozenset[int], vocab_size: int
) -> LarkCompiler | None:
    """Return a grammar compiler, or None for a model without an end of sequence, which could never end an answer."""
    return LarkCompiler(vocabulary(tokenizer, eos_token_ids, vocab_size)) if eos_token_ids else None


def vocabulary(tokenizer: TextTokenizer, eos_token_ids: frozenset[int], vocab_size: int) -> Vocabulary:
    """Return the model's tokens for its grammars. A model may have more rows than its tokenizer has tokens."""
    tokens = tokenizer.table + [b""] * (vocab_size - len(tokenizer.table))
    return Vocabulary(
        tokens, tokenizer.special_ids | eos_token_ids, eos_token_ids, tokenizer.encode_generated
    )


def _native_config(model: ModelDescription, settings: Settings, dtype: torch.dtype) -> EngineConfig:
    max_model_len = settings.max_model_len or model.context_length
    block_size = settings.block_size or _BLOCK_SIZE
    block_bytes = model.cache_width * dtype.itemsize * block_size
    blocks_per_sequence = -(-max_model_len // block_size)
    cache_bytes = settings.kv_cache_bytes or CACHE_BYTES["plumbline"]
    num_blocks = min(cache_bytes // block_bytes, blocks_per_sequence * settings.max_num_seqs)
    if num_blocks < blocks_per_sequence:
        needed = blocks_per_sequence * block_bytes
        raise OptionError(
            "--kv-cache-bytes",
            f"must be at least {needed}, which one request of {max_model_len} tokens takes, got {cache_bytes}: give "
            "more, or a smaller --max-model-len",
        )
    return EngineConfig(
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=max(
            settings.max_num_batched_tokens or _NUM_BATCHED_TOKENS, settings.max_num_seqs
        ),
        max_num_waiting=settings.max_num_waiting,
        max_seqs_per_client=settings.client_limit,
        enable_prefix_caching=settings.enable_prefix_caching,
        batch_invariant=settings.batch_invariant,
        speculation=settings.speculation,
    )


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
