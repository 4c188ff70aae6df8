"""Write and store responses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from example_servers.reference import client_calls, mcp_calls
from example_servers.reference.model_output import Output, entry, output, pieces
from example_servers.reference.refusals import CLIENT_TOOLS, Refused, check_calls, names_of
from example_servers.reference.stored import Conversations

__all__ = ["Kept"]

Json = dict[str, Any]
ECHOED: Json = {
    "previous_response_id": None,
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "reasoning": {"effort": None, "summary": None},
    "max_output_tokens": None,
    "max_tool_calls": None,
    "store": True,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
}


Memory = dict[str, tuple[Json, list[Json], list[Json]]]
"""By id: the response, its input, and the complete context."""


class Kept:
    """Create, store and return responses."""

    def __init__(self) -> None:
        self._made = 0
        self._kept: Memory = {}
        self._running: dict[str, Iterator[Json]] = {}
        """Background responses, by id; each poll advances the status."""
        self._streams: dict[str, list[Json]] = {}
        self.conversations = Conversations()

    def get(self, name: str, query: dict[str, str] | None = None) -> Json | list[Json]:
        """Get a response (ST-03, ST-10), or its stream (RS-20)."""
        if name not in self._kept:
            raise Refused(f"Response {name} not found.", "response_id", "response_not_found", status=404)
        after = _number(query or {}, "starting_after", -1, range(2**31))
        if (query or {}).get("stream") == "true":
            return [event for event in self._streams[name] if event["sequence_number"] > after]
        state = next(self._running.get(name, iter(())), None)
        if state is not None:
            self._kept[name] = (state, *self._kept[name][1:])
        return self._kept[name][0]

    def delete(self, name: str) -> Json:
        """Delete a response (ST-02)."""
        self.get(name)
        del self._kept[name]
        return {"id": name, "object": "response", "deleted": True}

    def cancel(self, name: str) -> Json:
        """Cancel a response (ST-11)."""
        if name not in self._kept:
            self.get(name)
        response = self._kept[name][0]
        if not response["background"]:
            raise Refused("Only responses created with background=true can be cancelled.", None, None)
        if response["status"] in ("queued", "in_progress"):
            del self._running[name]
            response = {**response, "status": "cancelled"}
            self._kept[name] = (response, *self._kept[name][1:])
        return response

    def compact(self, body: Json) -> Json:
        """Compact a conversation (ST-15)."""
        self._made += 1
        prompt = _count(_items(body), body)
        item = {"type": "compaction", "id": f"cmp_{self._made}", "encrypted_content": "b3BhcXVl"}
        usage = _usage(prompt, 4, 0)
        made = {"id": f"resp_{self._made}", "created_at": int(time.time()), "object": "response.compaction"}
        return {**made, "output": [item], "usage": usage}

    def items(self, name: str, query: dict[str, str]) -> Json:
        """List the input items of a response (ST-08)."""
        self.get(name)
        found = [
            {**_listed(item), "id": f"in_{name}_{place}"} for place, item in enumerate(self._kept[name][1])
        ]
        if query.get("order", "desc") not in ("asc", "desc"):
            raise Refused("It is asc or desc.", "order")
        if query.get("order", "desc") == "desc":
            found.reverse()
        names = [item["id"] for item in found]
        if "after" in query:
            if query["after"] not in names:
                raise Refused("There is no such item.", "after")
            found = found[names.index(query["after"]) + 1 :]
        limit = _number(query, "limit", 20, range(1, 101))
        shown = found[:limit]
        return {
            "object": "list",
            "data": shown,
            "first_id": shown[0]["id"] if shown else None,
            "last_id": shown[-1]["id"] if shown else None,
            "has_more": len(found) > limit,
        }

    def create(self, body: Json, beside: Memory | None = None) -> tuple[Json, list[Json]]:
        """Return the response and its stream events.

        Args:
            body: the request.
            beside: the stored responses of the connection, its latest one (WS-05).
        """
        own = _items(body)
        previous = body.get("previous_response_id")
        known = {**self._kept, **(beside or {})}
        if previous and previous not in known:
            raise Refused(
                "Previous response not found.", "previous_response_id", "previous_response_not_found"
            )
        if body.get("background") and body.get("store") is False:
            raise Refused("What runs in the background is kept.", "store")
        talk = self.conversations.of(body)
        made = {item.get("id"): item for _, _, items in known.values() for item in items}
        if any(item.get("type") == "item_reference" and item["id"] not in made for item in own):
            raise Refused("There is no such item.", "input", "item_not_found", status=404)
        own = [made[item["id"]] if item.get("type") == "item_reference" else item for item in own]
        context = [*(known[previous][2] if previous else []), *(talk.context if talk else []), *own]
        check_calls(context)
        found = _output(body, context)
        self._made += 1
        steps = list(mcp_calls.steps(f"resp_{self._made}", body, context, _question(context)))
        if any(item["type"] == "mcp_approval_request" for item, _, _ in steps):
            found = Output()
        events = list(_events(_frame(body, self._made), found, body, _count(context, body), steps))
        response = events[-1]["response"]
        name = response["id"]
        if talk is not None:
            response["conversation"] = {"id": talk.name}
            talk.items += [*own, *response["output"]]
        found_again = (response, own, [*context, *response["output"]])
        if beside is not None:
            beside.clear()
            beside[name] = found_again
        if body.get("store") is not False:
            self._kept[name] = found_again
            self._streams[name] = events
        if body.get("background") and not body.get("stream"):
            begun = events[0]["response"]
            self._running[name] = iter([{**begun, "status": "in_progress"}, response])
            response = {**begun, "status": "queued"}
            self._kept[name] = (response, *found_again[1:])
        return response, events


def _number(query: dict[str, str], name: str, default: int, allowed: range) -> int:
    if name not in query:
        return default
    text = query[name]
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) in allowed):
        raise Refused("It is a number within bounds.", name)
    return int(text)


def _listed(item: Json) -> Json:
    """Return an input item as stored, with text as a content part."""
    if not isinstance(item.get("content"), str):
        return item
    part = {"type": "input_text", "text": item["content"]}
    return {**item, "content": [part], "status": "completed"}


def _items(body: Json) -> list[Json]:
    given = body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [{"type": "message" if "role" in item else "item_reference", **item} for item in given or []]


def _count(context: list[Json], body: Json) -> int:
    texts = [item.get("arguments") or _text(item) or "x" for item in context if item["type"] != "reasoning"]
    return sum(map(len, texts)) + len(body.get("instructions") or "")


def _text(item: Json) -> str:
    content = item.get("content", item.get("output")) or ""
    if item["type"] == "tool_search_output":
        return str(item["tools"])
    if isinstance(content, str):
        return content
    return "".join(part.get("text", part.get("stdout", "")) for part in content)


def _question(context: list[Json]) -> str:
    """Return the last message, if it is the user's."""
    final = context[-1] if context else {}
    return _text(final) if final.get("role") == "user" else ""


def _output(body: Json, context: list[Json]) -> Output:
    choice = body.get("tool_choice")
    output_format = (body.get("text") or {}).get("format") or {}
    schema = {
        "json_schema": output_format.get("schema"),
        "json_object": {"properties": {"a": {"type": "string"}}},
    }
    tools = [
        {"kind": tool["type"], "name": tool["type"], **tool}
        for tool in _shown(body, context)
        if "name" in tool or tool["type"] in CLIENT_TOOLS
    ]
    return output(
        _question(context),
        tools=tools,
        choice=names_of(choice) if isinstance(choice, dict) else choice,
        parallel=body.get("parallel_tool_calls") is not False,
        thinks=(body.get("reasoning") or {}).get("effort") not in (None, "none"),
        constraint=schema.get(output_format.get("type", "text")),
        limit=body.get("max_output_tokens"),
    )


def _shown(body: Json, context: list[Json]) -> list[Json]:
    """Return the tools that are not deferred, and those that searches have loaded (TOOL-22)."""
    at_once = [tool for tool in body.get("tools") or [] if not tool.get("defer_loading")]
    return at_once + [
        tool for item in context if item["type"] == "tool_search_output" for tool in item["tools"]
    ]


WITHOUT: Json = {"description": None, "parameters": None, "strict": None}
"""The members of a function that a client may leave out."""


def _frame(body: Json, number: int) -> Json:
    echoed = {key: body[key] if body.get(key) is not None else default for key, default in ECHOED.items()}
    if echoed["reasoning"].get("summary") is None:
        echoed["reasoning"] = {**echoed["reasoning"], "summary": None}
    echoed["tools"] = [
        {**(WITHOUT if tool["type"] == "function" else {"description": None}), **tool}
        if "name" in tool
        else mcp_calls.shown(tool)
        for tool in echoed["tools"]
    ]
    echoed["text"] = {"format": {"type": "text"}, **echoed["text"]}
    made = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
    }
    state = {"status": "in_progress", "incomplete_details": None, "model": body["model"], "output": []}
    return {**made, **state, "error": None, **echoed, "usage": None}


def _events(
    frame: Json, found: Output, body: Json, prompt: int, steps: list[mcp_calls.Step]
) -> Iterator[Json]:
    output: list[Json] = []
    number = 0

    def event(kind: str, **fields: Any) -> Json:
        nonlocal number
        number += 1
        return {"type": f"response.{kind}", "sequence_number": number - 1, **deepcopy(fields)}

    yield event("created", response=frame)
    if frame["background"]:
        yield event("queued", response={**frame, "status": "queued"})
    yield event("in_progress", response=frame)
    complete = found.finish != "length"
    wanted = "message.output_text.logprobs" in (body.get("include") or [])
    for begun, inner, done in steps:
        place = len(output)
        output.append(done)
        yield event("output_item.added", output_index=place, item=begun)
        for kind, fields in inner:
            yield event(kind, item_id=done["id"], output_index=place, **fields)
        yield event("output_item.done", output_index=place, item=done)
    planned = list(_planned(frame["id"], found))
    for item, parts in planned:
        place = len(output)
        where = {"item_id": item["id"], "output_index": place}
        yield event("output_item.added", output_index=place, item={**item, "status": "in_progress"})
        cut_here = not complete and (parts is found.text or item is planned[-1][0])
        status = "incomplete" if cut_here else "completed"
        for kind, text in _pieces_of(item["type"], parts):
            yield event(kind, **where, **_place(item, kind), **_event_fields(kind, text, wanted, body, item))
        for kind, fields in client_calls.command_events(item, parts):
            yield event(kind, output_index=place, **fields)
        item = _filled(item, parts, wanted, body)
        output.append({**item, "status": status})
        yield event("output_item.done", output_index=place, item=output[-1])
    if not complete and output:
        output[-1]["status"] = "incomplete"
    ended = {"completed_at": frame["created_at"] + 1, "status": "completed"}
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    usage = _usage(prompt, found.tokens, len(found.reasoning))
    state = ended if complete else cut
    yield event(str(state["status"]), response={**frame, **state, "output": output, "usage": usage})


def _usage(prompt: int, tokens: int, thought: int) -> Json:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": prompt + tokens,
    }


def _planned(name: str, found: Output) -> Iterator[tuple[Json, str]]:
    """Return the items as added, and the text that the deltas send."""
    if found.reasoning:
        yield {"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": []}, found.reasoning
    if found.text:
        yield {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": []}, found.text
    for place, call in enumerate(found.calls):
        kind, prefix, fields = {
            "custom": ("custom_tool_call", "ctc", {"name": call.name, "input": ""}),
            "function": ("function_call", "fc", {"name": call.name, "arguments": ""}),
        }.get(call.kind) or (f"{call.kind}_call", "ct", client_calls.begun(call.kind, call.arguments))
        ids = {"type": kind, "id": f"{prefix}_{name}_{place}", "call_id": f"call_{name}_{place}"}
        yield {**ids, **fields}, call.arguments


def _pieces_of(kind: str, text: str) -> Iterator[tuple[str, str]]:
    match kind:
        case "reasoning" | "message":
            stem = "reasoning_text" if kind == "reasoning" else "output_text"
            yield "content_part.added", ""
        case "function_call":
            stem = "function_call_arguments"
        case "custom_tool_call":
            stem = "custom_tool_call_input"
        case _:
            return
    yield from ((f"{stem}.delta", piece) for piece in pieces(text))
    yield f"{stem}.done", text
    if kind in ("reasoning", "message"):
        yield "content_part.done", text


def _place(item: Json, kind: str) -> Json:
    return {"content_index": 0} if item["type"] in ("reasoning", "message") else {}


def _event_fields(kind: str, text: str, wanted: bool, body: Json, item: Json) -> Json:
    if kind.startswith("content_part"):
        return {"part": _part(item, text, wanted, body)}
    if kind.startswith("output_text"):
        key = "text" if kind.endswith("done") else "delta"
        return {key: text, "logprobs": _logprobs(text, wanted, body)}
    if kind.endswith(".delta"):
        return {"delta": text}
    key = {"reasoning_text.done": "text", "custom_tool_call_input.done": "input"}.get(kind, "arguments")
    return {key: text, "name": item["name"]} if key == "arguments" else {key: text}


def _part(item: Json, text: str, wanted: bool, body: Json) -> Json:
    if item["type"] == "reasoning":
        return {"type": "reasoning_text", "text": text}
    logprobs = _logprobs(text, wanted, body)
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _logprobs(text: str, wanted: bool, body: Json) -> list[Json]:
    return [entry(char, body.get("top_logprobs") or 0) for char in text] if wanted else []


def _filled(item: Json, text: str, wanted: bool, body: Json) -> Json:
    match item["type"]:
        case "function_call":
            return {**item, "arguments": text}
        case "custom_tool_call":
            return {**item, "input": text}
        case "shell_call" | "local_shell_call" | "apply_patch_call" | "tool_search_call":
            return client_calls.filled(item, text)
    return {**item, "content": [_part(item, text, wanted, body)]}
