"""Choose the engine of a model, with the reason, and build it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch

from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.base.end_tokens import folder_ends
from plumbline.engines.admission import Admission
from plumbline.engines.constraints.grammar import GrammarVocabulary, LarkCompiler
from plumbline.engines.filters.processors import load_processors
from plumbline.engines.native.models import UnsupportedModelError
from plumbline.engines.native.models.loading.rounding_loss import TEXTS
from plumbline.engines.threaded.threaded_engine import ThreadedEngine
from plumbline.port.engine import Engine, EngineInfo
from plumbline.server.loading.adapter_ranks import vllm_rank
from plumbline.server.loading.model_files import given_ends
from plumbline.server.loading.native.gpus import beyond_one_gpu, num_gpus
from plumbline.server.loading.native.memory import NUM_BATCHED_TOKENS, cache_bytes
from plumbline.server.loading.native.native_loader import build_native
from plumbline.server.loading.native.native_model import (
    DTYPES,
    compiled,
    describe_model,
    device_of,
    native_dtype,
)
from plumbline.server.settings import OPTIONS, OptionError, Settings

__all__ = [
    "EngineChoice",
    "WithAdmission",
    "build_engine",
    "choose_engine",
    "folder_vocabulary",
    "vocabulary",
]

_log = logging.getLogger("plumbline.engines")

_LLAMA_CPP_DTYPES: dict[str, tuple[str, ...]] = {
    "auto": (),
    # Its fast attention computes with half precision.
    "float32": ("type_k=f32", "type_v=f32", "flash_attn_type=0"),
    "float16": ("type_k=f16", "type_v=f16"),
    "bfloat16": ("type_k=bf16", "type_v=bf16"),
}
"""llama.cpp's types of keys and values by `--dtype`; the weights have the file's."""


_CPU_BUILD = "the installed llama-cpp-python was built for CPUs, as pip's wheels are"


class EngineChoice(msgspec.Struct, frozen=True):
    """The engine of a model: `plumbline`, `vllm`, `transformers` or `llama_cpp`, and why."""

    name: str
    reason: str


def choose_engine(settings: Settings, folder: Path, gguf: Path | None) -> EngineChoice:
    """Choose the engine that `--engine` names, or one that fits the model.

    GGUF files run on our own engine, or on llama.cpp if ours lacks something (`_for_file`). Of other models ours runs
    what it supports, vLLM the rest where it is installed, transformers otherwise.

    Args:
        settings: with `engine`.
        folder: the model's.
        gguf: its GGUF file, if it is one.

    Raises:
        OptionError: the engine does not run such a file, or lacks an option that was given.
    """
    if gguf is not None and settings.engine not in ("auto", "plumbline", "llama_cpp"):
        raise OptionError(
            "--engine", f"must be llama_cpp, plumbline or auto for a GGUF file, got {settings.engine}"
        )
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
        return _for_file(settings, folder, gguf)
    try:
        model = describe_model(settings, folder, None)
        described = model.description
        if model.no_images:
            raise UnsupportedModelError(
                f"of this model it runs the text alone, and not images: {model.no_images}"
            )
    except UnsupportedModelError as error:
        if find_spec("vllm") is not None:
            return EngineChoice("vllm", f"ours does not run this model, and vLLM is installed: {error}")
        faster = " (pip install vllm: it may run it, and faster)" if num_gpus(settings) else ""
        return EngineChoice("transformers", f"ours does not run this model{faster}: {error}")
    beyond = beyond_one_gpu(settings, model, folder)
    if beyond is not None and find_spec("vllm") is not None:
        return EngineChoice("vllm", beyond.reason)
    if beyond is not None and not beyond.fits:
        raise OptionError(
            "--engine",
            f"is auto, and {beyond.reason}: pip install vllm, which shares a model among GPUs, or give a "
            "checkpoint of fewer bits (FP8 or AWQ)",
        )
    more = "" if beyond is None else f"; {beyond.reason} (pip install vllm: it uses all)"
    quantised = "" if described.stored is None else " and reads its quantised weights"
    images = "" if model.images is None else " and reads its images"
    return EngineChoice("plumbline", f"it supports this model{quantised}{images}{more}")


def _for_file(settings: Settings, folder: Path, gguf: Path) -> EngineChoice:
    """Choose the engine of a GGUF file: ours, unless llama.cpp is there and ours lacks something."""
    for option in OPTIONS:
        takes = option.about.engines or ("plumbline", "llama_cpp")
        if getattr(settings, option.field) != option.default and ("plumbline" in takes) != (
            "llama_cpp" in takes
        ):
            name = "plumbline" if "plumbline" in takes else "llama_cpp"
            return EngineChoice(name, f"{option.label} is one of its options")
    try:
        model = describe_model(settings, folder, gguf)
    except UnsupportedModelError as error:
        return EngineChoice("llama_cpp", f"ours does not run this file: {error}")
    assert model.gguf is not None
    if find_spec("llama_cpp") is None:
        return EngineChoice("plumbline", "it supports this file")
    if num_gpus(settings) and not _llama_cpp_uses_gpus():
        return EngineChoice("plumbline", f"it supports this file, and {_CPU_BUILD}")
    if model.gguf.widened:
        names = _kind_names(model.gguf.widened)
        return EngineChoice("llama_cpp", f"ours would widen the weights in {names} to 16 bits")
    device = device_of(settings.device)
    if device.type == "cpu":
        library, problem = compiled(settings, model.description, native_dtype(settings, model), device)
        if library is None:
            return EngineChoice("llama_cpp", f"ours is slower without compiled kernels: {problem}")
    return EngineChoice("plumbline", "it supports this file")


def _llama_cpp_uses_gpus() -> bool:
    """Return whether the installed llama.cpp was built for GPUs."""
    from plumbline.engines.llama_cpp.options import load_llama

    return bool(load_llama().llama_supports_gpu_offload())


def _kind_names(kinds: Iterable[int]) -> str:
    """Return the names of types of weights."""
    import gguf

    known = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
    return ", ".join(known.get(kind, str(kind)) for kind in sorted(kinds))


def build_engine(
    choice: EngineChoice,
    settings: Settings,
    name: str,
    tokenizer: Tokens,
    folder: Path,
    gguf: Path | None,
) -> WithAdmission:
    """Load the model into its engine; the caller starts it.

    Raises:
        OptionError: the settings and the model do not fit.
        UnsupportedModelError, UnsupportedTokenizerError, WeightsError, LlamaCppError: the model cannot be served.
    """
    engine = _built(choice, settings, name, tokenizer, folder, gguf)
    engine.admission.max_queue_seconds = settings.max_queue_seconds
    if isinstance(engine, ThreadedEngine):
        try:
            engine.processors = load_processors(settings.logits_processors)
        except ValueError as error:
            raise OptionError("--logits-processor", str(error)) from error
        if engine.processors:
            _log.info("requests may name the logits processors %s", ", ".join(sorted(engine.processors)))
    return engine


class Tokens(Protocol):
    """The tokens of a model; see `TextTokenizer`."""

    table: list[bytes]
    special_ids: frozenset[int]
    added: dict[str, int]

    def encode_generated(self, text: str) -> list[int]:
        """Encode text as the model generates it."""
        ...

    def encode_rendered(self, rendered: str) -> list[int]:
        """Encode text in which added tokens are themselves."""
        ...

    def encode_prompt(self, text: str) -> list[int]:
        """Encode text with the tokens that the tokenizer sets around it."""
        ...


class WithAdmission(Engine, Protocol):
    """An engine of this process, which admits its requests."""

    admission: Admission


def _built(
    choice: EngineChoice,
    settings: Settings,
    name: str,
    tokenizer: Tokens,
    folder: Path,
    gguf: Path | None,
) -> WithAdmission:
    device = device_of(settings.device)
    if device.type == "cpu":
        # Two intra-op threads are slower than one for the small matrices of a decode step, and the event loop needs
        # a core of its own.
        torch.set_num_threads(1)
    if choice.name == "llama_cpp":
        assert gguf is not None
        if settings.device == "auto" and num_gpus(settings) and not _llama_cpp_uses_gpus():
            _log.warning("the model runs on the CPU, and not on a GPU: %s", _CPU_BUILD)
        return _llama_cpp(settings, name, tokenizer, gguf)
    if choice.name == "vllm":
        return _vllm(settings, name, tokenizer, folder)
    if choice.name == "transformers":
        return _transformers(settings, name, tokenizer, folder, device)
    return build_native(
        settings,
        name,
        folder,
        gguf,
        partial(_compiler, tokenizer),
        tokenizer.encode_rendered,
        given_ends(settings, tokenizer.added),
        {kind: tokenizer.encode_prompt(text) for kind, text in TEXTS.items()}
        if settings.quantization == "int4"
        else {},
    )


def _transformers(
    settings: Settings, name: str, tokenizer: Tokens, folder: Path, device: torch.device
) -> WithAdmission:
    from plumbline.engines.transformers.engine import TransformersEngine

    return TransformersEngine.from_folder(
        folder,
        model=name,
        dtype=DTYPES.get(settings.dtype),
        device=device,
        trust_remote_code=settings.trust_remote_code,
        more_ends=given_ends(settings, tokenizer.added),
        max_model_len=settings.max_model_len,
        max_num_running=settings.max_num_seqs,
        max_num_waiting=settings.max_num_waiting,
        max_seqs_per_client=settings.client_limit,
        cache_bytes=cache_bytes(settings, "transformers", None),
        stuck_after=settings.stuck_after,
        grammars=lambda info: _compiler(tokenizer, info.eos_token_ids, info.vocab_size),
    )


def _vllm(settings: Settings, name: str, tokenizer: Tokens, folder: Path) -> WithAdmission:
    from plumbline.engines.vllm.configuration import read_options
    from plumbline.engines.vllm.engine import VllmEngine

    options: dict[str, Any] = {"dtype": settings.dtype, "max_num_seqs": settings.max_num_seqs}
    options["enable_prefix_caching"] = settings.enable_prefix_caching
    if settings.max_model_len is not None:
        options["max_model_len"] = settings.max_model_len
    if (count := num_gpus(settings)) > 1:
        # Heads are shared evenly, so their number must be a multiple of it.
        options["tensor_parallel_size"] = 1 << count.bit_length() - 1
    if settings.device_memory is not None:
        options["gpu_memory_utilization"] = settings.device_memory
    if settings.trust_remote_code:
        options["trust_remote_code"] = True
    return VllmEngine(
        folder,
        model=name,
        eos_token_ids=folder_ends(folder) | given_ends(settings, tokenizer.added),
        vocabulary="plumbline.server.loading.engines:folder_vocabulary",
        max_num_waiting=settings.max_num_waiting,
        max_seqs_per_client=settings.client_limit,
        cache_bytes=settings.kv_cache_bytes,
        options={**options, **read_options(settings.engine_args)},
        max_adapters=settings.max_loras if settings.loras or settings.lora_dir else 0,
        max_rank=vllm_rank(settings),
        grammars=lambda info: _compiler(tokenizer, info.eos_token_ids, info.vocab_size),
    )


def folder_vocabulary(folder: str, eos_token_ids: frozenset[int], vocab_size: int) -> GrammarVocabulary:
    """Return the tokens of a model folder, for an engine whose grammars run in another process."""
    return vocabulary(TextTokenizer.from_folder(Path(folder)), eos_token_ids, vocab_size)


def _llama_cpp(settings: Settings, name: str, tokenizer: Tokens, gguf: Path) -> WithAdmission:
    from plumbline.engines.llama_cpp.engine import LlamaCppEngine

    def grammars(info: EngineInfo) -> LarkCompiler | None:
        return _compiler(tokenizer, info.eos_token_ids, info.vocab_size)

    return LlamaCppEngine(
        gguf,
        model=name,
        max_model_len=settings.max_model_len,
        max_num_running=settings.max_num_seqs,
        max_num_waiting=settings.max_num_waiting,
        max_batch=max(settings.max_num_batched_tokens or NUM_BATCHED_TOKENS, settings.max_num_seqs),
        max_seqs_per_client=settings.client_limit,
        cache_bytes=cache_bytes(settings, "llama_cpp", gguf),
        shares_prefixes=settings.enable_prefix_caching,
        options=[*_LLAMA_CPP_DTYPES[settings.dtype], *_offload(settings.device), *settings.engine_args],
        more_ends=given_ends(settings, tokenizer.added),
        grammars=grammars,
        stuck_after=settings.stuck_after,
    )


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


def _compiler(tokenizer: Tokens, eos_token_ids: frozenset[int], vocab_size: int) -> LarkCompiler | None:
    """Return a grammar compiler, or None for a model without an end of sequence, which could never end an answer."""
    return LarkCompiler(vocabulary(tokenizer, eos_token_ids, vocab_size)) if eos_token_ids else None


def vocabulary(tokenizer: Tokens, eos_token_ids: frozenset[int], vocab_size: int) -> GrammarVocabulary:
    """Return the model's tokens for its grammars. A model may have more rows than its tokenizer has tokens."""
    tokens = tokenizer.table + [b""] * (vocab_size - len(tokenizer.table))
    return GrammarVocabulary(
        tokens, tokenizer.special_ids | eos_token_ids, eos_token_ids, tokenizer.encode_generated
    )
