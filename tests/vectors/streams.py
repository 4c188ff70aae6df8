"""Make the vectors of streams: bytes of server-sent events with what they add up to, and broken ones with their rules.

A message is there first; its events are written from it, in several legal ways. Each broken stream has one fault, and
names the rules of which a judge may report any.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from vectors import message_streams, socket_streams

__all__ = ["files"]

Event = dict[str, Any]
Events = list[Event]
_MODEL = "m"
_TOOL = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
_USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


def _sse(events: Events, *, done: bool = True, end: str = "\n", named: bool = False) -> str:
    lines = []
    for event in events:
        name = f"event: {event['type']}{end}" if named else ""
        lines.append(f"{name}data: {json.dumps(event, ensure_ascii=False)}{end}{end}")
    return "".join(lines) + (f"data: [DONE]{end}{end}" if done else "")


# Chat completions


def _chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> Event:
    choices = (
        [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    )
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1790000000, "model": _MODEL}
    return {**head, "choices": choices, **more}


def _chat(
    texts: list[str], calls: list[list[str]] | None = None, finish: str = "stop", *, usage: bool = False
) -> Events:
    """Return the chunks of a message; each call is the pieces of its arguments."""
    more = {"usage": None} if usage else {}
    events = [_chunk({"role": "assistant", "content": ""}, **more)]
    events += [_chunk({"content": text}, **more) for text in texts]
    for index, pieces in enumerate(calls or []):
        function = {"name": "get_weather", "arguments": ""}
        call = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        events.append(_chunk({"tool_calls": [call]}, **more))
        for piece in pieces:
            delta = {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            events.append(_chunk(delta, **more))
    events.append(_chunk({}, finish, **more))
    return [*events, _chunk(None, usage=_USAGE)] if usage else events


def _chat_request(**more: Any) -> dict[str, Any]:
    return {"model": _MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True, **more}


_PARIS = ['{"ci', 'ty": "Pa', 'ris"}']
_WITH_TOOLS = _chat_request(tools=[{"type": "function", "function": _TOOL}])
_WITH_USAGE = _chat_request(stream_options={"include_usage": True})


def _chat_folds() -> Iterator[dict[str, Any]]:
    def folded(
        content: str | None, calls: int = 0, finish: str = "stop", usage: bool = False
    ) -> dict[str, Any]:
        named = [
            {"id": f"call_{n}", "name": "get_weather", "arguments": "".join(_PARIS)} for n in range(calls)
        ]
        return {
            "content": content,
            "calls": named,
            "finish_reason": finish,
            "usage": _USAGE if usage else None,
        }

    plain = _chat(["It", " is", " 4."])
    yield _right("text", _chat_request(), _sse(plain), folded("It is 4."))
    yield _right(
        "several bytes a character",
        _chat_request(),
        _sse(_chat(["Grü", "ße 東", "京 🎉"])),
        folded("Grüße 東京 🎉"),
    )
    yield _right(
        "line feeds and quotes",
        _chat_request(),
        _sse(_chat(['a\n"b"', "\u2028c\\d"])),
        folded('a\n"b"\u2028c\\d'),
    )
    yield _right("nothing", _chat_request(), _sse(_chat([])), folded(""))
    yield _right("one long piece", _chat_request(), _sse(_chat(["word " * 40])), folded("word " * 40))
    yield _right(
        "cut by the limit",
        _chat_request(max_tokens=4),
        _sse(_chat(["It is"], finish="length")),
        folded("It is", finish="length"),
    )
    yield _right("usage", _WITH_USAGE, _sse(_chat(["Hi"], usage=True)), folded("Hi", usage=True))
    yield _right("a call", _WITH_TOOLS, _sse(_chat([], [_PARIS], "tool_calls")), folded("", 1, "tool_calls"))
    yield _right(
        "text and a call",
        _WITH_TOOLS,
        _sse(_chat(["Look."], [_PARIS], "tool_calls")),
        folded("Look.", 1, "tool_calls"),
    )
    two = _chat([], [_PARIS, ["".join(_PARIS)]], "tool_calls")
    yield _right("two calls", _WITH_TOOLS, _sse(two), folded("", 2, "tool_calls"))
    yield _right(
        "a call character by character",
        _WITH_TOOLS,
        _sse(_chat([], [list("".join(_PARIS))], "tool_calls")),
        folded("", 1, "tool_calls"),
    )
    comments = _sse(plain).replace("data: ", ": keep-alive\n\ndata: ", 3)
    yield _right("comments between events", _chat_request(), comments, folded("It is 4."))
    yield _right(
        "no space after the colon",
        _chat_request(),
        _sse(plain).replace("data: ", "data:"),
        folded("It is 4."),
    )
    reordered = [dict(reversed(list(event.items()))) for event in plain]
    yield _right("members in another order", _chat_request(), _sse(reordered), folded("It is 4."))


def _chat_faults() -> Iterator[dict[str, Any]]:
    plain, request = _chat(["It", " is", " 4."]), _chat_request()
    text = _sse(plain)
    yield _wrong("no [DONE]", request, _sse(plain, done=False), "SSE-05")
    yield _wrong("[DONE] twice", request, text + "data: [DONE]\n\n", "SSE-07", "SSE-05")
    yield _wrong("an event after [DONE]", request, text + _sse(plain[-1:], done=False), "SSE-07")
    yield _wrong("events with names", request, text.replace("data: {", "event: chunk\ndata: {"), "SSE-05")
    yield _wrong("an event that is not JSON", request, text.replace(' is"', " is", 1), "SSE-01")
    yield _wrong("no role", request, _sse(plain[1:]), "CS-02")
    yield _wrong("the role twice", request, _sse([plain[0], *plain]), "CS-02")
    yield _wrong("the end twice", request, _sse([*plain, plain[-1]]), "CS-03")
    yield _wrong("no finish reason", request, _sse(plain[:-1]), "CS-03")
    yield _wrong("text after the end", request, _sse([*plain, _chunk({"content": "more"})]), "CS-03")
    yield _wrong(
        "usage without being asked for", request, _sse([*plain, _chunk(None, usage=_USAGE)]), "CS-07"
    )
    with_usage = _chat(["Hi"], usage=True)
    yield _wrong("no usage though asked for", _WITH_USAGE, _sse(_chat(["Hi"])), "CS-06")
    yield _wrong(
        "usage before the end",
        _WITH_USAGE,
        _sse([*with_usage[:-2], with_usage[-1], with_usage[-2]]),
        "CS-08",
        "CS-06",
    )
    wrong_sum = copy.deepcopy(with_usage)
    wrong_sum[-1]["usage"]["total_tokens"] = 14
    yield _wrong("a wrong sum of tokens", _WITH_USAGE, _sse(wrong_sum), "CHAT-08", "CS-06")
    yield from _each_changed("chat", plain, request)
    call = _chat([], [_PARIS], "tool_calls")
    yield _wrong(
        "a call and another reason", _WITH_TOOLS, _sse([*call[:-1], _chunk({}, "stop")]), "CS-13", "CHAT-05"
    )
    yield _wrong(
        "tool_calls without a call",
        _WITH_TOOLS,
        _sse([*plain[:-1], _chunk({}, "tool_calls")]),
        "CS-13",
        "CHAT-05",
    )
    yield _wrong("arguments that are not JSON", _WITH_TOOLS, _sse([*call[:-2], call[-1]]), "CS-12", "TOOL-01")
    yield _wrong(
        "a call of an unknown tool", _WITH_TOOLS, _sse(call).replace("get_weather", "remove_all"), "TOOL-02"
    )
    yield _wrong("a call without an id", _WITH_TOOLS, _sse(call).replace('"id": "call_0", ', ""), "CS-10")
    two = _chat([], [_PARIS, _PARIS], "tool_calls")
    yield _wrong("the same id for two calls", _WITH_TOOLS, _sse(two).replace("call_1", "call_0"), "TOOL-09")
    yield _wrong(
        "indexes from one",
        _WITH_TOOLS,
        _sse(call).replace('"tool_calls": [{"index": 0', '"tool_calls": [{"index": 1'),
        "CS-11",
        "CS-10",
    )
    markup = _chat(["<tool_call>", '{"name": "get_weather"}'], [_PARIS], "tool_calls")
    yield _wrong("markup of calls in the text", _WITH_TOOLS, _sse(markup), "TOOL-18")


def _each_changed(api: str, events: Events, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield streams in which one chunk has another value of a member that all chunks share."""
    for key, value, rule in (
        ("id", "chatcmpl-2", "CS-01"),
        ("object", "chat.completion", "CS-01"),
        ("created", 1790000001, "CS-01"),
        ("model", "other", "CS-01"),
        ("created", "now", "CS-20"),
        ("choices", None, "CS-20"),
    ):
        changed = copy.deepcopy(events)
        changed[2][key] = value
        yield _wrong(
            f"another {key} in one chunk: {json.dumps(value)}", request, _sse(changed), rule, "CS-01", "CS-20"
        )


# Completions


def _completions() -> Iterator[dict[str, Any]]:
    def chunk(text: str, finish: str | None = None) -> Event:
        head = {"id": "cmpl-1", "object": "text_completion", "created": 1790000000, "model": _MODEL}
        return {**head, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]}

    request = {"model": _MODEL, "prompt": "Hi", "stream": True}
    events = [chunk("It"), chunk(" is"), chunk(" 4."), chunk("", "stop")]
    for title, pieces in (("text", ["It", " is 4."]), ("several bytes a character", ["東", "京 🎉"])):
        folded = {"content": "".join(pieces), "finish_reason": "stop"}
        yield _right(title, request, _sse([*map(chunk, pieces), chunk("", "stop")]), folded)
    yield _right(
        "the reason with the last text",
        request,
        _sse([chunk("It"), chunk(" is.", "length")]),
        {"content": "It is.", "finish_reason": "length"},
    )
    yield _wrong("no [DONE]", request, _sse(events, done=False), "SSE-05")
    yield _wrong("no finish reason", request, _sse(events[:-1]), "CMP-08", "CMP-01", "CS-03")
    yield _wrong("text after the end", request, _sse([*events, chunk("more")]), "CMP-08", "CS-03")
    yield _wrong(
        "another object",
        request,
        _sse(events).replace("text_completion", "chat.completion.chunk"),
        "CMP-01",
        "CMP-08",
    )


# Responses


def _answer(status: str, output: list[Any], usage: Any = None) -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1790000000,
        "completed_at": 1790000001 if status == "completed" else None, "status": status,
        "incomplete_details": None, "model": _MODEL, "previous_response_id": None, "instructions": None,
        "output": output, "error": None, "tools": [], "tool_choice": "auto", "truncation": "disabled",
        "parallel_tool_calls": True, "text": {"format": {"type": "text"}}, "top_p": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "top_logprobs": 0, "temperature": 1.0,
        "reasoning": {"effort": None, "summary": None}, "usage": usage, "max_output_tokens": None,
        "max_tool_calls": None, "store": False, "background": False, "service_tier": "default", "metadata": {},
        "safety_identifier": None, "prompt_cache_key": None,
    }  # fmt: skip


def _response(pieces: list[str]) -> Events:
    usage = {
        "input_tokens": 9, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 13,
    }  # fmt: skip
    text = "".join(pieces)
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [], "status": "in_progress"}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    whole = {**part, "text": text}
    done = {**item, "content": [whole], "status": "completed"}
    events: Events = [
        {"type": "response.created", "response": _answer("in_progress", [])},
        {"type": "response.in_progress", "response": _answer("in_progress", [])},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **at, "part": part},
        *({"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []} for piece in pieces),
        {"type": "response.output_text.done", **at, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **at, "part": whole},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": _answer("completed", [done], usage)},
    ]
    return [
        {"type": event["type"], "sequence_number": number, **event} for number, event in enumerate(events)
    ]


def _responses() -> Iterator[dict[str, Any]]:
    request = {"model": _MODEL, "input": "Hi", "stream": True, "store": False}

    def sse(events: Events) -> str:
        return _sse(events, named=True)

    def changed(place: int, **members: Any) -> Events:
        return [{**event, **members} if number == place else event for number, event in enumerate(events)]

    for title, pieces in (("text", ["It", " is 4."]), ("several bytes a character", ["東", "京 🎉"])):
        folded = {"content": "".join(pieces), "status": "completed"}
        yield _right(title, request, sse(_response(pieces)), folded)
    events = _response(["It", " is 4."])
    without_created = [{**event, "sequence_number": n} for n, event in enumerate(events[1:])]
    yield _wrong("no response.created", request, sse(without_created), "RS-01", "RS-02")
    yield _wrong("no terminal event", request, sse(events[:-1]), "RS-01", "RS-08", "RS-13", "SSE-06")
    yield _wrong("a number twice", request, sse(changed(5, sequence_number=4)), "RS-02", "RS-01")
    yield _wrong(
        "another text at the end",
        request,
        sse(changed(6, text="It was 4.")),
        "RS-05",
        "RS-04",
        "RS-06",
        "RS-09",
    )
    yield _wrong(
        "another item id", request, sse(changed(4, item_id="msg_2")), "RS-04", "RS-05", "RS-07", "RS-03"
    )
    yield _wrong(
        "another output index", request, sse(changed(4, output_index=1)), "RS-04", "RS-05", "RS-07", "RS-03"
    )
    yield _wrong(
        "the name of another event",
        request,
        sse(events).replace("event: response.output_text.done", "event: response.done"),
        "SSE-04",
    )
    yield _wrong("events without names", request, _sse(events), "SSE-04")
    other = copy.deepcopy(events)
    other[-1]["response"]["output"] = []
    yield _wrong("no output at the end", request, sse(other), "RS-08", "RS-06", "RS-05", "RS-09", "RS-14")


def _right(title: str, request: dict[str, Any], stream: str, folded: dict[str, Any]) -> dict[str, Any]:
    return {"title": title, "request": request, "stream": stream, "folded": folded}


def _wrong(title: str, request: dict[str, Any], stream: str, *rules: str) -> dict[str, Any]:
    return {"title": title, "request": request, "stream": stream, "broken": sorted(set(rules))}


_APIS: dict[str, list[Callable[[], Iterator[dict[str, Any]]]]] = {
    "chat": [_chat_folds, _chat_faults],
    "completions": [_completions],
    "responses": [_responses],
    "messages": [message_streams.cases],
    "websocket": [lambda: socket_streams.cases(_response)],
}


def files() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the content of each file."""
    for api, makers in _APIS.items():
        cases = [case for make in makers for case in make()]
        numbered = [
            {"id": number, **case, "rules": case.get("broken", [])} for number, case in enumerate(cases, 1)
        ]
        yield api, {"format": 1, "api": api, "cases": numbered}
