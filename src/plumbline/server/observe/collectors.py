"""Read the numbers of engines, of the store and of held memory at each scrape of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from plumbline.port.engine import Engine, EngineStats
from plumbline.server.store.interface import Store

__all__ = ["AliasRegistry", "EngineCollector", "HeldCollector", "HeldMemory", "StoreCollector"]

# Our name of a histogram or counter -> vLLM's name for the same numbers.
_ALIASES = {
    "plumbline_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "plumbline_inter_token_latency_seconds": "vllm:inter_token_latency_seconds",
    "plumbline_e2e_request_latency_seconds": "vllm:e2e_request_latency_seconds",
    "plumbline_request_prompt_tokens": "vllm:request_prompt_tokens",
    "plumbline_request_generation_tokens": "vllm:request_generation_tokens",
    "plumbline_request_queue_time_seconds": "vllm:request_queue_time_seconds",
    "plumbline_request_prefill_time_seconds": "vllm:request_prefill_time_seconds",
    "plumbline_request_decode_time_seconds": "vllm:request_decode_time_seconds",
    "plumbline_request_success": "vllm:request_success",
}


class HeldMemory(Protocol):
    """Bytes that clients make the process hold, and how many these may be."""

    held: int
    limit: int


class HeldCollector(Collector):
    """Shows what clients make the process hold."""

    def __init__(self, budgets: Mapping[str, HeldMemory]) -> None:
        self._budgets = budgets

    def collect(self) -> Iterable[Metric]:
        """Return the gauges."""
        held = GaugeMetricFamily(
            "plumbline_held_bytes", "Bytes of clients that this process holds, by kind", labels=["kind"]
        )
        limit = GaugeMetricFamily(
            "plumbline_held_bytes_limit", "Bytes of this kind that all clients may have", labels=["kind"]
        )
        for kind, budget in self._budgets.items():
            held.add_metric([kind], budget.held)
            limit.add_metric([kind], budget.limit)
        yield held
        yield limit


_GAUGES: tuple[tuple[str, str, str, Callable[[EngineStats], float]], ...] = (
    (
        "num_requests_running",
        "num_requests_running",
        "Requests in the running batch",
        lambda stats: stats.num_running,
    ),
    (
        "num_requests_waiting",
        "num_requests_waiting",
        "Requests in the queue",
        lambda stats: stats.num_waiting,
    ),
    (
        "kv_cache_usage_ratio",
        "kv_cache_usage_perc",
        "KV blocks in use, 0 to 1",
        lambda stats: stats.kv_cache_usage,
    ),
)
"""Our name, vLLM's name, the help and the value of each gauge of an engine."""
_COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("prompt_tokens", "Prompt tokens computed or found cached", lambda stats: stats.prompt_tokens),
    ("generation_tokens", "Tokens generated", lambda stats: stats.generation_tokens),
    ("num_preemptions", "Requests preempted", lambda stats: stats.num_preemptions),
    ("prefix_cache_queries", "Tokens looked up", lambda stats: stats.prefix_cache_queries),
    ("prefix_cache_hits", "Tokens found cached", lambda stats: stats.prefix_cache_hits),
)


_FAILURES: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    (
        "plumbline_engine_failed_steps",
        "Steps of the engine that raised an error",
        lambda stats: stats.num_failed_steps,
    ),
    (
        "plumbline_engine_restarts",
        "New cores after the engine's thread had died or hung, and new processes after its process had ended",
        lambda stats: stats.num_restarts,
    ),
    (
        "plumbline_engine_late_variants",
        "Variants of GPU kernels that were compiled while requests waited; each is a defect",
        lambda stats: float(stats.late_variants),
    ),
)


class EngineCollector(Collector):
    """Reads the counters of the engines at each scrape.

    Args:
        engines: the engines of the models that are loaded, by their names; may change.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines

    def collect(self) -> Iterable[Metric]:
        """Return one family per number and name."""
        stats = {name: engine.stats() for name, engine in self._engines.items()}
        for ours, theirs, text, gauge in _GAUGES:
            values = {name: gauge(found) for name, found in stats.items()}
            for family in (f"plumbline_{ours}", f"vllm:{theirs}"):
                yield _family(GaugeMetricFamily(family, text, labels=["model_name"]), values)
        for name, text, counter in _COUNTERS:
            values = {model: counter(found) for model, found in stats.items()}
            for family in (f"plumbline_{name}", f"vllm:{name}"):
                yield _family(CounterMetricFamily(family, text, labels=["model_name"]), values)
        yield _family(
            GaugeMetricFamily(
                "plumbline_engine_alive", "1 while the engine can make progress", labels=["model_name"]
            ),
            {name: float(found.alive) for name, found in stats.items()},
        )
        for name, text, number in _FAILURES:
            counts = {model: number(found) for model, found in stats.items()}
            yield _family(CounterMetricFamily(name, text, labels=["model_name"]), counts)
        deaths = CounterMetricFamily(
            "plumbline_engine_deaths",
            "Ends of the engine's process by cause: the name of a signal, or `error`; see the log",
            labels=["model_name", "cause"],
        )
        for model, found in stats.items():
            for cause, count in found.deaths.items():
                deaths.add_metric([model, cause], count)
        yield deaths
        yield _family(
            GaugeMetricFamily(
                "plumbline_engine_resident_memory_bytes",
                "Memory of the engine's process; `process_resident_memory_bytes` is that of the server",
                labels=["model_name"],
            ),
            {name: float(found.memory_bytes) for name, found in stats.items()},
        )
        yield _family(
            GaugeMetricFamily(
                "plumbline_engine_quarantined_requests",
                "Requests that are refused for an hour because the engine's process ended under them twice",
                labels=["model_name"],
            ),
            {name: float(found.num_quarantined) for name, found in stats.items()},
        )
        yield _family(
            GaugeMetricFamily("plumbline_kv_blocks", "Blocks of the KV cache", labels=["model_name"]),
            {name: float(engine.info.num_blocks) for name, engine in self._engines.items()},
        )
        yield _family(
            GaugeMetricFamily(
                "plumbline_engine_hanging_images",
                "Images whose encoding was given up and has not ended; with two, other images are refused",
                labels=["model_name"],
            ),
            {name: float(found.num_hanging_images) for name, found in stats.items()},
        )


def _family(
    family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]
) -> GaugeMetricFamily | CounterMetricFamily:
    for name, value in values.items():
        family.add_metric([name], value)
    return family


class StoreCollector(Collector):
    """Reads the sizes of the store at each scrape, without I/O."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterable[Metric]:
        """Return one family per number."""
        stats = self._store.stats()
        for name, text, value in (
            ("responses", "Responses that are kept, as of the last sweep", stats.responses),
            ("conversations", "Conversations that are kept, as of the last sweep", stats.conversations),
            ("chat_completions", "Chat completions that are kept, as of the last sweep", stats.chats),
            ("bytes", "Bytes of all payloads, as of the last sweep", stats.bytes),
            ("pending_writes", "Writes that wait for a commit", stats.pending_writes),
            (
                "max_responses_per_key",
                "Limit of stored responses per key; 0 means no limit",
                stats.max_responses_per_owner,
            ),
        ):
            yield GaugeMetricFamily(f"plumbline_store_{name}", text, value=value)
        yield GaugeMetricFamily(
            "plumbline_store_failing",
            "1 while the last read or the last write failed",
            value=float(stats.failing),
        )
        seconds = SummaryMetricFamily(
            "plumbline_store_transaction_seconds", "Seconds of the store's transactions", labels=["operation"]
        )
        for kind, (number, total) in stats.transactions.items():
            seconds.add_metric([kind], count_value=number, sum_value=total)
        yield seconds
        yield CounterMetricFamily(
            "plumbline_store_failed_writes", "Writes that were reported as failed", value=stats.failed_writes
        )


class AliasRegistry(CollectorRegistry):
    """Copies the families that have an alias, under that name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._source = registry

    def collect(self) -> Iterable[Metric]:
        """Return the copies."""
        for family in self._source.collect():
            alias = _ALIASES.get(family.name)
            if alias is not None:
                copy = Metric(alias, family.documentation, family.type)
                copy.samples = [
                    Sample(s.name.replace(family.name, alias, 1), s.labels, s.value, s.timestamp, s.exemplar)
                    for s in family.samples
                ]
                yield copy
