"""Count requests for Prometheus, under our names and under vLLM's, so that its dashboards and autoscalers work.

The engine's counters are read at each scrape. What only the server sees, such as the time to first token, is observed
as it happens.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from plumbline.engines.port import Engine
from plumbline.events import ChoiceEvent, Finish
from plumbline.store.interface import Store

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4"
"""Litestar adds the charset."""

_TIMES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)

# Our name of a histogram or counter -> vLLM's name for the same numbers.
_ALIASES = {
    "plumbline_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
    "plumbline_inter_token_latency_seconds": "vllm:inter_token_latency_seconds",
    "plumbline_e2e_request_latency_seconds": "vllm:e2e_request_latency_seconds",
    "plumbline_request_prompt_tokens": "vllm:request_prompt_tokens",
    "plumbline_request_generation_tokens": "vllm:request_generation_tokens",
    "plumbline_request_success": "vllm:request_success",
}


class Metrics:
    """The metrics of a server.

    With several API servers, each shows the counts of all of them: prometheus-client then keeps the counters in files
    of the folder `PROMETHEUS_MULTIPROC_DIR`. Metrics of the engine are the same on all, metrics of the store its own.
    """

    def __init__(self, engine: Engine, model: str, store: Store | None = None) -> None:
        self._labels = {"model_name": model}
        self._registry = registry = CollectorRegistry()
        names = ["model_name"]
        first_token = Histogram(
            "plumbline_time_to_first_token_seconds",
            "Seconds from a request's arrival to its first token",
            names,
            buckets=_TIMES,
            registry=registry,
        )
        between = Histogram(
            "plumbline_inter_token_latency_seconds",
            "Seconds between consecutive deltas of one choice",
            names,
            buckets=_TIMES,
            registry=registry,
        )
        whole = Histogram(
            "plumbline_e2e_request_latency_seconds",
            "Seconds from a request's arrival to its last token",
            names,
            buckets=_TIMES,
            registry=registry,
        )
        prompt = Histogram(
            "plumbline_request_prompt_tokens",
            "Prompt tokens of a finished request",
            names,
            buckets=_COUNTS,
            registry=registry,
        )
        generated = Histogram(
            "plumbline_request_generation_tokens",
            "Generated tokens of a finished choice",
            names,
            buckets=_COUNTS,
            registry=registry,
        )
        self._success = Counter(
            "plumbline_request_success",
            "Choices that ended, by finish reason",
            [*names, "finished_reason"],
            registry=registry,
        )
        self._errors = Counter(
            "plumbline_errors", "Requests answered with an error, by status", ["status"], registry=registry
        )
        self._requests = Counter(
            "plumbline_http_requests", "Requests by path and status", ["path", "status"], registry=registry
        )
        self._open = Gauge(
            "plumbline_http_requests_open",
            "Requests being answered",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._first_token = first_token.labels(model)
        self._between = between.labels(model)
        self._whole = whole.labels(model)
        self._prompt = prompt.labels(model)
        self._generated = generated.labels(model)
        self._read = CollectorRegistry()
        """The metrics that are read at each scrape."""
        self._read.register(_EngineCollector(engine, self._labels))
        if store is not None:
            self._read.register(_StoreCollector(store))

    def render(self) -> bytes:
        """Return the exposition text: our names first, then the aliases."""
        counted = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            counted = CollectorRegistry()
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        return b"".join(generate_latest(part) for part in (counted, self._read, _Aliases(counted)))

    def opened(self) -> None:
        """Count a request that arrives."""
        self._open.inc()

    def closed(self, path: str, status: int) -> None:
        """Count a request that is over; status 499 if its client left before the answer."""
        self._open.dec()
        self._requests.labels(path, str(status)).inc()
        if status >= 400:
            self._errors.labels(str(status)).inc()

    def failed_midway(self) -> None:
        """Count a stream that began with status 200 and ended with an error event."""
        self._errors.labels("stream").inc()

    async def observe(
        self, events: AsyncGenerator[ChoiceEvent, None], arrived: float
    ) -> AsyncGenerator[ChoiceEvent, None]:
        """Pass events on and time them; `arrived` is the request's `time.perf_counter` in seconds."""
        last: dict[int, float] = {}
        async with aclosing(events) as source:
            async for index, event in source:
                now = time.perf_counter()
                if not isinstance(event, Finish):
                    if not last:
                        self._first_token.observe(now - arrived)
                    elif index in last:
                        self._between.observe(now - last[index])
                    last[index] = now
                else:
                    self._whole.observe(now - arrived)
                    self._success.labels(self._labels["model_name"], event.reason).inc()
                    self._generated.observe(event.usage.completion_tokens)
                    if index == 0:
                        self._prompt.observe(event.usage.prompt_tokens)
                yield index, event


class _EngineCollector(Collector):
    """Reads the engine's counters at each scrape."""

    def __init__(self, engine: Engine, labels: dict[str, str]) -> None:
        self._engine = engine
        self._names = list(labels)
        self._values = list(labels.values())

    def collect(self) -> Iterable[Metric]:
        """Return one family per number and name."""
        stats = self._engine.stats()
        info = self._engine.info
        gauges: list[tuple[str, str, str, float]] = [
            (
                "num_requests_running",
                "num_requests_running",
                "Requests in the running batch",
                stats.num_running,
            ),
            (
                "num_requests_waiting",
                "num_requests_waiting",
                "Requests in the queue",
                stats.num_waiting,
            ),
            ("kv_cache_usage_ratio", "kv_cache_usage_perc", "KV blocks in use, 0 to 1", stats.kv_cache_usage),
        ]
        counters: list[tuple[str, str, str, float]] = [
            ("prompt_tokens", "prompt_tokens", "Prompt tokens computed or found cached", stats.prompt_tokens),
            ("generation_tokens", "generation_tokens", "Tokens generated", stats.generation_tokens),
            ("num_preemptions", "num_preemptions", "Requests preempted", stats.num_preemptions),
            ("prefix_cache_queries", "prefix_cache_queries", "Tokens looked up", stats.prefix_cache_queries),
            ("prefix_cache_hits", "prefix_cache_hits", "Tokens found cached", stats.prefix_cache_hits),
        ]
        for ours, theirs, text, value in gauges:
            for name in (f"plumbline_{ours}", f"vllm:{theirs}"):
                gauge = GaugeMetricFamily(name, text, labels=self._names)
                gauge.add_metric(self._values, value)
                yield gauge
        for ours, theirs, text, value in counters:
            for name in (f"plumbline_{ours}", f"vllm:{theirs}"):
                counter = CounterMetricFamily(name, text, labels=self._names)
                counter.add_metric(self._values, value)
                yield counter
        alive = GaugeMetricFamily("plumbline_engine_alive", "1 while the engine can make progress")
        alive.add_metric([], float(stats.alive))
        yield alive
        blocks = GaugeMetricFamily("plumbline_kv_blocks", "Blocks of the KV cache")
        blocks.add_metric([], float(info.num_blocks))
        yield blocks


class _StoreCollector(Collector):
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
        yield CounterMetricFamily(
            "plumbline_store_failed_writes", "Writes that were reported as failed", value=stats.failed_writes
        )


class _Aliases(CollectorRegistry):
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
