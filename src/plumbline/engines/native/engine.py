"""Assemble the native engine: core, runner and thread."""

from __future__ import annotations

from plumbline.engines.constraints.grammar import GrammarCompiler
from plumbline.engines.native.config import EngineConfig
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.runner import Runner
from plumbline.engines.port import EngineInfo
from plumbline.engines.threaded import FEATURES, ThreadedEngine

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
    ) -> None:
        info = EngineInfo(
            name="plumbline",
            model=model,
            vocab_size=runner.vocab_size,
            max_model_len=config.max_model_len,
            eos_token_ids=eos_token_ids,
            features=FEATURES,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            cache_bytes=cache_bytes,
            max_num_seqs=config.max_num_seqs,
            runs_on=runs_on,
        )
        super().__init__(
            EngineCore(
                config,
                runner,
                eos_token_ids,
                texts=() if grammars is None else grammars.vocabulary.tokens,
            ),
            info,
            max_in_flight=config.max_num_seqs + config.max_num_waiting,
            max_per_client=config.max_seqs_per_client,
            grammars=grammars,
        )
