"""Size the cache of our engine, and refuse one that does not fit the device."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from plumbline.engines.native.engine_config import GPU_BLOCK_SIZE, EngineConfig
from plumbline.engines.native.graphs import graphs_bytes
from plumbline.engines.native.models import ModelDescription
from plumbline.server.loading.adapter_ranks import largest_rank
from plumbline.server.loading.memory import device_bytes, weight_bytes
from plumbline.server.loading.native.native_model import NativeModel, device_of, native_dtype
from plumbline.server.settings import OptionError, Settings
from plumbline_conformance.console.sizes import size_text

__all__ = [
    "CACHE_BYTES",
    "DEVICE_SHARE",
    "NUM_BATCHED_TOKENS",
    "adapter_bytes",
    "cache_bytes",
    "check_device_memory",
    "check_memory",
    "engine_config",
    "gpu_cache_bytes",
    "held_bytes",
    "loaded_bytes",
    "num_batched_tokens",
    "num_snapshots",
    "recorded_bytes",
]

_log = logging.getLogger("plumbline.engines")

CACHE_BYTES: Mapping[str, int] = MappingProxyType(
    {"plumbline": 256 * 1024**2, "llama_cpp": 1024**3, "transformers": 4 * 1024**3, "vllm": 4 * 1024**3}
)
"""Bytes of keys and values by engine, unless `--kv-cache-bytes` is given. Ours allocates them at the start,
llama.cpp and transformers what requests need. vLLM takes as many on a CPU. On a GPU it takes what its weights leave,
and so does ours for the only model of a server."""
DEVICE_SHARE = 0.9
"""The part of a GPU's memory for weights and cache, unless `--device-memory` is given."""
NUM_BATCHED_TOKENS = 1024
"""Tokens in a step of our engine and llama.cpp."""
_SNAPSHOT_BYTES = 256 * 1024**2
"""Of states that are kept for the prefix cache, between the fewest and the most."""
_FEWEST_SNAPSHOTS, _MOST_SNAPSHOTS = 4, 64
_BLOCK_SIZE = 16
"""Tokens in a block of a CPU's cache."""


def cache_bytes(settings: Settings, engine: str, gguf: Path | None) -> int:
    """Return the bytes of keys and values that an engine takes; a GGUF file gets the same on ours and on llama.cpp."""
    return settings.kv_cache_bytes or CACHE_BYTES["llama_cpp" if gguf is not None else engine]


def gpu_cache_bytes(settings: Settings, device: torch.device, taken: int) -> int:
    """Return the bytes of keys and values that a GPU has room for, beside what else will be taken of it.

    What `--device-memory` leaves stays free for the intermediate results of a step, whatever other processes hold.
    """
    # Loading leaves memory to torch that nothing uses.
    torch.cuda.empty_cache()
    free, there = torch.cuda.mem_get_info(device)
    spare = there * (1 - (settings.device_memory or DEVICE_SHARE))
    return max(int(free - spare) - taken, 0)


def check_device_memory(settings: Settings, device: torch.device) -> None:
    """Refuse `--device-memory` where it has no effect.

    Raises:
        OptionError: there is no GPU, or the bytes of the cache are given, as they are for several models.
    """
    if settings.device_memory is None:
        return
    if device.type != "cuda":
        raise OptionError(
            "--device-memory",
            f"is a part of a GPU's memory, and the model is on {device}: give --kv-cache-bytes",
        )
    if settings.kv_cache_bytes is not None:
        raise OptionError(
            "--device-memory",
            "has no effect on the plumbline engine where the bytes of the cache are given, and each of several "
            "models has as many: give --kv-cache-bytes alone",
        )


def adapter_bytes(settings: Settings, widths: Iterable[int], dtype: torch.dtype) -> int:
    """Return the most bytes that the adapters of a model take on a GPU: as they were read, and in the kernels' stacks.

    Args:
        settings: of the model.
        widths: inputs and outputs of each layer that has places for them.
        dtype: of the model.

    Raises:
        OptionError: an adapter's configuration cannot be read.
    """
    if not (settings.loras or settings.lora_dir):
        return 0
    return 2 * settings.max_loras * largest_rank(settings) * sum(widths) * dtype.itemsize


def engine_config(
    model: NativeModel, settings: Settings, dtype: torch.dtype, room: int | None = None
) -> EngineConfig:
    """Return the limits of our engine for a model.

    Args:
        model: to serve.
        settings: of the server.
        dtype: of keys and values.
        room: bytes of keys and values on a GPU unless `--kv-cache-bytes` says how many; None on a CPU.

    Raises:
        OptionError: the cache does not hold one request.
    """
    described = model.description
    block_size = settings.block_size or (_BLOCK_SIZE if room is None else GPU_BLOCK_SIZE)
    block_bytes = described.cache_width * dtype.itemsize * block_size
    size = settings.kv_cache_bytes or room
    if size is None:
        size = cache_bytes(settings, "plumbline", None if model.gguf is None else model.gguf.file)
    max_model_len = settings.max_model_len or described.context_length
    if model.gguf is not None and settings.max_model_len is None:
        max_model_len = _held(size // block_bytes * block_size, max_model_len)
    blocks_per_sequence = -(-max_model_len // block_size)
    num_blocks = min(size // block_bytes, blocks_per_sequence * settings.max_num_seqs)
    if num_blocks < blocks_per_sequence:
        needed = blocks_per_sequence * block_bytes
        if room is not None and settings.kv_cache_bytes is None:
            fits = room // block_bytes * block_size
            # Without room for a block, no length would do.
            advice = (
                f"{fits} tokens fit (--max-model-len {fits})"
                if fits
                else "no context fits: give a smaller --max-num-seqs, a model of fewer bits"
            )
            raise OptionError(
                "--max-model-len",
                f"is {max_model_len}, and a request of so many tokens takes {size_text(needed)} of cache where the "
                f"GPU has {size_text(room)} left beside the weights: {advice}, or give a larger --device-memory",
            )
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
        max_num_batched_tokens=num_batched_tokens(settings),
        max_num_waiting=settings.max_num_waiting,
        max_seqs_per_client=settings.client_limit,
        enable_prefix_caching=settings.enable_prefix_caching,
        num_snapshots=num_snapshots(settings, described, dtype),
        batch_invariant=settings.batch_invariant,
        speculation=settings.speculation,
    )


def num_batched_tokens(settings: Settings) -> int:
    """Return the most tokens of a step of our engine."""
    return max(settings.max_num_batched_tokens or NUM_BATCHED_TOKENS, settings.max_num_seqs)


def num_snapshots(settings: Settings, model: ModelDescription, dtype: torch.dtype) -> int:
    """Return how many states of prompts' beginnings are kept for the prefix cache of a model with states."""
    size = model.state_bytes(dtype.itemsize)
    if not size or not settings.enable_prefix_caching:
        return 0
    return max(_FEWEST_SNAPSHOTS, min(_MOST_SNAPSHOTS, _SNAPSHOT_BYTES // size))


def held_bytes(model: ModelDescription, config: EngineConfig, dtype: torch.dtype) -> int:
    """Return the bytes of the cache of a model: keys and values, and the states of sequences."""
    tokens = config.num_blocks * config.block_size
    held = tokens * model.cache_width * dtype.itemsize
    return held + (config.max_num_seqs + config.num_snapshots) * model.state_bytes(dtype.itemsize)


def loaded_bytes(settings: Settings, model: NativeModel, folder: Path, dtype: torch.dtype) -> int:
    """Return about how many bytes the weights of a model take, before they are read.

    A GPU keeps most quantised ones as they are; a CPU may leave them in their files.
    """
    file = model.gguf
    stored = weight_bytes(folder, None if file is None else file.file)
    if device_of(settings.device).type != "cuda" or model.description.stored is not None:
        return stored
    if file is not None:
        return file.device_bytes(dtype.itemsize)
    return stored * dtype.itemsize // model.description.dtype.itemsize


def recorded_bytes(settings: Settings, model: NativeModel) -> int:
    """Return the bytes of the CUDA graphs of a model's steps; 0 where there are none."""
    if not settings.cuda_graphs or device_of(settings.device).type != "cuda":
        return 0
    itemsize = native_dtype(settings, model).itemsize
    return graphs_bytes(settings.max_num_seqs, model.description.vocab_size, itemsize)


def check_memory(cache: int, weights: int, graphs: int, device: torch.device) -> None:
    """Refuse what is larger than all the memory there is, before weights are read.

    A CPU would miss pages when requests use them, and a GPU would fail when weights are read or graphs recorded.

    Args:
        cache: bytes of keys, values and states.
        weights: at least the bytes of weights; 0 on a CPU, which may leave them in their files.
        graphs: bytes of the graphs of steps.
        device: where they go.

    Raises:
        OptionError: they do not fit.
    """
    if cache + weights + graphs > (there := device_bytes(device)):
        others = [f"{size_text(weights)} of weights"] if weights else []
        others += [f"{size_text(graphs)} of CUDA graphs (--no-cuda-graphs)"] if graphs else []
        beside = f" beside {' and '.join(others)}" if others else ""
        if weights > there:
            # A number of 8 bits with its scales takes 8.5, one of 4 bits 4.5.
            bits = next((bits for bits in (8, 4) if weights * (bits + 0.5) / 16 < there), None)
            less = f"a checkpoint of it in {bits} bits" if bits else "a smaller model"
            raise OptionError(
                "--model",
                f"has {size_text(weights)} of weights, and {device} has {size_text(there)}: give {less}, or --engine "
                "vllm on several GPUs",
            )
        raise OptionError(
            "--kv-cache-bytes",
            f"makes a cache of {size_text(cache)}{beside}, and {device} has {size_text(there)}: give less, or a "
            "smaller --max-num-seqs",
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
