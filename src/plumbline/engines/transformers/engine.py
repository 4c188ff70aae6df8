"""Implement the engine port with a transformers model on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from plumbline.base.end_tokens import folder_ends, token_ids
from plumbline.engines.constraints.grammar import GrammarCompiler
from plumbline.engines.threaded.threaded_engine import FEATURES, ThreadedEngine
from plumbline.engines.transformers.core import TransformersCore
from plumbline.engines.transformers.loading import load_hf_model
from plumbline.engines.transformers.vision import VisionReader
from plumbline.port.checks import check_media
from plumbline.port.engine import EngineInfo, MediaPrompt

__all__ = ["TransformersEngine"]


class TransformersEngine(ThreadedEngine):
    """Run a transformers model on a thread."""

    def __init__(
        self,
        hf_model: Any,
        *,
        model: str,
        processor: Any | None = None,
        eos_token_ids: frozenset[int] | None = None,
        max_model_len: int | None = None,
        max_num_running: int = 8,
        max_num_waiting: int = 256,
        max_seqs_per_client: int = 0,
        cache_bytes: int = 1 << 62,
        grammars: Callable[[EngineInfo], GrammarCompiler | None] | None = None,
        stuck_after: float = 120.0,
    ) -> None:
        """Serve `hf_model`, a `PreTrainedModel` with a language modelling head, under the name `model`.

        With a `processor` prompts may have images and, where it reads them, videos. Without `eos_token_ids` the ends of
        sequence are those of the model's configs.

        Above `cache_bytes` of keys and values no further request starts, and the newest one waits again; the oldest
        always runs.
        """
        config = hf_model.config.get_text_config()
        self._media = None if processor is None else VisionReader(processor, hf_model)
        info = EngineInfo(
            name="transformers",
            model=model,
            vocab_size=config.vocab_size,
            max_model_len=max_model_len or getattr(config, "max_position_embeddings", None) or 4096,
            eos_token_ids=_eos_token_ids(hf_model) if eos_token_ids is None else eos_token_ids,
            features=FEATURES,
            modalities={} if self._media is None else dict(self._media.placeholders),
            cache_bytes=cache_bytes,
            max_num_seqs=max_num_running,
            runs_on=f"{hf_model.device} in {str(hf_model.dtype).removeprefix('torch.')}",
        )
        self._new_core = partial(TransformersCore, hf_model, info, max_num_running, cache_bytes, self._media)
        super().__init__(
            self._new_core(),
            info,
            max_in_flight=max_num_running + max_num_waiting,
            max_per_client=max_seqs_per_client,
            grammars=None if grammars is None else grammars(info),
            stuck_after=stuck_after,
        )

    def _renew(self, *, abandoned: bool) -> TransformersCore:
        """Return a new core; each request has a cache of its own."""
        return self._new_core()

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        model: str,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        trust_remote_code: bool = False,
        more_ends: frozenset[int] = frozenset(),
        max_model_len: int | None = None,
        max_num_running: int = 8,
        max_num_waiting: int = 256,
        max_seqs_per_client: int = 0,
        cache_bytes: int = 1 << 62,
        grammars: Callable[[EngineInfo], GrammarCompiler | None] | None = None,
        stuck_after: float = 120.0,
    ) -> TransformersEngine:
        """Load a model folder; `dtype` None takes the type of its config, `grammars` makes the grammar compiler.

        `more_ends` are tokens that end an answer besides those that the files of the model name.

        Raises:
            TransformersError: transformers cannot load the model.
        """
        loaded = load_hf_model(folder, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        return cls(
            loaded.hf_model,
            processor=loaded.processor,
            eos_token_ids=folder_ends(folder) | more_ends,
            model=model,
            max_model_len=max_model_len,
            max_num_running=max_num_running,
            max_num_waiting=max_num_waiting,
            max_seqs_per_client=max_seqs_per_client,
            cache_bytes=cache_bytes,
            grammars=grammars,
            stuck_after=stuck_after,
        )

    async def expand(self, prompt: MediaPrompt) -> Sequence[int]:
        """See `plumbline.port.engine.Engine.expand`; runs the model's processor in a worker thread."""
        check_media(prompt, self.info)
        if self._media is None:
            return prompt.token_ids
        return await asyncio.to_thread(self._media.expand, prompt)


def _eos_token_ids(hf_model: Any) -> frozenset[int]:
    configs = (getattr(hf_model, "generation_config", None), hf_model.config.get_text_config())
    found = (getattr(config, "eos_token_id", None) for config in configs)
    return frozenset().union(*(token_ids(ids, "eos_token_id") for ids in found))
