"""Faults that threads about agents report: items and events of tools, state, counts of tokens, and echoes."""

from __future__ import annotations

import json
from typing import Any

from mutants.mutations import changed, with_body

from field_faults.changes import Event, Json, Row, ended, streamed, whole
from field_faults.conversations import frames_changed, lists_changed

__all__ = ["AGENTS"]


def _kind(event: Event) -> str:
    return str(event[1].get("type")) if isinstance(event[1], dict) else ""


def _dropped(kind: str) -> Any:
    """Leave out one kind of event of Responses, and number the others without a gap."""

    def apply(events: list[Event], _: Json) -> list[Event]:
        kept = [event for event in events if _kind(event) != kind]
        for number, (_name, data) in enumerate(kept):
            if isinstance(data, dict):
                data["sequence_number"] = number
        return kept

    return apply


# Events of Responses.


def _last(events: list[Event]) -> int:
    """Return the place of the last event, which may be followed by `[DONE]`."""
    return max(number for number, event in enumerate(events) if isinstance(event[1], dict))


def _completed_event(events: list[Event], _: Json) -> None:
    name, data = events[_last(events)]
    if name == "response.incomplete":
        events[_last(events)] = ("response.completed", {**data, "type": "response.completed"})


def _completed_twice(events: list[Event], _: Json) -> None:
    name, data = events[_last(events)]
    again = (name, {**data, "sequence_number": data["sequence_number"] + 1})
    events.insert(_last(events) + 1, again)


def _one_place(events: list[Event], _: Json) -> None:
    for _name, data in events:
        if isinstance(data, dict) and "output_index" in data:
            data["output_index"] = 0


def _emptied(kind: str, member: str) -> Any:
    def apply(events: list[Event], _: Json) -> None:
        for event in events:
            if _kind(event) == kind:
                event[1][member] = ""

    return apply


def _completed_at_start(events: list[Event], _: Json) -> None:
    events[0][1]["response"]["status"] = "completed"


def _calls_lost(events: list[Event], _: Json) -> None:
    response = events[_last(events)][1]["response"]
    if any(item["type"] == "function_call" for item in response["output"]):
        text = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
        response["output"] = [{**message, "content": [text]}]


def _items_added_complete(events: list[Event], _: Json) -> None:
    done = {
        event[1]["item"]["id"]: event[1]["item"] for event in events if _kind(event).endswith("item.done")
    }
    for event in events:
        if _kind(event).endswith("item.added"):
            event[1]["item"] = done.get(event[1]["item"]["id"], event[1]["item"])


# Items of Responses.


def _as_function(item: Json) -> Json:
    if item.get("type") != "custom_tool_call":
        return item
    kept = {name: value for name, value in item.items() if name != "input"}
    arguments = json.dumps({"input": item["input"]}) if item["input"] else ""
    return {**kept, "type": "function_call", "arguments": arguments}


def _functions(answer: Json, _: Json) -> None:
    answer["output"] = [_as_function(item) for item in answer["output"]]


def _wrapped(answer: Json, _: Json) -> None:
    for item in answer["output"]:
        if item["type"] == "custom_tool_call":
            item["input"] = json.dumps({"input": item["input"]})


def _streamed_functions(events: list[Event], _: Json) -> list[Event]:
    made: list[Event] = []
    for name, data in events:
        if not isinstance(data, dict):
            made.append((name, data))
            continue
        text = json.dumps(data).replace("custom_tool_call_input", "function_call_arguments")
        new = json.loads(text)
        if "item" in new:
            new["item"] = _as_function(new["item"])
        if "response" in new:
            _functions(new["response"], {})
        if str(new["type"]).endswith("arguments.done") and "input" in new:
            new["arguments"] = new.pop("input")
        made.append((name and new["type"], new))
    return made


def _constant_ids(answer: Json, _: Json) -> None:
    for item in answer["output"]:
        if item["type"] == "message":
            item["id"] = "msg_0"


def _thoughts_last(answer: Json, _: Json) -> None:
    answer["output"].sort(key=lambda item: item["type"] == "reasoning")


def _arguments_parsed(answer: Json, _: Json) -> None:
    for item in answer["output"]:
        if item["type"] == "function_call":
            item["arguments"] = {"parsed": True}


def _own_call_ids(answer: Json, _: Json) -> None:
    for item in answer["output"]:
        if item["type"] == "function_call":
            item["call_id"] = ""


# Echoes of Responses.


def _echo(member: str, value: Any) -> Any:
    """Always answer with one value, whatever the request has."""

    def apply(answer: Json, _: Json) -> None:
        answer[member] = value

    return apply


def _instructions_kept() -> Any:
    """Name the instructions of the previous response in a response without any."""
    known: dict[Any, Any] = {}

    def apply(answer: Json, asked: Json) -> None:
        before = known.get(asked.get("previous_response_id"))
        known[answer["id"]] = asked.get("instructions")
        if before and not asked.get("instructions"):
            answer["instructions"] = before

    return apply


# State.


def _asked(exchange: Any) -> Any:
    return exchange.request_json if isinstance(exchange.request_json, dict) else {}


def _continued(exchange: Any) -> bool:
    return exchange.status == 200 and bool(_asked(exchange).get("previous_response_id"))


def _lost_parent() -> bytes:
    error = {"message": "No such response.", "type": "invalid_request_error", "param": "previous_response_id"}
    return json.dumps({"error": {**error, "code": "previous_response_not_found"}}).encode()


def _after_streams() -> Any:
    """Refuse to continue responses, as a server does that does not keep streamed ones."""
    return ended(_continued, status=404, content=_lost_parent())


def _newest_input_only(page: Json, exchange: Any) -> None:
    if len(page["data"]) > 1:
        page["data"] = page["data"][:1]
        page["last_id"] = page["first_id"]


def _cursor_included(page: Json, exchange: Any) -> None:
    _, _, after = exchange.url.partition("after=")
    if after and page["data"]:
        cursor = after.partition("&")[0]
        page["data"] = [{**page["data"][0], "id": cursor}, *page["data"]]
        page["first_id"] = cursor


def _deleted_object(exchange: Any) -> Any:
    if exchange.method != "DELETE" or "/items/" not in exchange.path or exchange.status != 200:
        return exchange
    identity = exchange.path.rpartition("/")[2]
    found = {"id": identity, "object": "conversation.item.deleted", "deleted": True}
    return with_body(exchange, json.dumps(found).encode())


def _still_there(exchange: Any) -> Any:
    path = exchange.path
    if exchange.method != "GET" or "/conversations/conv" not in path or "/items" in path:
        return exchange
    if exchange.status != 404:
        return exchange
    found = {
        "id": path.rpartition("/")[2],
        "object": "conversation",
        "created_at": 1796039159,
        "metadata": {},
    }
    return with_body(changed(exchange, status=200), json.dumps(found).encode())


def _unformatted(exchange: Any) -> bool:
    text = _asked(exchange).get("text")
    return exchange.path.endswith("/responses") and isinstance(text, dict) and not text.get("format")


def _no_format() -> bytes:
    error = {"message": "Required", "type": "invalid_request_error", "param": "text.format", "code": None}
    return json.dumps({"error": error}).encode()


def _old_metadata(exchange: Any) -> Any:
    if exchange.method != "POST" or "/chat/completions/" not in exchange.path or exchange.status != 200:
        return exchange
    return with_body(exchange, json.dumps({**exchange.json, "metadata": {}}).encode())


# Counts.


def _counts(path: str, member: str) -> Any:
    """Count less where a request has a member."""

    def apply(exchange: Any) -> Any:
        if not exchange.path.endswith(path) or exchange.status != 200 or not _asked(exchange).get(member):
            return exchange
        found = json.loads(exchange.body)
        found["input_tokens"] = max(1, found["input_tokens"] // 2)
        return with_body(exchange, json.dumps(found).encode())

    return apply


def _sum_of_counts(events: list[Event], _: Json) -> None:
    for _name, data in events:
        usage = data.get("usage") if isinstance(data, dict) else None
        if usage:
            number = usage["completion_tokens"]
            usage["completion_tokens"] = number * (number + 1) // 2
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


def _usage_everywhere(events: list[Event], asked: Json) -> None:
    if not (asked.get("stream_options") or {}).get("include_usage"):
        return
    last = next((data["usage"] for _, data in reversed(events) if isinstance(data, dict)), None)
    for number, (_name, data) in enumerate(events):
        if isinstance(data, dict) and data.get("choices") and last:
            count = min(number, last["completion_tokens"])
            data["usage"] = {
                **last,
                "completion_tokens": count,
                "total_tokens": last["prompt_tokens"] + count,
            }


def _other_names(answer: Json, _: Json) -> None:
    usage = answer["usage"]
    answer["usage"] = {
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
    }


def _nothing_counted(answer: Json, _: Json) -> None:
    answer["usage"] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def _first_prompt_counted(answer: Json, asked: Json) -> None:
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):
        usage = answer["usage"]
        usage["prompt_tokens"] = max(1, usage["prompt_tokens"] // len(prompt))
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


def _cache_counted_twice(answer: Json, _: Json) -> None:
    answer["usage"]["input_tokens"] += answer["usage"].get("cache_read_input_tokens") or 0


def _silent_sockets(frame: bytes) -> list[bytes]:
    found = json.loads(frame)
    if "response" in found:
        found["response"]["usage"] = None
    return [json.dumps(found).encode()]


def _no_sequence(frame: bytes) -> list[bytes]:
    found = json.loads(frame)
    found.pop("sequence_number", None)
    return [json.dumps(found).encode()]


AGENTS: tuple[Row, ...] = (
    ("agentic-api#273", "cut responses end as complete ones do", streamed("responses", _completed_event)),
    ("openai-agents#2427", "responses end twice", streamed("responses", _completed_twice)),
    ("9router#2611", "all items have one place", streamed("responses", _one_place)),
    ("llm-rosetta#56", "no end of a part", streamed("responses", _dropped("response.content_part.done"))),
    (
        "iii-hq/workers#1020",
        "the end of arguments has none",
        streamed("responses", _emptied("response.function_call_arguments.done", "arguments")),
    ),
    (
        "OmniRoute#4862",
        "the end of a custom input has none",
        streamed("responses", _emptied("response.custom_tool_call_input.done", "input")),
    ),
    ("vllm#29947", "responses are complete from the start", streamed("responses", _completed_at_start)),
    ("sglang#12652", "calls are missing at the end", streamed("responses", _calls_lost)),
    ("tt-inference-server#3497", "items are added complete", streamed("responses", _items_added_complete)),
    ("ds4#745", "custom calls are function calls", whole("responses", _functions)),
    (
        "9router#1371",
        "custom calls of streams are function calls",
        streamed("responses", _streamed_functions),
    ),
    ("copilot-api#242", "custom inputs are wrapped in JSON", whole("responses", _wrapped)),
    ("tt-inference-server#3497", "messages have the same id", whole("responses", _constant_ids)),
    ("mlx-vlm#1458", "thoughts after what they led to", whole("responses", _thoughts_last)),
    ("opencodex#4652", "arguments of responses are objects", whole("responses", _arguments_parsed)),
    ("lmstudio#830", "calls of responses have an empty id", whole("responses", _own_call_ids)),
    ("litellm#28899", "parallel calls are always on", whole("responses", _echo("parallel_tool_calls", True))),
    ("litellm#28899", "the choice of tools is always auto", whole("responses", _echo("tool_choice", "auto"))),
    ("litellm#28899", "no limit is repeated", whole("responses", _echo("max_output_tokens", None))),
    ("litellm#28899", "no metadata are repeated", whole("responses", _echo("metadata", {}))),
    ("ogx#2074", "instructions of the turn before", whole("responses", _instructions_kept())),
    ("lmstudio#1188", "responses cannot be continued", _after_streams()),
    ("ogx#2299", "only the newest input is listed", lists_changed("/input_items", _newest_input_only)),
    ("ogx#5611", "pages begin with their cursor", lists_changed("/items", _cursor_included)),
    ("ogx#5748", "deleted items instead of their conversation", _deleted_object),
    ("ogx#68", "deleted conversations can be read", _still_there),
    ("lmstudio#1576", "a text needs a format", ended(_unformatted, status=400, content=_no_format())),
    ("", "updates of stored chats are lost", _old_metadata),
    ("CLIProxyAPI#840", "counts of Messages without tools", _counts("/count_tokens", "tools")),
    ("litellm#22301", "counts of Messages without the system", _counts("/count_tokens", "system")),
    ("", "counts of responses without tools", _counts("/input_tokens", "tools")),
    ("", "counts of responses without instructions", _counts("/input_tokens", "instructions")),
    ("vllm-omni#2313", "streams count the sum of all counts", streamed("chat", _sum_of_counts)),
    ("kubeai#283", "each chunk has a usage", streamed("chat", _usage_everywhere)),
    ("pi#2326", "usage as in responses", whole("chat", _other_names)),
    ("LocalAI#3436", "completions count nothing", whole("completions", _nothing_counted)),
    ("", "only the first prompt is counted", whole("completions", _first_prompt_counted)),
    ("", "cached tokens are input too", whole("messages", _cache_counted_twice)),
    ("ogx#6054", "turns of WebSockets have no usage", frames_changed(_silent_sockets)),
    ("ogx#6054", "events of WebSockets are not numbered", frames_changed(_no_sequence)),
)
