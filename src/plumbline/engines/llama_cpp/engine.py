"""Assemble the llama.cpp engine: library, core and thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from plumbline.engines.constraints.grammar import GrammarCompiler
from plumbline.engines.llama_cpp.core import LlamaCppCore
from plumbline.engines.llama_cpp.library import LlamaLibrary
from plumbline.engines.llama_cpp.options import LlamaCppError, read_options
from plumbline.engines.threaded.threaded_engine import FEATURES, ThreadedEngine
from plumbline.port.engine import EngineInfo

__all__ = ["LlamaCppEngine", "LlamaCppError"]


class LlamaCppEngine(ThreadedEngine):
    """Run a GGUF file with continuous batching in llama.cpp.

    Args:
        file: the GGUF file.
        model: the name of the model.
        max_model_len: tokens of prompt and output; None takes what the model was trained for, if the cache holds it.
        max_num_running: requests that run at a time.
        max_num_waiting: requests that wait; one more is refused.
        max_batch: tokens of a step.
        max_seqs_per_client: running and waiting requests of one client; 0 sets no limit.
        cache_bytes: keys and values.
        shares_prefixes: whether requests share what others have computed.
        options: `KEY=VALUE` texts, parameters of llama.cpp.
        more_ends: tokens that end an answer besides those that the file names.
        grammars: makes the grammar compiler for the facts of the engine.
        stuck_after: see `ThreadedEngine`.

    Raises:
        LlamaCppError: llama.cpp is missing, cannot load the file, or has no such parameter.
    """

    def __init__(
        self,
        file: Path,
        *,
        model: str,
        max_model_len: int | None = None,
        max_num_running: int = 64,
        max_num_waiting: int = 256,
        max_batch: int = 512,
        max_seqs_per_client: int = 0,
        cache_bytes: int = 1 << 30,
        shares_prefixes: bool = True,
        options: Sequence[str] = (),
        more_ends: frozenset[int] = frozenset(),
        grammars: Callable[[EngineInfo], GrammarCompiler | None] | None = None,
        stuck_after: float = 120.0,
    ) -> None:
        self._library = LlamaLibrary(
            file,
            num_running=max_num_running,
            max_batch=max_batch,
            max_model_len=max_model_len,
            cache_bytes=cache_bytes,
            options=read_options(options),
        )
        self._library.eos_token_ids |= more_ends
        info = EngineInfo(
            name="llama.cpp",
            model=model,
            vocab_size=self._library.vocab_size,
            max_model_len=self._library.max_model_len,
            eos_token_ids=self._library.eos_token_ids,
            features=FEATURES,
            cache_bytes=cache_bytes,
            max_num_seqs=self._library.max_running,
        )
        self._new_core = partial(LlamaCppCore, self._library, shares_prefixes=shares_prefixes)
        super().__init__(
            self._new_core(),
            info,
            max_in_flight=self._library.max_running + max_num_waiting,
            max_per_client=max_seqs_per_client,
            grammars=None if grammars is None else grammars(info),
            stuck_after=stuck_after,
        )

    def _renew(self, *, abandoned: bool) -> LlamaCppCore | None:
        """Return a new core, unless a thread is still within llama.cpp, which has one cache."""
        if abandoned:
            return None
        self._library.clear()
        return self._new_core()

    async def stop(self) -> None:
        """End the thread, abort what runs and free the model. Idempotent."""
        await super().stop()
        if not self.has_hanging_thread:  # It would use freed memory.
            self._library.close()
