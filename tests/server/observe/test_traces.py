"""Traces over HTTP: one tree for each request, with the phases of its answer, and nothing of what was said.

1. A request has one server span; its parent is the span that the client's `traceparent` names, if it is one.
2. Below it is a span for each answer, which has the counts that the answer has, and below that one for each phase; a
   span lies within its parent's time.
3. No text of a request or an answer and no key is in any span.
4. Operations of the store have spans, in the trace of the request that they are for.
5. A collector gets the spans by OTLP; one that does not answer changes no answer.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.models import answer_with, scripted, served, text_chunks
from support.servers.asgi import Server, serving

from plumbline.port.engine import Engine, GenerateRequest, TokenChunk
from plumbline.server.http.middleware.front import Front
from plumbline.server.observe import traces
from plumbline.server.settings import Settings
from plumbline_conformance.console.options import OptionError

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
BODY: Json = {
    "model": "test-model",
    "messages": [{"role": "user", "content": "a planted secret"}],
    "top_p": 0.5,
}
PARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
ANSWER = "one two three"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[ReadableSpan, ...]]:
    """What the server exports, in place of a collector."""
    kept = InMemorySpanExporter()
    monkeypatch.setattr(traces.Tracing, "to", classmethod(lambda cls, _: cls(SimpleSpanProcessor(kept))))
    return kept.get_finished_spans


@asynccontextmanager
async def traced(engine: Engine | None = None, **changes: Any) -> AsyncGenerator[Server, None]:
    async with serving(
        served(engine or scripted(answer_with(ANSWER))),
        otlp_traces_endpoint="http://127.0.0.1:1/v1/traces",
        **changes,
    ) as server:
        yield server


def named(spans: tuple[ReadableSpan, ...], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def times(span: ReadableSpan) -> tuple[int, int]:
    """When a span began and ended, in nanoseconds."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


async def test_without_the_option_there_is_no_layer_for_traces() -> None:
    """So it costs nothing; `benchmarks/micro` has the time of a request with and without."""
    async with serving(served(scripted())) as server:
        assert type(server.app._asgi) is Front


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_one_tree(
    spans: Callable[[], tuple[ReadableSpan, ...]], stream: bool, choices: int
) -> None:
    """Laws 1 and 2."""
    async with traced() as server:
        await server.post(CHAT, {**BODY, "stream": stream, "n": choices}, headers={"traceparent": PARENT})
    found = spans()
    (root,), (answer,) = named(found, f"POST {CHAT}"), named(found, "chat test-model")

    assert root.parent is not None
    assert (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}") == ("ab" * 16, "cd" * 8)
    assert {span.context.trace_id for span in found} == {root.context.trace_id}
    assert root.attributes is not None
    assert root.attributes["http.response.status_code"] == 200
    assert answer.parent is not None
    assert answer.parent.span_id == root.context.span_id
    phases = [
        span for span in found if span.parent is not None and span.parent.span_id == answer.context.span_id
    ]
    assert sorted(span.name for span in phases) == sorted(
        ["render", *["queue", "prefill", "decode"] * choices]
    )
    for inner, outer in [(answer, root), *((phase, answer) for phase in phases)]:
        (began, ended), (first, last) = times(inner), times(outer)
        # The server span has the clock of the system, the others a clock that never goes back.
        assert first - 10**6 <= began <= ended <= last + 10**6


async def test_an_answer_has_the_attributes_of_the_conventions(
    spans: Callable[[], tuple[ReadableSpan, ...]],
) -> None:
    """Law 2."""
    async with traced() as server:
        usage = (await server.post(CHAT, BODY)).json["usage"]
    (answer,) = named(spans(), "chat test-model")
    assert answer.attributes is not None
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "test-model",
        "gen_ai.request.top_p": 0.5,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
    }
    assert {name: answer.attributes[name] for name in expected} == expected
    assert answer.attributes["gen_ai.response.time_to_first_chunk"] > 0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("method", "path", "body", "name", "status", "error"),
    [
        ("POST", CHAT, {**BODY, "model": "other"}, f"POST {CHAT}", 404, "model_not_found"),
        ("POST", "/nowhere/a", {}, "POST", 404, "unknown_url"),
        ("GET", "/v1/responses/resp_a", None, "GET /v1/responses/{id}", 404, "404"),
    ],
)
async def test_an_error_has_its_code(
    spans: Callable[[], tuple[ReadableSpan, ...]],
    method: str,
    path: str,
    body: Json | None,
    name: str,
    status: int,
    error: str,
) -> None:
    async with traced() as server:
        answer = await server.request(method, path, body)
    (root,) = spans()
    assert root.attributes is not None
    assert answer.status == status
    assert (root.name, root.attributes["http.response.status_code"]) == (name, status)
    code = answer.error["code"] or answer.error["type"]
    assert root.attributes["error.type"] == code


def breaks(request: GenerateRequest) -> Iterable[TokenChunk]:
    yield from list(text_chunks(request, ANSWER))[:2]
    yield TokenChunk(finish_reason="error", error="a planted secret")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_fails_is_marked(
    spans: Callable[[], tuple[ReadableSpan, ...]], stream: bool
) -> None:
    async with traced(scripted(breaks)) as server:
        await server.post(CHAT, {**BODY, "stream": stream})
    (answer,) = named(spans(), "chat test-model")
    assert answer.attributes is not None
    assert answer.attributes["error.type"] == "GenerationError"
    assert answer.status.status_code is StatusCode.ERROR
    assert "planted" not in "".join(span.to_json() for span in spans())


async def test_a_store_that_fails_is_marked_without_its_message(
    spans: Callable[[], tuple[ReadableSpan, ...]],
) -> None:
    """Law 3: databases quote what was to be stored."""
    found = traces.Tracing.to("").begin(
        {"type": "http", "path": "/v1/responses", "method": "POST", "headers": []}
    )
    with pytest.raises(ValueError, match="planted"), found.storing("save_response"):
        raise ValueError("a planted secret")
    (span,) = spans()
    assert span.attributes is not None
    assert span.attributes["error.type"] == "ValueError"
    assert span.status.status_code is StatusCode.ERROR
    assert "planted" not in span.to_json()


async def test_a_method_of_the_clients_own_makes_no_name(
    spans: Callable[[], tuple[ReadableSpan, ...]],
) -> None:
    async with traced() as server:
        await server.request("BREW", "/nowhere", None)
    (root,) = spans()
    assert root.attributes is not None
    assert (root.name, root.attributes["http.request.method"]) == ("HTTP", "_OTHER")


async def test_nothing_that_was_said_is_in_a_span(spans: Callable[[], tuple[ReadableSpan, ...]]) -> None:
    """Law 3."""
    async with traced(api_keys=("a-planted-key",)) as server:
        headers = {"authorization": "Bearer a-planted-key"}
        await server.post(CHAT, BODY, headers=headers)
        await server.post(CHAT, {**BODY, "temperature": "planted"}, headers=headers)
    text = "".join(span.to_json() for span in spans())
    assert "chat test-model" in text
    assert not [word for word in ("planted", "secret", "two") if word in text]


@pytest.mark.parametrize("header", ["", "00-" + "0" * 32 + "-" + "cd" * 8 + "-01", "zz", "00-" + "a" * 9000])
async def test_a_parent_that_is_none_begins_a_new_trace(
    spans: Callable[[], tuple[ReadableSpan, ...]], header: str
) -> None:
    """Law 1."""
    async with traced() as server:
        assert (await server.post(CHAT, BODY, headers={"traceparent": header})).status == 200
    (root,) = named(spans(), f"POST {CHAT}")
    assert root.parent is None


async def test_probes_have_no_trace(spans: Callable[[], tuple[ReadableSpan, ...]]) -> None:
    async with traced() as server:
        assert (await server.get("/health")).status == 200
    assert spans() == ()


async def test_the_store_is_in_the_trace_of_its_request(
    spans: Callable[[], tuple[ReadableSpan, ...]], tmp_path: Path
) -> None:
    """Law 4."""
    async with traced(store=str(tmp_path / "s.db")) as server:
        made = await server.post("/v1/responses", {"model": "test-model", "input": "hello"})
        assert (await server.get(f"/v1/responses/{made.json['id']}")).status == 200
        assert (await server.get("/v1/responses/resp_none")).status == 404
    found = spans()
    roots = {span.context.trace_id: span.name for span in found if span.kind is SpanKind.SERVER}
    stored = [
        (roots.get(span.context.trace_id), span.name) for span in found if span.name.startswith("store ")
    ]
    assert ("POST /v1/responses", "store save_response") in stored
    assert stored.count(("GET /v1/responses/{id}", "store response")) == 2
    assert {root for root, _ in stored} == set(roots.values())


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A collector that reads OTLP with OpenTelemetry's own messages."""
    taken: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            taken.append(ExportTraceServiceRequest.FromString(data))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", taken
    finally:
        server.shutdown()
        server.server_close()


async def test_a_collector_gets_the_spans() -> None:
    """Law 5: at the latest when the server stops."""
    with collector() as (endpoint, taken):
        async with serving(served(scripted(answer_with(ANSWER))), otlp_traces_endpoint=endpoint) as server:
            await server.post(CHAT, BODY)
    sent = [part for message in taken for part in message.resource_spans]
    names = {span.name for part in sent for scope in part.scope_spans for span in scope.spans}
    services = {
        a.value.string_value for part in sent for a in part.resource.attributes if a.key == "service.name"
    }
    assert {f"POST {CHAT}", "chat test-model", "render", "queue", "prefill", "decode"} <= names
    assert services == {"plumbline"}


async def test_a_collector_that_is_away_changes_no_answer() -> None:
    """Law 5."""
    async with traced() as server:
        assert (await server.post(CHAT, BODY)).status == 200


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "grpc://127.0.0.1:4317", "http://", "http://[a"])
def test_an_address_that_is_none_is_refused_by_its_option(endpoint: str) -> None:
    with pytest.raises(OptionError, match=r"--otlp-traces-endpoint.*4318/v1/traces"):
        Settings(otlp_traces_endpoint=endpoint)
