"""Check the rules of streams on the JSON objects that a client receives, in order, and fold them to an answer."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema_rs

Json = dict[str, Any]


@cache
def _contract() -> Json:
    document: Json = json.loads(
        files("plumbline_conformance._generated").joinpath("openapi.json").read_bytes()
    )
    return document


@cache
def _validator(schema: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{schema}", "components": _contract()["components"]}
    )


def valid(schema: str, value: Any) -> None:
    """The value fits the contract's schema."""
    problems = [f"{list(e.instance_path)}: {e.message}" for e in _validator(schema).iter_errors(value)]
    assert not problems, problems


# Chat completions


def fold_chunks(chunks: list[Json], *, n: int = 1, usage: bool = False, logprobs: bool = False) -> Json:
    """Check CS-01 to CS-14 and return the choices and the usage that the chunks fold to."""
    for chunk in chunks:
        valid("CreateChatCompletionStreamResponse", chunk)
        assert chunk["object"] == "chat.completion.chunk"
    for key in ("id", "created", "model", "system_fingerprint"):
        assert len({chunk[key] for chunk in chunks}) == 1, f"CS-01: {key} changes"
    counted = None
    if usage:
        last = chunks.pop()
        assert last["choices"] == [], "CS-06: the last chunk has the usage and no choices"
        counted = last["usage"]
        assert all("usage" in chunk and chunk["usage"] is None for chunk in chunks), "CS-06"
    else:
        assert all(chunk.get("usage") is None for chunk in chunks), "CS-07"
    folded: dict[int, Json] = {}
    announced: dict[int, bool] = {}
    for chunk in chunks:
        assert len(chunk["choices"]) == 1
        (choice,) = chunk["choices"]
        index, delta = choice["index"], choice["delta"]
        if index not in folded:
            assert index == len(folded), "CS-04: choices first appear in index order"
            assert delta["role"] == "assistant", "CS-02: the first chunk has the role"
            assert delta["content"] in ("", None), "CS-02"
            announced[index] = delta["content"] == ""
            folded[index] = _empty_choice(index)
            delta = {}
        _add_delta(folded[index], delta, choice, logprobs)
    assert len(folded) == n
    for index, choice in folded.items():
        assert choice["finish_reason"] is not None, "CS-03: each choice has a finish reason"
        calls = choice["message"]["tool_calls"]
        text = choice["message"]["content"]
        assert text or not calls or not announced[index], "an empty content opens a text that never comes"
        # A call that the token limit has cut ends with `length`, as the whole answer does (CHAT-05).
        if choice["finish_reason"] == "tool_calls":
            assert calls, "CS-13"
            for call in calls:
                if call["type"] == "function":
                    json.loads(call["function"]["arguments"])  # CS-12
    return {"choices": list(folded.values()), "usage": counted}


def _empty_choice(index: int) -> Json:
    message: Json = {"content": "", "reasoning": "", "reasoning_content": "", "refusal": "", "tool_calls": []}
    return {"index": index, "message": message, "logprobs": [], "finish_reason": None, "stop_reason": None}


def _add_delta(folded: Json, delta: Json, choice: Json, logprobs: bool) -> None:
    assert folded["finish_reason"] is None, "CS-03: nothing after the finish reason"
    assert "finish_reason" in choice
    assert "role" not in delta, "CS-02: the role comes once"
    if choice["finish_reason"] is not None:
        assert delta == {}, "CS-03: the finish reason comes with an empty delta"
        folded["finish_reason"] = choice["finish_reason"]
        folded["stop_reason"] = choice.get("stop_reason")
    if choice["logprobs"] is not None:
        assert logprobs, "CS-14: nobody asked for logprobs"
        assert delta.get("content"), "CS-14: logprobs come with their text"
        folded["logprobs"] += choice["logprobs"]["content"]
    message = folded["message"]
    for key, value in delta.items():
        if key == "tool_calls":
            _add_call(message["tool_calls"], value)
        else:
            assert isinstance(value, str)
            assert value, "CS-05: no empty deltas but the role chunk's"
            message[key] += value


_ARGUMENTS = {"function": "arguments", "custom": "input"}


def _add_call(calls: list[Json], deltas: list[Json]) -> None:
    (delta,) = deltas
    if delta["index"] == len(calls):  # CS-10, CS-11: a new call, all calls before it being complete
        kind = delta["type"]
        assert kind in _ARGUMENTS
        assert delta["id"]
        assert delta[kind]["name"]
        calls.append({"id": delta["id"], "type": kind, kind: {**delta[kind]}})
        return
    assert delta["index"] == len(calls) - 1, "CS-11: indexes start at 0 and calls do not interleave"
    kind = calls[-1]["type"]
    assert set(delta) == {"index", kind}, "CS-10: only arguments follow"
    (key,) = delta[kind]
    assert key == _ARGUMENTS[kind]
    calls[-1][kind][key] += delta[kind][key]


def as_folded(choice: Json) -> Json:
    """Return a choice of a non-streaming answer as `fold_chunks` returns one."""
    message = choice["message"]
    assert message["role"] == "assistant"
    return {
        "index": choice["index"],
        "finish_reason": choice["finish_reason"],
        "stop_reason": choice.get("stop_reason"),
        "logprobs": [] if choice["logprobs"] is None else choice["logprobs"]["content"],
        "message": {
            "content": message["content"] or "",
            "refusal": message["refusal"] or "",
            "reasoning": message.get("reasoning") or "",
            "reasoning_content": message.get("reasoning_content") or "",
            "tool_calls": message.get("tool_calls", []),
        },
    }


# Legacy completions


def fold_texts(chunks: list[Json], *, n: int = 1, usage: bool = False) -> Json:
    """Check CMP-01, CMP-05 and CMP-08 and return what the chunks fold to."""
    for chunk in chunks:
        valid("CreateCompletionStreamResponse", chunk)
        assert chunk["object"] == "text_completion"
    for key in ("id", "created", "model", "system_fingerprint"):
        assert len({chunk[key] for chunk in chunks}) == 1
    counted = None
    if usage:
        last = chunks.pop()
        assert last["choices"] == []
        counted = last["usage"]
        assert all("usage" in chunk and chunk["usage"] is None for chunk in chunks)
    else:
        assert all(chunk.get("usage") is None for chunk in chunks)
    folded: dict[int, Json] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        index = choice["index"]
        have = folded.setdefault(
            index, {"index": index, "text": "", "finish_reason": None, "stop_reason": None, "logprobs": None}
        )
        assert have["finish_reason"] is None, "CMP-08: nothing after the finish reason"
        have["text"] += choice["text"]
        have["finish_reason"] = choice["finish_reason"]
        have["stop_reason"] = choice.get("stop_reason")
        if choice["logprobs"] is not None:
            have["logprobs"] = have["logprobs"] or {key: [] for key in choice["logprobs"]}
            for key, values in choice["logprobs"].items():
                have["logprobs"][key] += values
    assert sorted(folded) == list(range(n))
    assert all(choice["finish_reason"] is not None for choice in folded.values())
    return {"choices": [folded[index] for index in range(n)], "usage": counted}


def check_text_logprobs(text: str, logprobs: Json) -> None:
    """CMP-05: four lists of equal length, tokens that join to the text, and offsets into it."""
    tokens = logprobs["tokens"]
    assert len({len(values) for values in logprobs.values()}) == 1
    assert "".join(tokens) == text
    offset = 0
    for place, token in zip(logprobs["text_offset"], tokens, strict=True):
        assert place == offset
        offset += len(token)
    for token, value, top in zip(tokens, logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        if value is None:
            assert top is None
        else:
            assert value <= 0
            assert top[token] == value


# Responses

_PART_EVENTS = {
    "output_text": ("response.output_text.delta", "response.output_text.done", "text"),
    "refusal": ("response.refusal.delta", "response.refusal.done", "refusal"),
    "reasoning_text": ("response.reasoning_text.delta", "response.reasoning_text.done", "text"),
}
_CALL_DELTA, _CALL_DONE = "response.function_call_arguments.delta", "response.function_call_arguments.done"
_INPUT_DELTA, _INPUT_DONE = "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"
_TERMINAL = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}


class _Events:
    """The events of one stream, taken one by one."""

    def __init__(self, events: list[Json]) -> None:
        self._events = events
        self._next = 0

    def peek(self) -> str:
        return str(self._events[self._next]["type"])

    def take(self, kind: str) -> Json:
        event = self._events[self._next]
        assert event["type"] == kind, f"expected {kind}, got {event['type']} at {self._next}"
        self._next += 1
        return event

    @property
    def left(self) -> int:
        return len(self._events) - self._next


def fold_response(events: list[Json]) -> Json:
    """Check RS-01 to RS-15 by recursive descent over the events and return the terminal response."""
    for event in events:
        valid("ResponseStreamEvent", event)
    assert [event["sequence_number"] for event in events] == list(range(len(events))), "RS-02"
    stream = _Events(events)
    created = stream.take("response.created")["response"]
    started = stream.take("response.in_progress")["response"]
    assert created == started, "RS-04"
    assert created["status"] == "in_progress"
    assert created["output"] == []
    assert created["usage"] is None
    assert created["completed_at"] is None
    done: list[Json] = []
    while stream.peek() == "response.output_item.added":
        done.append(_item(stream, len(done)))
        assert stream.peek() == "error" or all(_ended(item) for item in done[:-1]), "R-07"
    if stream.peek() == "error":
        error = stream.take("error")
        assert error["error"]["message"] == error["message"], "ERR-11"
        assert stream.peek() == "response.failed", "ERR-10"
    kind = stream.peek()
    final: Json = stream.take(kind)["response"]
    assert stream.left == 0, "RS-01: the terminal event is the last"
    assert final["status"] == _TERMINAL[kind], "RS-14"
    for key in ("id", "created_at", "model"):
        assert final[key] == created[key], f"RS-03: {key} changes"
    assert final["output"] == done, "RS-14"
    assert len({item["id"] for item in done}) == len(done), "R-08"
    check_response(final)
    return final


def _item(stream: _Events, index: int) -> Json:
    """RS-05 to RS-12: one item, from `added` to `done`."""
    added = stream.take("response.output_item.added")
    item = added["item"]
    assert added["output_index"] == index, "RS-06"
    if item["type"].startswith("mcp_"):
        return _remote_item(stream, item, {"item_id": item["id"], "output_index": index})
    assert item["status"] == "in_progress", "RS-05"
    where = {"item_id": item["id"], "output_index": index}
    parts: list[Json] = []
    arguments = ""
    if item["type"] == "function_call":
        assert item["arguments"] == ""
        assert item["name"]
        assert item["call_id"] not in ("", item["id"]), "TOOL-09"
        while stream.peek() == _CALL_DELTA:
            event = stream.take(_CALL_DELTA)
            assert where.items() <= event.items(), "RS-07"
            assert event["delta"], "RS-18"
            arguments += event["delta"]
        event = stream.take(_CALL_DONE)
        assert where.items() <= event.items()
        assert (event["arguments"], event["name"]) == (arguments, item["name"]), "RS-10"
    elif item["type"] == "custom_tool_call":
        assert item["input"] == ""
        assert item["name"]
        assert item["call_id"] not in ("", item["id"]), "TOOL-09"
        while stream.peek() == _INPUT_DELTA:
            event = stream.take(_INPUT_DELTA)
            assert where.items() <= event.items(), "RS-07"
            assert event["delta"], "RS-18"
            arguments += event["delta"]
        event = stream.take(_INPUT_DONE)
        assert where.items() <= event.items()
        assert event["input"] == arguments, "RS-10"
    elif item["type"] not in ("apply_patch_call", "local_shell_call", "tool_search_call"):
        assert item["content"] == [], "RS-05"
        while stream.peek() == "response.content_part.added":
            parts.append(_part(stream, where, len(parts)))
        assert parts
    finished = stream.take("response.output_item.done")
    assert finished["output_index"] == index
    done: Json = finished["item"]
    assert done["status"] in ("completed", "incomplete")
    changed = {"status": done["status"]}
    told = {"function_call": {"arguments": arguments}, "custom_tool_call": {"input": arguments}}
    changed |= told.get(item["type"], {"content": parts} if "content" in item else {})
    assert done == {**item, **changed}, "RS-05, RS-09"
    return done


def _ended(item: Json) -> bool:
    """Whether an item is whole; a call of an MCP server may have failed, and its other items have no status."""
    return bool(item.get("status", "completed") == "completed") or (
        item["type"] == "mcp_call" and item["status"] == "failed"
    )


def _remote_item(stream: _Events, item: Json, where: Json) -> Json:
    """TOOL-21: one item of an MCP server, from `added` to `done`."""
    kind, arguments = item["type"], ""
    told: Json = {}
    if kind != "mcp_approval_request":
        assert where.items() <= stream.take(f"response.{kind}.in_progress").items()
    if kind == "mcp_call":
        assert (item["status"], item["arguments"]) == ("in_progress", ""), "RS-05"
        while stream.peek() == "response.mcp_call_arguments.delta":
            arguments += stream.take("response.mcp_call_arguments.delta")["delta"]
        event = stream.take("response.mcp_call_arguments.done")
        assert {**where, "arguments": arguments}.items() <= event.items()
        told = {"arguments": arguments}
    ended = stream.peek().removeprefix(f"response.{kind}.")
    if ended in ("completed", "failed"):
        assert where.items() <= stream.take(f"response.{kind}.{ended}").items()
    finished = stream.take("response.output_item.done")
    assert finished["output_index"] == where["output_index"], "RS-06"
    done: Json = finished["item"]
    if kind == "mcp_list_tools":
        told = {"tools": done["tools"], "error": done["error"]}
        assert ended == ("completed" if done["error"] is None else "failed")
    elif kind == "mcp_call":
        told |= {name: done[name] for name in ("output", "error", "status")}
        assert done["status"] == (ended if ended in ("completed", "failed") else "incomplete")
        assert (done["output"] is None) == (done["status"] != "completed")
        assert (done["error"] is None) == (done["status"] != "failed")
    assert done == {**item, **told}, "RS-05"
    return done


def _part(stream: _Events, where: Json, content_index: int) -> Json:
    """RS-08, RS-09, RS-12: one part, from `added` to `done`."""
    where = {**where, "content_index": content_index}
    added = stream.take("response.content_part.added")
    assert where.items() <= added.items()
    part = added["part"]
    delta_kind, done_kind, key = _PART_EVENTS[part["type"]]
    assert part[key] == ""
    text, logprobs = "", []
    while stream.peek() == delta_kind:
        event = stream.take(delta_kind)
        assert where.items() <= event.items(), "RS-07"
        assert event["delta"], "RS-18"
        text += event["delta"]
        logprobs += event.get("logprobs", [])
    done = stream.take(done_kind)
    assert where.items() <= done.items()
    assert done[key] == text, "RS-09"
    finished = stream.take("response.content_part.done")
    assert where.items() <= finished.items()
    whole: Json = finished["part"]
    assert whole[key] == text, "RS-09"
    if part["type"] == "output_text":
        assert part["annotations"] == part["logprobs"] == []
        assert done["logprobs"] == logprobs, "LP-07"
        assert [entry["token"] for entry in whole["logprobs"]] == [entry["token"] for entry in logprobs]
    return whole


def check_response(response: Json) -> None:
    """R-01 to R-10 of a response that has ended."""
    valid("Response", response)
    assert response["object"] == "response"
    usage = response["usage"]
    if response["status"] == "completed":
        assert response["completed_at"] >= response["created_at"], "R-03"
        assert response["error"] is None
        assert response["incomplete_details"] is None
        # A stop string, which this API does not know, may have cut a call at the end (SO-05).
        assert all(_ended(item) for item in response["output"][:-1]), "R-07"
        assert all(_ended(item) or item["type"].endswith("_call") for item in response["output"]), "R-07"
    else:
        assert response["completed_at"] is None, "R-03"
    if response["status"] == "incomplete":
        assert response["incomplete_details"]["reason"] in ("max_output_tokens", "content_filter")
    if response["status"] == "failed":
        assert response["error"]["message"], "R-04"
    else:
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], "R-10"
        assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
        assert usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]


def without_names(value: Any) -> Any:
    """A document without ids and times, which differ between two runs of the same request."""
    match value:
        case dict():
            return {
                key: "…"
                if key in ("id", "created", "created_at", "completed_at") and item is not None
                else without_names(item)
                for key, item in value.items()
            }
        case list():
            return [without_names(item) for item in value]
        case _:
            return value


def without_nulls(value: Json) -> Json:
    """Return an object without its null members, which whole answers have and streams leave out, as in vLLM."""
    return {name: member for name, member in value.items() if member is not None}
