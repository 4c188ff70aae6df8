"""Run a transformers model on a thread, behind the port."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from plumbline.engines.grammar import GrammarCompiler
from plumbline.engines.port import EngineInfo
from plumbline.engines.threaded import FEATURES, ThreadedEngine
from plumbline.engines.transformers.core import TransformersCore

__all__ = ["TransformersEngine"]


class TransformersEngine(ThreadedEngine):
    """Run a transformers model on a thread, behind the port."""

    def __init__(
        self,
        hf_model: Any,
        *,
        model: str,
        max_model_len: int | None = None,
        max_num_running: int = 8,
        max_num_waiting: int = 256,
        max_seqs_per_client: int = 0,
        cache_bytes: int = 1 << 62,
        grammars: Callable[[EngineInfo], GrammarCompiler | None] | None = None,
    ) -> None:
        """Serve `hf_model`, a `PreTrainedModel` with a language modelling head, under the name `model`.

        Above `cache_bytes` of keys and values no further request starts, and the newest one waits again; the oldest
        always runs.
        """
        config = hf_model.config.get_text_config()
        info = EngineInfo(
            name="transformers",
            model=model,
            vocab_size=config.vocab_size,
            max_model_len=max_model_len or getattr(config, "max_position_embeddings", None) or 4096,
            eos_token_ids=_eos_token_ids(hf_model),
            features=FEATURES,
        )
        super().__init__(
            TransformersCore(hf_model, info, max_num_running, cache_bytes),
            info,
            max_in_flight=max_num_running + max_num_waiting,
            max_per_client=max_seqs_per_client,
            grammars=None if grammars is None else grammars(info),
        )

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        model: str,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        max_model_len: int | None = None,
        max_num_running: int = 8,
        max_num_waiting: int = 256,
        max_seqs_per_client: int = 0,
        cache_bytes: int = 1 << 62,
        grammars: Callable[[EngineInfo], GrammarCompiler | None] | None = None,
    ) -> TransformersEngine:
        """Load a model folder; `dtype` None takes the one of its config, `grammars` makes the grammar compiler."""
        from transformers import AutoModelForCausalLM

        hf_model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype if dtype is not None else "auto", local_files_only=True
        )
        return cls(
            hf_model.to(device),
            model=model,
            max_model_len=max_model_len,
            max_num_running=max_num_running,
            max_num_waiting=max_num_waiting,
            max_seqs_per_client=max_seqs_per_client,
            cache_bytes=cache_bytes,
            grammars=grammars,
        )


def _eos_token_ids(hf_model: Any) -> frozenset[int]:
    for config in (getattr(hf_model, "generation_config", None), hf_model.config.get_text_config()):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
