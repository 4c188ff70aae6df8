"""Count requests for Prometheus, under our names and under vLLM's, so that its dashboards and autoscalers work.

The engine's counters are read at each scrape. What only the server sees, such as the time to first token, is observed
as it happens.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import lru_cache
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from plumbline import __version__
from plumbline.answer.events import ChoiceEvent, Finish, Progress
from plumbline.port.engine import Engine, EngineStats
from plumbline.server.observe.answer_record import AnswerRecord
from plumbline.server.store.interface import Store

__all__ = ["CONTENT_TYPE", "Metrics", "ModelMetrics"]

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
    "plumbline_request_queue_time_seconds": "vllm:request_queue_time_seconds",
    "plumbline_request_prefill_time_seconds": "vllm:request_prefill_time_seconds",
    "plumbline_request_decode_time_seconds": "vllm:request_decode_time_seconds",
    "plumbline_request_success": "vllm:request_success",
}


class HeldMemory(Protocol):
    """Bytes that clients make the process hold, and how many these may be."""

    held: int
    limit: int


class Metrics:
    """The metrics of a server; those of a model have its name as the label `model_name`.

    With several API servers, each shows the counts of all of them: prometheus-client then keeps the counters in files
    of the folder `PROMETHEUS_MULTIPROC_DIR`. Metrics of the engine are the same on all, metrics of the store its own.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._registry = registry = CollectorRegistry()
        self._counts = _ModelCounts(registry)
        self._errors = Counter(
            "plumbline_errors",
            "Requests answered with an error, by status and code; the status of a failed stream is `stream`",
            ["status", "code"],
            registry=registry,
        )
        requests = Counter(
            "plumbline_http_requests", "Requests by path and status", ["path", "status"], registry=registry
        )
        # There are few, and finding one by its labels takes longer than counting.
        self._requests_of = lru_cache(maxsize=1024)(requests.labels)
        self._errors_of = lru_cache(maxsize=1024)(self._errors.labels)
        self._open = Gauge(
            "plumbline_http_requests_open",
            "Requests being answered",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._sockets = Gauge(
            "plumbline_websockets_open", "Open WebSockets", registry=registry, multiprocess_mode="livesum"
        )
        self._engines: dict[str, Engine] = {}
        self._read = CollectorRegistry()
        """The metrics that are read at each scrape."""
        self._read.register(_EngineCollector(self._engines))
        Info("plumbline_build", "The release of the server", registry=self._read).info(
            {"version": __version__}
        )
        ProcessCollector(registry=self._read)
        if store is not None:
            self._read.register(_StoreCollector(store))

    def watch(self, **budgets: HeldMemory) -> None:
        """Show the bytes of these kinds that clients make the process hold."""
        self._read.register(_HeldCollector(budgets))

    @contextmanager
    def socket(self) -> Iterator[None]:
        """Count a WebSocket, which is open within the block."""
        self._sockets.inc()
        try:
            yield
        finally:
            self._sockets.dec()

    def begin_model(self, name: str, engine: Engine) -> ModelMetrics:
        """Show the counters of a model's engine, and return what counts its requests.

        A model that is loaded again goes on with the counts of its requests; its engine counts from 0.
        """
        self._engines[name] = engine
        return ModelMetrics(self._counts, name)

    def end_model(self, name: str) -> None:
        """Show the engine of a model no longer."""
        self._engines.pop(name, None)

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

    def closed(self, path: str, status: int, error: str) -> None:
        """Count a request that is over; status 499 if its client left before the answer.

        Args:
            path: the path, as one of those that are counted.
            status: of the answer.
            error: the code of the error that was the answer, if it was one of ours.
        """
        self._open.dec()
        self._requests_of(path, status).inc()
        if status >= 400:
            self._errors_of(status, error).inc()

    def failed_midway(self, error: str) -> None:
        """Count a stream that began with status 200 and ended with an error event that has this code."""
        self._errors_of("stream", error).inc()


class _HeldCollector(Collector):
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


class _ModelCounts:
    """The counts of the requests of all models."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, text, ["model_name"], buckets=buckets, registry=registry)

        self.first_token = histogram(
            "plumbline_time_to_first_token_seconds",
            "Seconds from a request's arrival to its first token",
            _TIMES,
        )
        self.between = histogram(
            "plumbline_inter_token_latency_seconds",
            "Seconds between consecutive deltas of one choice",
            _TIMES,
        )
        self.whole = histogram(
            "plumbline_e2e_request_latency_seconds",
            "Seconds from a request's arrival to its last token",
            _TIMES,
        )
        self.render = histogram(
            "plumbline_request_render_time_seconds",
            "Seconds in which a prompt was rendered and its grammar compiled",
            _TIMES,
        )
        self.queue = histogram(
            "plumbline_request_queue_time_seconds", "Seconds that a choice waited for the engine", _TIMES
        )
        self.prefill = histogram(
            "plumbline_request_prefill_time_seconds",
            "Seconds from the begin of a prompt to its first token",
            _TIMES,
        )
        self.decode = histogram(
            "plumbline_request_decode_time_seconds",
            "Seconds from a choice's first token to its last",
            _TIMES,
        )
        self.prompt = histogram(
            "plumbline_request_prompt_tokens", "Prompt tokens of a finished request", _COUNTS
        )
        self.generated = histogram(
            "plumbline_request_generation_tokens", "Generated tokens of a finished choice", _COUNTS
        )
        self.success = Counter(
            "plumbline_request_success",
            "Choices that ended, by finish reason",
            ["model_name", "finished_reason"],
            registry=registry,
        )
        self.unmarked = Counter(
            "plumbline_unmarked_calls",
            "Calls that were read from plain JSON, without the markup of the model's dialect",
            ["model_name"],
            registry=registry,
        )


class ModelMetrics:
    """The counts of the requests of one model."""

    def __init__(self, counts: _ModelCounts, model: str) -> None:
        self._model = model
        self._first_token = counts.first_token.labels(model)
        self._between = counts.between.labels(model)
        self._whole = counts.whole.labels(model)
        self._prompt = counts.prompt.labels(model)
        self._generated = counts.generated.labels(model)
        self._success = counts.success
        self._unmarked = counts.unmarked.labels(model)
        self._render = counts.render.labels(model)
        self._queue = counts.queue.labels(model)
        self._prefill = counts.prefill.labels(model)
        self._decode = counts.decode.labels(model)

    async def observe(
        self, events: AsyncGenerator[ChoiceEvent, None], record: AnswerRecord
    ) -> AsyncGenerator[ChoiceEvent, None]:
        """Pass events on, time them from the arrival of the request, and note what logs and traces say about it."""
        record.call.facts["model"] = self._model
        last: dict[int, float] = {}
        try:
            async with aclosing(events) as source:
                async for index, event in source:
                    if isinstance(event, Finish):
                        self._finished(index, event, record)
                    elif not isinstance(event, Progress):  # It comes with a delta, which is timed.
                        now = time.perf_counter()
                        if not last:
                            self._first_token.observe(now - record.call.arrived)
                        elif index in last:
                            self._between.observe(now - last[index])
                        last[index] = now
                    yield index, event
        except Exception as error:
            record.error = type(error).__name__
            raise
        finally:
            self._ended(record)

    def _finished(self, index: int, event: Finish, record: AnswerRecord) -> None:
        facts, usage = record.call.facts, event.usage
        record.finishes.append(event)
        self._whole.observe(time.perf_counter() - record.call.arrived)
        self._success.labels(self._model, event.reason).inc()
        self._generated.observe(usage.completion_tokens)
        if usage.unmarked_calls:
            self._unmarked.inc(usage.unmarked_calls)
        facts["completion_tokens"] = facts.get("completion_tokens", 0) + usage.completion_tokens
        facts["finish_reason"] = event.reason
        if index == 0:
            self._prompt.observe(usage.prompt_tokens)
            facts["prompt_tokens"] = usage.prompt_tokens
            facts["cached_tokens"] = usage.cached_tokens

    def _ended(self, record: AnswerRecord) -> None:
        for turn in record.prepared:
            self._render.observe(turn.times[1] - turn.times[0])
        for phases in record.phases:
            if phases.first:  # Otherwise it never ran.
                self._queue.observe(phases.scheduled - phases.began)
                self._prefill.observe(phases.first - phases.scheduled)
                self._decode.observe(phases.ended - phases.first)
        if record.call.trace is not None:
            record.call.trace.answered(self._model, record)


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


class _EngineCollector(Collector):
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
