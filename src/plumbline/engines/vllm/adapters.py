"""Load LoRA adapters into vLLM's engine, and count the requests that use them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from plumbline.engines.port import RefusedRequestError

__all__ = ["AdapterSet", "adapter_rank"]

_WEIGHTS = "adapter_model.safetensors"
_NONE = 0
"""The id of requests without an adapter; vLLM's ids begin at 1."""


class AdapterSet:
    """The adapters of one engine.

    In batches that mix rows with and without an adapter, vLLM's kernels for CPUs compute the latter wrongly. There,
    rows without an adapter get one of zeros as soon as another one is loaded.

    Args:
        capacity: adapters that may be loaded; all of them stay in vLLM's memory.
        max_rank: the largest rank of one.
        on_cpu: whether the engine runs on a CPU.
    """

    def __init__(self, capacity: int, max_rank: int, *, on_cpu: bool) -> None:
        self._capacity = capacity
        self._max_rank = max_rank
        self._on_cpu = on_cpu
        self._ids = count(1)
        self._loaded: dict[str, Any] = {}
        self._zeros: Any = None
        self._folder: TemporaryDirectory[str] | None = None
        self._users: Counter[int] = Counter()
        """Requests in flight by the id of their adapter."""
        self._idle: dict[int, asyncio.Event] = {}
        """By the id of an adapter: set when its last request has ended."""

    def enter(self, name: str | None) -> Any:
        """Count a request and return vLLM's description of its adapter, or None; `leave` takes it back.

        Raises:
            RefusedRequestError: no adapter of this name is loaded.
        """
        if name is not None and name not in self._loaded:
            # vLLM's engine would end.
            raise RefusedRequestError(f"no adapter named {name!r} is loaded", "model")
        found = self._zeros if name is None else self._loaded[name]
        self._users[_id(found)] += 1
        return found

    def leave(self, entered: Any) -> None:
        """Count a request no longer."""
        number = _id(entered)
        self._users[number] -= 1
        if not self._users[number]:
            del self._users[number]
            if number in self._idle:
                self._idle[number].set()

    async def load(self, llm: Any, name: str, folder: Path) -> None:
        """Load an adapter; the caller loads and unloads one at a time.

        Raises:
            RefusedRequestError: too many adapters are loaded, or the adapter does not fit the model.
        """
        if name in self._loaded:
            raise RefusedRequestError(f"an adapter named {name!r} is loaded")
        if len(self._loaded) >= self._capacity:
            raise RefusedRequestError(
                f"this server has room for {self._capacity} adapters (--max-loras); unload one first"
            )
        rank = adapter_rank(folder)
        if rank > self._max_rank:
            raise RefusedRequestError(
                f"the adapter has rank {rank}; this server accepts at most {self._max_rank} (--max-lora-rank)"
            )
        if not (folder / _WEIGHTS).is_file():
            raise RefusedRequestError(f"the adapter has no {_WEIGHTS}")
        if self._on_cpu and self._zeros is None:
            self._folder = await asyncio.to_thread(_zero_adapter, folder)
            # A fresh name and id each time: vLLM finds cached prefixes by them.
            self._zeros = await self._add(llm, "none", Path(self._folder.name))
        if self._on_cpu:
            await self._unused(_NONE)
        self._loaded[name] = await self._add(llm, name, folder)

    async def unload(self, llm: Any, name: str) -> None:
        """Unload an adapter once no request uses it; new ones are refused from now on."""
        found = self._loaded.pop(name, None)
        if found is None:
            return
        await self._unused(_id(found))
        await llm.remove_lora(found.lora_int_id)

    async def _add(self, llm: Any, name: str, folder: Path) -> Any:
        from vllm.lora.request import LoRARequest

        number = next(self._ids)
        request = LoRARequest(f"{name}#{number}", number, str(folder))
        try:
            added = await llm.add_lora(request)
        except Exception as error:  # vLLM raises errors of many kinds.
            raise RefusedRequestError(f"vLLM cannot load this adapter: {error}") from error
        if not added:
            raise RefusedRequestError("vLLM cannot load this adapter; its log has the reason")
        return request

    async def _unused(self, number: int) -> None:
        """Wait until no request in flight has this adapter; none may enter any more."""
        if self._users[number]:
            idle = self._idle.setdefault(number, asyncio.Event())
            await idle.wait()
            self._idle.pop(number, None)


def _id(request: Any) -> int:
    return _NONE if request is None else int(request.lora_int_id)


def adapter_rank(folder: Path) -> int:
    """Return the rank of an adapter.

    Raises:
        RefusedRequestError: its configuration cannot be read.
    """
    try:
        config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        return max([int(config["r"]), *(int(rank) for rank in (config.get("rank_pattern") or {}).values())])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedRequestError(
            f"adapter_config.json does not describe a LoRA adapter: {error!r}"
        ) from None


def _zero_adapter(like: Path) -> TemporaryDirectory[str]:
    """Write an adapter that changes nothing, of the same shape as another one."""
    import torch
    from safetensors.torch import load_file, save_file

    found = TemporaryDirectory(prefix="plumbline-lora-")
    folder = Path(found.name)
    (folder / "adapter_config.json").write_bytes((like / "adapter_config.json").read_bytes())
    save_file(
        {name: torch.zeros_like(weight) for name, weight in load_file(like / _WEIGHTS).items()},
        folder / _WEIGHTS,
    )
    return found
