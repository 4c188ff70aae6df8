"""Assemble the native engine: core, runner and thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from plumbline.engines.checks import no_adapters
from plumbline.engines.constraints.grammar import GrammarCompiler
from plumbline.engines.native.adapter_table import AdapterTable
from plumbline.engines.native.adapters import NamedAdapters
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.images import ImageReader
from plumbline.engines.native.runner import Runner
from plumbline.engines.threaded.threaded_engine import FEATURES, ThreadedEngine
from plumbline.port.checks import check_media
from plumbline.port.engine import EngineInfo, EngineStats, MediaPrompt

__all__ = ["NativeEngine"]


class NativeEngine(ThreadedEngine):
    """Run models with continuous batching over paged KV blocks."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        *,
        model: str,
        eos_token_ids: frozenset[int],
        grammars: GrammarCompiler | None = None,
        runs_on: str = "",
        cache_bytes: int = 0,
        adapters: AdapterTable | None = None,
        images: ImageReader | None = None,
        stuck_after: float = 120.0,
        rounding_losses: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        info = EngineInfo(
            name="plumbline",
            model=model,
            vocab_size=runner.vocab_size,
            max_model_len=config.max_model_len,
            eos_token_ids=eos_token_ids,
            features=FEATURES | {"return_hidden_states"} | ({"adapters"} if adapters is not None else set()),
            modalities={} if images is None else images.modalities,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            cache_bytes=cache_bytes,
            step_bytes=runner.logits_bytes(config.max_num_seqs),
            max_num_seqs=config.max_num_seqs,
            runs_on=runs_on,
            rounding_losses=rounding_losses,
        )
        self._runner = runner
        self._new_core = partial(
            EngineCore,
            config,
            eos_token_ids=eos_token_ids,
            texts=() if grammars is None else grammars.vocabulary.tokens,
            placeholders=frozenset() if images is None else images.tokens,
        )
        core = self._new_core(runner)
        self._placed_adapters = core.adapters
        self._images = images
        self._named = None if adapters is None else NamedAdapters(adapters, core.adapters)
        super().__init__(
            core,
            info,
            max_in_flight=config.max_num_seqs + config.max_num_waiting,
            max_per_client=config.max_seqs_per_client,
            grammars=grammars,
            adapters=self._named,
            media=images,
            stuck_after=stuck_after,
        )

    async def stop(self) -> None:
        """See `plumbline.port.engine.Engine.stop`."""
        await super().stop()
        if self._images is not None:
            self._images.close()

    def stats(self) -> EngineStats:
        """See `plumbline.port.engine.Engine.stats`."""
        hanging = 0 if self._images is None else self._images.num_hanging
        return msgspec.structs.replace(super().stats(), num_hanging_images=hanging)

    def _renew(self, *, abandoned: bool) -> EngineCore | None:
        """Return a new core; the cache of the old one is used again, unless a thread may still write to it.

        A GPU has no room for a second one, so a step that hangs there ends the process.
        """
        if abandoned and self._runner.device.type != "cpu":
            return None
        self._runner = self._runner.renewed(new_cache=abandoned)
        core = self._new_core(self._runner)
        core.adapters = self._placed_adapters
        return core

    async def expand(self, prompt: MediaPrompt) -> Sequence[int]:
        """See `plumbline.port.engine.Engine.expand`."""
        check_media(prompt, self.info)
        return prompt.token_ids if self._images is None else await self._images.expand(prompt)

    async def load_adapter(self, name: str, folder: Path) -> None:
        """See `plumbline.port.engine.Engine.load_adapter`."""
        if self._named is None:
            raise no_adapters(self._info)
        await self._named.load(name, folder, self.between_steps)

    async def unload_adapter(self, name: str) -> None:
        """See `plumbline.port.engine.Engine.unload_adapter`; returns when no request uses it any more."""
        if self._named is not None:
            await self._named.unload(name, self.between_steps)
