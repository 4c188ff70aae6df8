"""Find the largest rank that an adapter of a server may have."""

from __future__ import annotations

from pathlib import Path

from plumbline.engines.adapters import adapter_rank
from plumbline.port.engine import RefusedRequestError
from plumbline.server.settings import OptionError, Settings

__all__ = ["largest_rank", "vllm_rank"]

_LEAST = 16
"""Without `--max-lora-rank`, adapters up to this rank can be loaded later."""
_OF_VLLM = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM has kernels for."""


def largest_rank(settings: Settings) -> int:
    """Return `--max-lora-rank`, or what the adapters of `--lora` need.

    Raises:
        OptionError: an adapter's configuration cannot be read.
    """
    try:
        ranks = [adapter_rank(Path(path)) for _, path in settings.loras]
    except RefusedRequestError as error:
        raise OptionError("--lora", f"has an adapter that cannot be used: {error}") from error
    return settings.max_lora_rank or max([_LEAST, *ranks])


def vllm_rank(settings: Settings) -> int:
    """Return the least rank of vLLM's kernels that is enough.

    Raises:
        OptionError: none is, or an adapter's configuration cannot be read.
    """
    wanted = largest_rank(settings)
    found = next((rank for rank in _OF_VLLM if rank >= wanted), None)
    if found is None:
        raise OptionError(
            "--max-lora-rank", f"must be at most {_OF_VLLM[-1]} with vLLM, and {wanted} is needed"
        )
    return found
