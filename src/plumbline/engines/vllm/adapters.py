"""Load LoRA adapters into vLLM's engine, and count the requests that use them."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from plumbline.engines.adapters import CONFIG, WEIGHTS, AdapterUsers, adapter_rank
from plumbline.port.engine import RefusedRequestError

__all__ = ["AdapterSet"]

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
        self._users = AdapterUsers()

    def enter(self, name: str | None) -> Any:
        """Count a request and return vLLM's description of its adapter, or None; `leave` takes it back.

        Raises:
            RefusedRequestError: no adapter of this name is loaded.
        """
        if name is not None and name not in self._loaded:
            # vLLM's engine would end.
            raise RefusedRequestError(f"no adapter named {name!r} is loaded", "model")
        found = self._zeros if name is None else self._loaded[name]
        self._users.enter(_id(found))
        return found

    def leave(self, entered: Any) -> None:
        """Count a request no longer."""
        self._users.leave(_id(entered))

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
        if not (folder / WEIGHTS).is_file():
            raise RefusedRequestError(f"the adapter has no {WEIGHTS}")
        if self._on_cpu and self._zeros is None:
            self._folder = await asyncio.to_thread(_zero_adapter, folder)
            # A fresh name and id each time: vLLM finds cached prefixes by them.
            self._zeros = await self._add(llm, "none", Path(self._folder.name))
        if self._on_cpu:
            await self._users.unused(_NONE)
        self._loaded[name] = await self._add(llm, name, folder)

    async def unload(self, llm: Any, name: str) -> None:
        """Unload an adapter once no request uses it; new ones are refused from now on."""
        found = self._loaded.pop(name, None)
        if found is None:
            return
        await self._users.unused(_id(found))
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


def _id(request: Any) -> int:
    return _NONE if request is None else int(request.lora_int_id)


def _zero_adapter(like: Path) -> TemporaryDirectory[str]:
    """Write an adapter that changes nothing, of the same shape as another one."""
    import torch
    from safetensors.torch import load_file, save_file

    found = TemporaryDirectory(prefix="plumbline-lora-")
    folder = Path(found.name)
    (folder / CONFIG).write_bytes((like / CONFIG).read_bytes())
    save_file(
        {name: torch.zeros_like(weight) for name, weight in load_file(like / WEIGHTS).items()},
        folder / WEIGHTS,
    )
    return found
