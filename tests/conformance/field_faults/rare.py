"""Faults that show in few requests: with several options at once, at a limit, or in one mode only."""

from __future__ import annotations

import json
from typing import Any

from field_faults.changes import Event, Json, Row, calls_in, deltas, each_choice, ended, streamed, whole

__all__ = ["RARE"]


def _limit(asked: Json) -> int:
    return int(asked.get("max_completion_tokens") or asked.get("max_tokens") or 0)


def _usages(change: Any) -> Any:
    def apply(events: list[Event], asked: Json) -> None:
        for _, data in events:
            if isinstance(data, dict) and isinstance(data.get("usage"), dict):
                change(data["usage"], asked)

    return apply


def _one_choice_counted(usage: Json, asked: Json) -> None:
    number = asked.get("n") or 1
    usage["completion_tokens"] //= number
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


def _streams_one_more(usage: Json, _: Json) -> None:
    usage["completion_tokens"] += 1
    usage["total_tokens"] += 1


def _stops_at_limit(choice: Json, _: Json) -> None:
    if choice["finish_reason"] == "length":
        choice["finish_reason"] = "stop"


def _last_token_unlisted(events: list[Event], _: Json) -> None:
    listed = [
        choice
        for _kind, data in events
        if isinstance(data, dict)
        for choice in data["choices"]
        if (choice.get("logprobs") or {}).get("content")
    ]
    if listed:
        listed[-1]["logprobs"]["content"].pop()


def _two_at_one(answer: Json, asked: Json) -> None:
    if _limit(asked) == 1:
        answer["usage"]["completion_tokens"] += 1
        answer["usage"]["total_tokens"] += 1


def _fenced_streams(events: list[Event], asked: Json) -> None:
    if (asked.get("response_format") or {}).get("type", "text") != "text":
        for _, data in events:
            for choice in data["choices"] if isinstance(data, dict) else ():
                if choice["delta"].get("content"):
                    choice["delta"]["content"] = f"```json\n{choice['delta']['content']}"
                    return


def _strict_extended(choice: Json, asked: Json) -> None:
    strict = {
        tool["function"]["name"]
        for tool in asked.get("tools") or ()
        if tool.get("type") == "function" and tool["function"].get("strict")
    }
    for call in calls_in(choice):
        function = call.get("function") or {}
        text = str(function.get("arguments"))
        if function.get("name") in strict and text.endswith("}"):
            function["arguments"] = f'{text[:-1]}{", " if ":" in text else ""}"unasked": 1}}'


def _two_calls(answer: Json, asked: Json) -> None:
    if asked.get("parallel_tool_calls") is False:
        for choice in answer["choices"]:
            calls = calls_in(choice)
            calls += [{**call, "id": f"{call['id']}b"} for call in calls]


def _not_allowed(choice: Json, asked: Json) -> None:
    found = asked.get("tool_choice")
    if isinstance(found, dict) and found.get("type") == "allowed_tools":
        for call in calls_in(choice):
            if call.get("function"):
                call["function"]["name"] = "another_tool"


def _escaped(choice: Json, _: Json) -> None:
    content = choice["message"].get("content")
    if content and not content.isascii():
        choice["message"]["content"] = content.encode("unicode_escape").decode()


def _more_cached(answer: Json, _: Json) -> None:
    answer["usage"]["prompt_tokens_details"] = {"cached_tokens": answer["usage"]["prompt_tokens"] + 1}


def _unthought(answer: Json, _: Json) -> None:
    if any(choice["message"].get("reasoning_content") for choice in answer["choices"]):
        answer["usage"]["completion_tokens_details"] = {"reasoning_tokens": 0}


def _second_model(answer: Json, asked: Json) -> None:
    if asked.get("tools"):
        answer["model"] = ""


def _parallel_texts(choice: Json, _: Json) -> None:
    if choice["index"] == 1 and choice["message"].get("content"):
        choice["index"] = 0


def _shifted_echo(answer: Json, asked: Json) -> None:
    for choice in answer["choices"] if asked.get("echo") else ():
        if choice.get("logprobs"):
            values = choice["logprobs"]["token_logprobs"]
            choice["logprobs"]["token_logprobs"] = [None if one is None else one - 2 for one in values]


def _no_more(exchange: Any) -> bool:
    return bool(
        exchange.path.endswith("/input_items") and exchange.status == 200 and exchange.method == "GET"
    )


def _page(exchange: Any) -> Any:
    """Return every list of items without its end."""
    if not _no_more(exchange) or not isinstance(exchange.json, dict):
        return exchange
    page = {**exchange.json, "has_more": False}
    return ended(lambda _: True, content=json.dumps(page).encode())(exchange)


def _cancelled(exchange: Any) -> Any:
    if not exchange.path.endswith("/cancel") or exchange.status != 200:
        return exchange
    found = {**exchange.json, "status": "in_progress"}
    return ended(lambda _: True, content=json.dumps(found).encode())(exchange)


def _deleted(exchange: Any) -> Any:
    if exchange.method != "DELETE" or exchange.status != 200:
        return exchange
    return ended(lambda _: True, content=b"")(exchange)


def _uncounted_end(events: list[Event], _: Json) -> None:
    for _kind, data in events:
        if data.get("type") == "message_delta":
            data["usage"]["output_tokens"] = 0


def _estimated(exchange: Any) -> Any:
    if not exchange.path.endswith("/count_tokens") or exchange.status != 200:
        return exchange
    found = {"input_tokens": exchange.json["input_tokens"] // 2}
    return ended(lambda _: True, content=json.dumps(found).encode())(exchange)


def _unsigned(events: list[Event], _: Json) -> list[Event]:
    return [one for one in events if (one[1].get("delta") or {}).get("type") != "signature_delta"]


def _systemless(answer: Json, asked: Json) -> None:
    system = asked.get("system")
    if system:
        text = system if isinstance(system, str) else "".join(block["text"] for block in system)
        answer["usage"]["input_tokens"] = max(1, answer["usage"]["input_tokens"] - len(text))


def _named_anyway(answer: Json, asked: Json) -> None:
    choice = asked.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "function":
        answer["output"] = [
            {**item, "name": "another_tool"} if item["type"] == "function_call" else item
            for item in answer["output"]
        ]


def _no_obvious_limit(answer: Json, asked: Json) -> None:
    if asked.get("max_output_tokens") and answer["status"] == "incomplete":
        answer["incomplete_details"] = None


def _defaults(answer: Json, _: Json) -> None:
    answer.update(temperature=1.0, top_p=1.0)


def _unmarked(answer: Json, _: Json) -> None:
    for item in answer["output"]:
        item["id"] = answer["id"]


def _reasoning_as_text(answer: Json, _: Json) -> None:
    for item in answer["output"]:
        if item["type"] == "reasoning":
            part = {"type": "output_text", "text": "Hm", "annotations": [], "logprobs": []}
            item.update(type="message", role="assistant", status="completed", content=[part])
            item.pop("summary", None)


def _without_system(answer: Json, asked: Json) -> None:
    texts = [one.get("content") for one in asked["messages"] if one["role"] in ("system", "developer")]
    dropped = sum(len(text) for text in texts if isinstance(text, str))
    _fewer(answer["usage"], dropped)


def _without_first(answer: Json, asked: Json) -> None:
    if len(asked["messages"]) > 2 and isinstance(text := asked["messages"][0].get("content"), str):
        _fewer(answer["usage"], len(text))


def _without_results(answer: Json, asked: Json) -> None:
    texts = [one.get("content") for one in asked["messages"] if one["role"] == "tool"]
    _fewer(answer["usage"], sum(len(text) for text in texts if isinstance(text, str)))


def _fewer(usage: Json, count: int) -> None:
    usage["prompt_tokens"] = max(1, usage["prompt_tokens"] - count)
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


RARE: tuple[Row, ...] = (
    ("", "a stream counts one of several choices", streamed("chat", _usages(_one_choice_counted))),
    ("", "a stream counts one token more", streamed("chat", _usages(_streams_one_more))),
    ("", "the limit is called a stop", whole("chat", each_choice(_stops_at_limit))),
    ("", "the limit is called a stop in streams", deltas(_stops_at_limit)),
    ("", "completions call the limit a stop", whole("completions", each_choice(_stops_at_limit))),
    ("", "the last token of a stream is not listed", streamed("chat", _last_token_unlisted)),
    ("", "two tokens at a limit of one", whole("chat", _two_at_one)),
    ("", "documents of streams begin with a fence", streamed("chat", _fenced_streams)),
    ("", "strict arguments have another member", whole("chat", each_choice(_strict_extended))),
    ("", "two calls where one is allowed", whole("chat", _two_calls)),
    ("", "a tool that is not allowed", whole("chat", each_choice(_not_allowed))),
    ("", "text with escapes", whole("chat", each_choice(_escaped))),
    ("", "more cached tokens than the prompt has", whole("chat", _more_cached)),
    ("", "thoughts are not counted", whole("chat", _unthought)),
    ("", "no model beside tools", whole("chat", _second_model)),
    ("", "two choices with one index", whole("chat", each_choice(_parallel_texts))),
    ("", "log probabilities of an echo are those of other tokens", whole("completions", _shifted_echo)),
    ("", "a page says that it is the last", _page),
    ("", "a cancelled response goes on", _cancelled),
    ("", "nothing is said of a deletion", _deleted),
    ("", "a stream of Messages counts nothing", streamed("messages", _uncounted_end)),
    ("", "a count of half of the tokens", _estimated),
    ("", "thoughts of streams have no signature", streamed("messages", _unsigned)),
    ("", "the system of Messages is dropped", whole("messages", _systemless)),
    ("", "a call of another tool than the named one", whole("responses", _named_anyway)),
    ("", "no reason of an incomplete response", whole("responses", _no_obvious_limit)),
    ("", "defaults instead of the temperature of the request", whole("responses", _defaults)),
    ("", "items have the id of the response", whole("responses", _unmarked)),
    ("", "thoughts are messages", whole("responses", _reasoning_as_text)),
    ("", "system messages are dropped", whole("chat", _without_system)),
    ("", "the oldest message is dropped", whole("chat", _without_first)),
    ("", "results of tools are dropped", whole("chat", _without_results)),
)
