"""Check streaming chat completions."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.answers import chunks
from plumbline_conformance.checks.chat.shared_laws import (
    CHUNKS,
    UNNAMED,
    order_of_choices,
    until_out_of_order,
)
from plumbline_conformance.checks.common import (
    accepted,
    at,
    done_last,
    framing_without_names,
    portable_framing,
    request_id,
    sse_content_type,
    usage_adds_up,
    usage_count,
)
from plumbline_conformance.checks.identity import distinct_ids, distinct_request_ids, streamed_now
from plumbline_conformance.checks.laws import STREAM, WHOLE, stream, streams
from plumbline_conformance.checks.request_reader import request_fields, requested_choices, requested_limit
from plumbline_conformance.checks.sameness import same, whole_and_streamed
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    breaking,
    check,
    scenario,
)
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import fold_stream, fold_whole, objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
Content = tuple[Any, ...]
"""The text, and the finish reasons."""


@scenario("chat/stream-text", "The same request without and with streaming", core=True)
def stream_text(target: Target) -> Steps:
    body = chat(target, max_tokens=12, temperature=0, seed=1)
    yield from whole_and_streamed("/chat/completions", body, _whole, _streamed)


def _whole(exchange: Exchange) -> Content:
    """Return the content that a stream must repeat: text and finish reason."""
    answer = fold_whole("chat", exchange.json)
    if not answer.choices or answer.faults & {"choice", "message", "text", "finish"}:
        raise Inconclusive("the answer is malformed; other checks report how")
    return answer.choices[0].content, answer.choices[0].finish_reason


def _streamed(exchange: Exchange) -> Content:
    answer = fold_stream("chat", chunks(exchange))
    if answer.faults & {"choice", "delta", "text"}:
        raise Inconclusive("the stream is malformed; other checks report how")
    return "".join(choice.content for choice in answer.choices), *answer.finish_reasons


def _choices(exchange: Exchange) -> Iterator[tuple[int, Any]]:
    for number, chunk in enumerate(chunks(exchange)):
        for choice in chunk.get("choices") or []:
            yield number, choice


stream("chat/stream-text/content-type", "Send text/event-stream", "HTTP-02")(sse_content_type)
stream("chat/stream-text/request-id", "Carry an x-request-id", "HTTP-03")(request_id)
stream("chat/stream-text/framing", "Frame one JSON object per event, without names", *UNNAMED)(
    framing_without_names
)
stream("chat/stream-text/tidy", "Use line feeds, no byte order mark and no ids", "SSE-02", "SSE-03")(
    portable_framing
)
stream("chat/stream-text/done", "End with exactly one [DONE]", "SSE-05", "SSE-07")(done_last)
stream("chat/stream-text/created", "Report when a streamed answer was created", "CHAT-01")(
    streamed_now("created")
)
check("chat/stream-text/ids", "Give each answer a unique id", "CHAT-01")(distinct_ids)
check("chat/stream-text/request-ids", "Give each request a unique id", "HTTP-03")(distinct_request_ids)


@stream("chat/stream-text/shape", "Send chunks as the contract requires", *CHUNKS)
def _shapes(exchange: Exchange) -> Iterator[Problem]:
    for number, chunk in enumerate(chunks(exchange)):
        yield from violations("CreateChatCompletionStreamResponse", chunk, f"event {number}, ")


@stream("chat/stream-text/identity", "Keep id and model the same in every chunk", "CS-01")
def _identity(exchange: Exchange) -> Iterator[Problem]:
    for key in ("id", "model"):
        values = {as_json(chunk.get(key)) for chunk in chunks(exchange)}
        if len(values) > 1:
            yield Problem(expected=f"one {key}", actual=", ".join(sorted(values)), pointer=key)


@stream("chat/stream-text/role-once", "Give the role in the first delta of a choice and never again", "CS-02")
def _role(exchange: Exchange) -> Iterator[Problem]:
    met: set[int] = set()
    for number, choice in _choices(exchange):
        role = choice["delta"].get("role")
        where = f"event {number}, choices[{choice['index']}].delta.role"
        if choice["index"] not in met and role != "assistant":
            yield Problem(expected="role assistant", actual=as_json(role), pointer=where)
        if choice["index"] in met and role:
            yield Problem(expected="no role", actual=as_json(role), pointer=where)
        met.add(choice["index"])


@stream(
    "chat/stream-text/finish-once",
    "Finish the choice exactly once, and send nothing of it after that",
    "CS-03",
)
def _finish(exchange: Exchange) -> Iterator[Problem]:
    wanted = set(range(requested_choices(exchange)))
    finished: set[int] = set()
    for number, choice in _choices(exchange):
        if choice["index"] in finished:
            yield Problem(expected="nothing after the finish", actual="a chunk", pointer=f"event {number}")
        if choice.get("finish_reason") is not None:
            finished.add(choice["index"])
    if finished != wanted:
        yield Problem(expected=f"{wanted} finished", actual=as_json(finished), pointer="choices")


@stream("chat/stream-text/no-usage", "Send no usage unless requested", "CS-07")
def _no_usage(exchange: Exchange) -> Iterator[Problem]:
    if request_fields(exchange).get("stream_options"):
        raise NotRequested("the request asks for the usage")
    for number, chunk in enumerate(chunks(exchange)):
        if chunk.get("usage") is not None:
            yield Problem(expected="no usage", actual="a usage", pointer=f"event {number}, usage")


def _broken_rule(whole: Content, streamed: Content) -> str:
    """Return CS-05 if the text differs, CHAT-19 if the finish reason does."""
    return "CHAT-19" if whole[0] == streamed[0] else "CS-05"


@check("chat/stream-text/same-as-whole", "Stream the same content as without streaming", "CHAT-19", "CS-05")
def stream_text_same(seen: Transcript) -> Iterator[Problem]:
    yield from same(seen, _whole, _streamed, _broken_rule)


def _fingerprints(exchange: Exchange) -> set[str]:
    bodies = chunks(exchange) or objects_in([exchange.json])
    named = [one.get("system_fingerprint") for one in bodies]
    return {name for name in named if isinstance(name, str)}


@stream("chat/stream-text/one-fingerprint", "Send only one fingerprint in a stream", "CS-01", milder=True)
def _one_fingerprint(exchange: Exchange) -> Iterator[Problem]:
    """Check the fingerprint separately, because CS-01 is a SHOULD for it and a MUST for the id."""
    found = _fingerprints(exchange)
    if not found:
        raise Inconclusive("the stream has no fingerprint")
    if len(found) > 1:
        yield Problem(
            expected="one fingerprint", actual=as_json(sorted(found))[:200], pointer="system_fingerprint"
        )


@check("chat/stream-text/fingerprint", "Send a fingerprint with and without streaming, or never", "CHAT-15")
def stream_text_fingerprint(seen: Transcript) -> Iterator[Problem]:
    """Check only that fingerprints are there; values may differ, because two machines may have answered."""
    found = {name: _fingerprints(accepted(at(seen, name))) for name in (WHOLE, STREAM)}
    if not chunks(at(seen, STREAM)):
        raise Inconclusive("no chunks")
    if not any(found.values()):
        raise Inconclusive("the server sends no fingerprint")
    for name, fingerprints in found.items():
        if not fingerprints:
            wanted = "a fingerprint, as the other answer has one"
            yield Problem(expected=wanted, actual="none", pointer="system_fingerprint", exchange=name)


@scenario("chat/stream-choices", "Three choices, streamed several times")
def stream_choices(target: Target) -> Steps:
    yield from until_out_of_order(chat(target, n=3, stream=True))


streams("chat/stream-choices/shape", "Send chunks as the contract requires", *CHUNKS)(_shapes)
streams(
    "chat/stream-choices/finish-once",
    "Finish each choice exactly once, and send nothing of it after that",
    "CS-03",
)(_finish)


@streams("chat/stream-choices/order", "Start choices in the order of their index", "CS-04")
def _order(exchange: Exchange) -> Iterator[Problem]:
    order = order_of_choices(exchange)
    if order != sorted(order):
        yield Problem(expected="in order", actual=", ".join(order), pointer="choices[].index")


@scenario("chat/stream-usage", "A stream with usage")
def stream_usage(target: Target) -> Steps:
    body = chat(target)
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    yield Request(name=STREAM, path="/chat/completions", json={**body, **streaming})
    yield Request(name=WHOLE, path="/chat/completions", json=body)


stream("chat/stream-usage/shape", "Send chunks as the contract requires", *CHUNKS)(_shapes)


@stream("chat/stream-usage/last", "Send the usage alone in the last chunk", "CS-06", "CS-08")
def _usage_last(exchange: Exchange) -> Iterator[Problem]:
    found = chunks(exchange)
    if not found:
        raise Inconclusive("no chunks")
    final = found[-1]
    if final.get("usage") is None and any(chunk.get("usage") is not None for chunk in found):
        yield Problem(expected="the usage", actual="none", pointer="last chunk", rule="CS-08")
        return
    if final.get("choices") != []:
        shown = as_json(final.get("choices"))[:80]
        yield Problem(expected="choices []", actual=shown, pointer="last chunk", rule="CS-06")
    added = usage_adds_up(final.get("usage"), prompt="prompt_tokens", completion="completion_tokens")
    yield from breaking("CS-06", added)
    if request_fields(exchange).get("stream_options", {}).get("continuous_usage_stats"):
        return  # With this extension, every chunk has the usage.
    for number, chunk in enumerate(found[:-1]):
        if chunk.get("usage") is not None:
            where = f"event {number}, usage"
            yield Problem(expected="usage null", actual="a usage", pointer=where, rule="CS-06")


@stream(
    "chat/stream-usage/length",
    "Finish a stream with `length` only at the limit, and never exceed it",
    "CHAT-06",
)
def _length(exchange: Exchange) -> Iterator[Problem]:
    """Compare the usage of the stream with its finish reason; `chat/text/length` does so without streaming."""
    limit = requested_limit(exchange) * requested_choices(exchange)
    answer = fold_stream("chat", chunks(exchange))
    tokens = answer.usage.get("completion_tokens") if isinstance(answer.usage, dict) else None
    if not isinstance(tokens, int):
        raise Inconclusive("the stream has no usage; another check reports this")
    early = answer.finish_reasons == ["length"] and tokens != limit and limit <= SHORT
    if tokens > limit or early:
        shown = f"{tokens}, {answer.finish_reasons}"
        yield Problem(expected=f"{limit} tokens for `length`", actual=shown, pointer="usage")


SHORT = 16
"""A token limit that fits into every context window."""


@check("chat/stream-usage/same-prompt", "Count the same prompt tokens in a stream", "CHAT-19")
def stream_usage_same(seen: Transcript) -> Iterator[Problem]:
    usage = fold_stream("chat", chunks(at(seen, STREAM))).usage
    found = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    wanted = usage_count(at(seen, WHOLE), "prompt_tokens")
    if not isinstance(found, int):
        raise Inconclusive("the stream has no usage; another check reports this")
    if found != wanted:
        expected, where = f"{wanted}, as without streaming", "usage.prompt_tokens"
        yield Problem(expected=expected, actual=str(found), pointer=where, exchange=STREAM)


@scenario("chat/stream-unpadded", "A stream without padding")
def stream_unpadded(target: Target) -> Steps:
    body = chat(target, stream=True, stream_options={"include_obfuscation": False})
    yield Request(name=STREAM, path="/chat/completions", json=body)


@stream("chat/stream-unpadded/absent", "Send no `obfuscation` to a client that wants none", "SSE-11")
def _unpadded(exchange: Exchange) -> Iterator[Problem]:
    if request_fields(exchange).get("stream_options", {}).get("include_obfuscation") is not False:
        raise NotRequested("the client allows padding")
    padded = [number for number, chunk in enumerate(chunks(exchange)) if chunk.get("obfuscation") is not None]
    if padded:
        where = f"event {padded[0]}, obfuscation"
        yield Problem(expected="no obfuscation", actual=f"padding in {len(padded)} chunks", pointer=where)
