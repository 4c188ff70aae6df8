"""Stand in for `vllm.platforms`: the machine has no accelerator."""

from __future__ import annotations

from collections.abc import Callable


class _Processor:
    def __getattr__(self, name: str) -> Callable[..., bool]:
        if not name.startswith(("is_", "has_", "supports_")):
            raise AttributeError(name)
        return lambda *arguments: False


current_platform = _Processor()
