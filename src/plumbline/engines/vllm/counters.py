"""Add up what vLLM reports of its iterations."""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

__all__ = ["Counters"]


class Counters(StatLoggerBase):  # type: ignore[misc,unused-ignore]
    """The counters of one engine core. With data parallelism there is one for each."""

    def __init__(self, vllm_config: Any = None, engine_index: int = 0) -> None:
        self.num_running = self.num_waiting = self.num_preemptions = 0
        self.prefix_queries = self.prefix_hits = 0
        self.prompt_tokens = self.generation_tokens = self.num_steps = 0
        self.cache_usage = 0.0
        self.last_step = time.monotonic()

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Add the statistics of an iteration."""
        if scheduler_stats is not None:
            self.num_running = scheduler_stats.num_running_reqs
            self.num_waiting = scheduler_stats.num_waiting_reqs
            self.cache_usage = scheduler_stats.kv_cache_usage
            self.prefix_queries += scheduler_stats.prefix_cache_stats.queries
            self.prefix_hits += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self.num_preemptions += iteration_stats.num_preempted_reqs
            self.prompt_tokens += iteration_stats.num_prompt_tokens
            self.generation_tokens += iteration_stats.num_generation_tokens
        self.num_steps += 1
        self.last_step = time.monotonic()

    def log_engine_initialized(self) -> None:
        """Do nothing: vLLM calls this once at the start, for loggers."""
