"""Count requests for Prometheus, under our names and under vLLM's, so that its dashboards and autoscalers work.

What others count is read at each scrape (`collectors.py`). What only the server sees, such as the time to first token,
is observed as it happens.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import lru_cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from plumbline import __version__
from plumbline.answer.events import ChoiceEvent, Finish, Progress
from plumbline.port.engine import Engine
from plumbline.server.observe.answer_record import AnswerRecord
from plumbline.server.observe.collectors import (
    AliasRegistry,
    EngineCollector,
    HeldCollector,
    HeldMemory,
    StoreCollector,
)
from plumbline.server.store.interface import Store

__all__ = ["CONTENT_TYPE", "Metrics", "ModelMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4"
"""Litestar adds the charset."""

_TIMES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


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
        self._read.register(EngineCollector(self._engines))
        Info("plumbline_build", "The release of the server", registry=self._read).info(
            {"version": __version__}
        )
        ProcessCollector(registry=self._read)
        if store is not None:
            self._read.register(StoreCollector(store))

    def watch(self, **budgets: HeldMemory) -> None:
        """Show the bytes of these kinds that clients make the process hold."""
        self._read.register(HeldCollector(budgets))

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
        return b"".join(generate_latest(part) for part in (counted, self._read, AliasRegistry(counted)))

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
        is_first = record.is_first(index)  # The choices of a prompt share it.
        counted = {
            "completion_tokens": usage.completion_tokens,
            "prompt_tokens": usage.prompt_tokens if is_first else usage.repair_prompt_tokens,
            "cached_tokens": usage.cached_tokens if is_first else 0,
        }
        if is_first:
            self._prompt.observe(usage.prompt_tokens)
        # A request may have several prompts and, with remote tools or a summary, several answers.
        facts |= {name: facts.get(name, 0) + count for name, count in counted.items()}
        facts["finish_reason"] = event.reason

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
