"""Send traces of requests to an OpenTelemetry collector (`--otlp-traces-endpoint`).

A request has a server span below the context that its client sent (W3C Trace Context). Each answer has a span with the
attributes of the GenAI conventions, and below it one for each phase: render, queue, prefill, decode. Operations of the
store have spans as well. Nothing that was asked or answered is in them, and no key.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from plumbline import __version__
from plumbline.answer.road.phases import Phases
from plumbline.port.engine import SamplingParams
from plumbline.server.observe.answer_record import AnswerRecord
from plumbline.server.observe.routes import OTHER, route_of
from plumbline.server.store.interface import Store

__all__ = ["CURRENT", "RequestTrace", "Tracing", "traced_store"]

CURRENT: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)
"""The trace of the request that is being answered."""

_PATIENCE = 3.0
"""Seconds for one export, and for the last one when the server stops."""
_LONGEST_PATH = 200
_METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"}
)
"""Methods that the HTTP conventions know; others are `_OTHER`, so that clients cannot make up names of spans."""
_SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")
"""Parameters that the GenAI conventions have an attribute for."""


class Tracing:
    """Begins the traces of requests, and exports their spans in the background.

    Args:
        processor: takes the spans that have ended.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        named = Resource({SERVICE_NAME: "plumbline", SERVICE_VERSION: __version__})
        # The variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come last: they are the operator's.
        self._provider = TracerProvider(
            resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("plumbline", __version__)
        self._incoming = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str) -> Tracing:
        """Return what exports to the address of a collector, such as `http://127.0.0.1:4318/v1/traces`."""
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_PATIENCE)))

    def begin(self, scope: Mapping[str, Any]) -> RequestTrace:
        """Begin the trace of an HTTP request, or that of a WebSocket, whose answers have no server span above them."""
        # The first of two headers counts, as for `Call`. Ids that are no ids give a new trace.
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])
        }
        context = self._incoming.extract(headers)
        route = route_of(scope["path"])
        if scope["type"] != "http":
            return RequestTrace(self._tracer, context, route, None)
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        verb = "HTTP" if method == "_OTHER" else method
        span = self._tracer.start_span(
            verb if route == OTHER else f"{verb} {route}",
            context,
            SpanKind.SERVER,
            {
                "http.request.method": method,
                "url.scheme": scope.get("scheme", "http"),
                "url.path": scope["path"][:_LONGEST_PATH],
                **({} if route == OTHER else {"http.route": route}),
            },
        )
        return RequestTrace(self._tracer, trace.set_span_in_context(span, context), route, span)

    async def close(self) -> None:
        """Export what is left, for a few seconds at most."""
        await asyncio.to_thread(self._provider.force_flush, int(_PATIENCE * 1000))
        # What a collector that is away has not taken by now is lost; nothing waits for it.
        self._provider.shutdown()


class RequestTrace:
    """The trace of one request, to which answers and operations of the store add spans.

    Answers in the background add theirs after the request has ended.
    """

    def __init__(self, tracer: Tracer, context: Context, route: str, span: Span | None) -> None:
        self._tracer = tracer
        self._context = context
        self._route = route
        self._span = span
        self._zero = time.time_ns() - time.perf_counter_ns()
        """The nanoseconds of the epoch at which `time.perf_counter` was 0."""

    @property
    def trace_id(self) -> str | None:
        """The id of the trace in hexadecimal digits; None if the request has no span."""
        return None if self._span is None else f"{self._span.get_span_context().trace_id:032x}"

    def answered(self, model: str, record: AnswerRecord) -> None:
        """Add the span of an answer, and those of its phases."""
        operation = "text_completion" if self._route == "/v1/completions" else "chat"
        began = record.prepared[0].times[0] if record.prepared else record.call.arrived
        span = self._tracer.start_span(
            f"{operation} {model}",
            self._context,
            SpanKind.INTERNAL,
            {"gen_ai.operation.name": operation, **_attributes(model, record)},
            start_time=self._epoch(began),
        )
        context = trace.set_span_in_context(span)
        for turn in record.prepared:
            self._phase("render", turn.times, context)
        for phases in record.phases:
            for name, times in _times(phases):
                self._phase(name, times, context)
        if record.error:
            _fail(span, record.error)
        span.end(self._epoch(time.perf_counter()))

    def _phase(self, name: str, times: tuple[float, float], context: Context) -> None:
        self._tracer.start_span(name, context, start_time=self._epoch(times[0])).end(self._epoch(times[1]))

    def _epoch(self, moment: float) -> int:
        """Return a moment of `time.perf_counter` as nanoseconds of the epoch."""
        return self._zero + int(moment * 1e9)

    @contextmanager
    def storing(self, operation: str) -> Iterator[None]:
        """Add the span of an operation of the store, which an exception marks as failed."""
        attributes = {"db.operation.name": operation}
        span = self._tracer.start_span(f"store {operation}", self._context, SpanKind.CLIENT, attributes)
        # The message of an exception is left out: a database may quote what was to be stored.
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except Exception as error:
                _fail(span, type(error).__name__)
                raise

    def end(self, status: int, error: str | None) -> None:
        """End the server span.

        Args:
            status: of the answer; 499 if the client left before it.
            error: the code of its error, if it was one, or of the event that ended its stream.
        """
        if self._span is None:
            return
        self._span.set_attribute("http.response.status_code", status)
        if error is not None or status >= 400:
            self._span.set_attribute("error.type", error or str(status))
        if status >= 500 or (error is not None and status < 400):
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


def _fail(span: Span, error: str) -> None:
    span.set_attribute("error.type", error)
    span.set_status(StatusCode.ERROR)


def _times(phases: Phases) -> Iterator[tuple[str, tuple[float, float]]]:
    if not phases.first:  # It was refused, or its client left while it waited.
        yield "queue", (phases.began, phases.ended)
        return
    yield "queue", (phases.began, phases.scheduled)
    yield "prefill", (phases.scheduled, phases.first)
    yield "decode", (phases.first, phases.ended)


def _attributes(model: str, record: AnswerRecord) -> dict[str, str | int | float | Sequence[str]]:
    """Return what the GenAI conventions say about an answer, without what it says."""
    found: dict[str, str | int | float | Sequence[str]] = {
        "gen_ai.provider.name": "plumbline",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": sum(len(turn.prompt_token_ids) for turn in record.prepared),
        "gen_ai.usage.output_tokens": sum(end.usage.completion_tokens for end in record.finishes),
        "gen_ai.response.finish_reasons": [end.reason for end in record.finishes],
        "plumbline.request.id": record.call.request_id,
    }
    if record.prepared:
        turn = record.prepared[0].turn
        found |= {f"gen_ai.request.{name}": value for name, value in _asked(turn.sampling)}
        if turn.num_choices > 1:
            found["gen_ai.request.choice.count"] = turn.num_choices
    if record.finishes:
        usage = record.finishes[0].usage
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
        found["gen_ai.usage.reasoning.output_tokens"] = sum(
            end.usage.reasoning_tokens for end in record.finishes
        )
    firsts = [phases.first for phases in record.phases if phases.first]
    if firsts:
        found["gen_ai.response.time_to_first_chunk"] = min(firsts) - record.call.arrived
    return found


def _asked(sampling: SamplingParams) -> Iterator[tuple[str, int | float]]:
    for name in _SAMPLING:
        value = getattr(sampling, name)
        if value is not None:
            yield name, value


def traced_store(store: Store) -> Store:
    """Return a store whose operations add spans to the trace of the request that they are for."""
    return cast(Store, _TracedStore(store))


class _TracedStore:
    """Has the members of a store, and times those that are awaited."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        if not inspect.iscoroutinefunction(member):
            return member

        async def timed(*given: Any, **named: Any) -> Any:
            current = CURRENT.get()
            if current is None:
                return await member(*given, **named)
            with current.storing(name):
                return await member(*given, **named)

        return timed
