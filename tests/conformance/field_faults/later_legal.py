"""Further legal differences between servers: what HTTP, JSON, SSE and the vendors' documents leave open."""

from __future__ import annotations

import json
from typing import Any

from mutants.mutations import changed, with_body

from field_faults.bodies import choices_of, kind
from field_faults.changes import Change, Event, Json, Row, calls_in, each_choice, headers, streamed, whole
from field_faults.conversations import frames_changed
from field_faults.parts import entries, of_errors

__all__ = ["LATER_LEGAL"]


def _http(exchange: Any) -> bool:
    return bool(exchange.status) and exchange.method != "WEBSOCKET"


def _json(exchange: Any) -> bool:
    return _http(exchange) and isinstance(exchange.json, dict | list)


def _sorted(exchange: Any) -> Any:
    return (
        with_body(exchange, json.dumps(exchange.json, sort_keys=True).encode())
        if _json(exchange)
        else exchange
    )


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _reversed(one) for name, one in reversed(list(value.items()))}
    return [_reversed(one) for one in value] if isinstance(value, list) else value


def _other_order(exchange: Any) -> Any:
    if not _http(exchange) or b"data: {" not in exchange.body:
        return exchange
    lines = [
        b"data: " + json.dumps(_reversed(json.loads(line[6:]))).encode()
        if line.startswith(b"data: {")
        else line
        for line in exchange.body.split(b"\n")
    ]
    return with_body(exchange, b"\n".join(lines))


def _several(*changes: Change) -> Change:
    def apply(exchange: Any) -> Any:
        for change in changes:
            exchange = change(exchange)
        return exchange

    return apply


def _numbered(events: list[Event]) -> list[Event]:
    for number, event in enumerate(one for one in events if isinstance(one[1], dict)):
        event[1]["sequence_number"] = number
    return events


def _keepalive_events(events: list[Event], _: Json) -> list[Event]:
    made: list[Event] = []
    for event in events:
        made.append(event)
        if kind(event) == "response.in_progress":
            made.append(("keepalive", {"type": "keepalive", "sequence_number": 0}))
    return _numbered(made)


def _new_events(events: list[Event], _: Json) -> list[Event]:
    return [*events[:1], ("session_note", {"type": "session_note", "note": {"text": "later"}}), *events[1:]]


def _all_members(choice: Json, _: Json) -> None:
    message = choice["message"]
    for name, value in (("refusal", None), ("annotations", []), ("audio", None), ("function_call", None)):
        message.setdefault(name, value)
    if not calls_in(choice):
        message["tool_calls"] = None


def _no_calls_listed(choice: Json, asked: Json) -> None:
    if not calls_in(choice) and not asked.get("store"):
        choice["message"]["tool_calls"] = []


def _renamed(prefix: str) -> Any:
    def apply(answer: Json, _: Json) -> None:
        answer["id"] = prefix + str(answer["id"]).rpartition("_")[2].rpartition("-")[2]

    return apply


def _prefixed(answer: Json, asked: Json) -> None:
    if not asked.get("store"):
        answer["id"] = f"gen-{answer['id']}"


def _renamed_stream(events: list[Event], _: Json) -> None:
    for event in events:
        if kind(event) == "message_start":
            _renamed("chatcmpl-")(event[1]["message"], {})


def _cost(answer: Json, asked: Json) -> None:
    if not asked.get("store"):
        answer["usage"].update(cost=0.00012, is_byok=False, cost_details={"upstream_inference_cost": None})


def _two_passes(choice: Json, _: Json) -> None:
    for one in entries(choice):
        one["logprob"] -= 0.0004


def _no_bytes(choice: Json, _: Json) -> None:
    for one in entries(choice):
        for entry in one["top_logprobs"]:
            entry["bytes"] = None


def _empty_chunks(events: list[Event], _: Json) -> list[Event]:
    made: list[Event] = []
    for name, data in events:
        made.append((name, data))
        if isinstance(data, dict) and any(choice["delta"].get("content") for choice in data["choices"]):
            empty = [
                {"index": choice["index"], "delta": {}, "logprobs": None, "finish_reason": None}
                for choice in data["choices"]
            ]
            made.append((name, {**data, "choices": empty, **({"usage": None} if "usage" in data else {})}))
    return made


def _both_names(choice: Json, asked: Json) -> None:
    message = choice["message"]
    if message.get("reasoning_content") and not asked.get("store"):
        message["reasoning"] = message["reasoning_content"]


def _free(asked: Json) -> bool:
    """Return whether a request leaves the text beside calls to the model."""
    return not asked.get("response_format") and not asked.get("logprobs")


def _words_before_calls(choice: Json, asked: Json) -> None:
    if _free(asked) and calls_in(choice) and choice["message"].get("content") is None:
        choice["message"]["content"] = "Let me look that up."


def _streamed_words(events: list[Event], asked: Json) -> list[Event]:
    if not _free(asked) or not any(calls_in(choice) for choice in choices_of(events)):
        return events
    if any(choice["delta"].get("content") for choice in choices_of(events)):
        return events
    first = next(n for n, one in enumerate(events) if any(calls_in(choice) for choice in choices_of([one])))
    name, data = events[first]
    places = {choice["index"] for choice in choices_of(events)}
    words = [
        {
            "index": place,
            "delta": {"content": "Let me look that up."},
            "logprobs": None,
            "finish_reason": None,
        }
        for place in sorted(places)
    ]
    added = (name, {**data, "choices": words, **({"usage": None} if "usage" in data else {})})
    return [*events[:first], added, *events[first:]]


def _details(error: Json, _: int) -> None:
    error.update(reasons=[{"reason": "INVALID"}], request_id="7f", doc_url="https://example.com/errors")


def _newline(exchange: Any) -> Any:
    return with_body(exchange, exchange.body + b"\r\n") if _json(exchange) else exchange


def _comment_at_end(exchange: Any) -> Any:
    if not _http(exchange) or b"data: " not in exchange.body:
        return exchange
    return with_body(exchange, exchange.body + b": closing\n\n")


def _limits_frame(frame: bytes) -> list[bytes]:
    """Add an extension after the first event, and leave a number free for it."""
    found = json.loads(frame)
    if "sequence_number" not in found:
        return [frame]
    found["sequence_number"] *= 2
    shown = json.dumps(found).encode()
    note = {"type": "codex:rate_limits", "sequence_number": found["sequence_number"] + 1, "limits": None}
    if "stream_id" in found:
        note["stream_id"] = found["stream_id"]
    return [shown, json.dumps(note).encode()] if found["type"] == "response.created" else [shown]


def _charset(exchange: Any) -> Any:
    if not _json(exchange):
        return exchange
    return headers(lambda _: True, "content-type", "application/json;charset=UTF-8")(exchange)


def _stream_charset(exchange: Any) -> bool:
    return _http(exchange) and exchange.status == 200 and b"data: " in exchange.body


class _Busy:
    """Refuse each eleventh generation, because the server has no room."""

    def __init__(self, status: int, path: str) -> None:
        self._status, self._path, self._seen = status, path, 0

    def __call__(self, exchange: Any) -> Any:
        if exchange.method != "POST" or self._path not in exchange.path or exchange.status != 200:
            return exchange
        self._seen += 1
        if self._seen % 11:
            return exchange
        messages = self._path == "/messages"
        error = {"type": "overloaded_error" if messages else "server_error", "message": "Try again later."}
        body = (
            {"type": "error", "error": error}
            if messages
            else {"error": {**error, "param": None, "code": None}}
        )
        kept = [
            ("content-type", "application/json"),
            ("retry-after", "1"),
            ("x-request-id", f"busy-{self._seen}"),
        ]
        return with_body(changed(exchange, status=self._status, headers=kept), json.dumps(body).encode())


def _one_for_all(*names: str) -> Change:
    def apply(exchange: Any) -> Any:
        if not _http(exchange):
            return exchange
        return changed(exchange, headers=[*exchange.headers, *((name, "1") for name in names)])

    return apply


def _members_of_response(answer: Json, asked: Json) -> None:
    if asked.get("store") is False:
        answer.update(billing={"payer": "developer"}, moderation=None, prompt_cache_retention=None)


def _text_format(answer: Json, _: Json) -> None:
    for block in answer["content"]:
        if block["type"] == "text":
            block.setdefault("citations", None)


def _filtered(choice: Json, _: Json) -> None:
    if choice["finish_reason"] in ("stop", "length") and not calls_in(choice):
        choice["finish_reason"] = "content_filter"


def _filtered_stream(events: list[Event], _: Json) -> None:
    found = [one for _kind, data in events if isinstance(data, dict) for one in data.get("choices", ())]
    calling = {one["index"] for one in found if calls_in(one)}
    for choice in found:
        if choice["index"] not in calling:
            _filtered(choice, {})


def _refused(answer: Json, _: Json) -> None:
    if answer["stop_reason"] in ("end_turn", "max_tokens", "stop_sequence"):
        answer |= {"stop_reason": "refusal", "stop_sequence": None}


def _compact_arguments(choice: Json, _: Json) -> None:
    """Write the arguments of whole answers anew, as a parser does that has read them."""
    for call in calls_in(choice):
        function = call.get("function") or {}
        try:
            value = json.loads(function["arguments"])
        except (KeyError, ValueError):
            continue
        function["arguments"] = json.dumps(value, separators=(",", ":"))


LATER_LEGAL: tuple[Row, ...] = (
    (
        "OpenAI",
        "a filter ends answers",
        _several(
            whole("chat", each_choice(_filtered)),
            streamed("chat", _filtered_stream),
            whole("completions", each_choice(_filtered)),
            streamed("completions", _filtered_stream),
        ),
    ),
    ("Anthropic", "the model refuses to go on", whole("messages", _refused)),
    ("vllm", "arguments without spaces", whole("chat", each_choice(_compact_arguments))),
    ("RFC 8259", "members in alphabetical order", _sorted),
    ("RFC 8259", "members of events in another order", _other_order),
    ("RFC 8259", "a line end after JSON", _newline),
    (
        "RFC 9110",
        "headers of gateways",
        _one_for_all("via", "alt-svc", "server-timing", "x-ratelimit-remaining-tokens"),
    ),
    ("RFC 9112", "connections that are closed after each answer", headers(_http, "connection", "close")),
    ("RFC 9110", "a charset in capitals", _charset),
    (
        "RFC 9110",
        "a charset of streams",
        headers(_stream_charset, "content-type", "text/event-stream;charset=UTF-8"),
    ),
    ("SSE", "a comment at the end", _comment_at_end),
    ("OpenAI", "events that keep a response alive", streamed("responses", _keepalive_events)),
    ("Anthropic", "events of new types", streamed("messages", _new_events)),
    ("OpenAI", "all members of chat", whole("chat", each_choice(_all_members))),
    ("vllm", "an empty list of calls", whole("chat", each_choice(_no_calls_listed))),
    ("vllm", "chunks without anything", streamed("chat", _empty_chunks)),
    (
        "vllm",
        "ids of messages as in chat",
        _several(whole("messages", _renamed("chatcmpl-")), streamed("messages", _renamed_stream)),
    ),
    ("OpenRouter", "ids of chat of its own", whole("chat", _prefixed)),
    ("OpenRouter", "the cost of answers", whole("chat", _cost)),
    ("OpenRouter", "thoughts by both names", whole("chat", each_choice(_both_names))),
    ("vllm", "log probabilities of two passes", whole("chat", each_choice(_two_passes))),
    ("OpenAI", "alternatives without bytes", whole("chat", each_choice(_no_bytes))),
    (
        "OpenAI",
        "words before calls",
        _several(whole("chat", each_choice(_words_before_calls)), streamed("chat", _streamed_words)),
    ),
    ("Google", "details of errors", of_errors(_details)),
    ("Codex", "notes of a WebSocket", frames_changed(_limits_frame)),
    ("RFC 9110", "no room for a chat now and then", _Busy(503, "/chat/completions")),
    ("RFC 6585", "too many responses now and then", _Busy(429, "/responses")),
    ("Anthropic", "no room for a message now and then", _Busy(529, "/messages")),
    ("OpenAI", "members of responses of its own", whole("responses", _members_of_response)),
    ("Anthropic", "no citations", whole("messages", _text_format)),
)
