"""What a server made of an answer: thinking, text, calls and how it ended, from any API, streamed or not."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from plumbline_conformance.transcript.model import Exchange

__all__ = ["Answer", "Call", "Surface", "answer_of"]

Surface = Literal["chat", "completions", "responses"]


class Call(msgspec.Struct, frozen=True):
    """A call as a client gets it."""

    name: str
    arguments: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The message of an answer."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()
    finish: str = ""
    """`stop`, `length` or `tool_calls`; of Responses `stop` stands for a completed one without calls."""


def answer_of(surface: Surface, exchange: Exchange) -> Answer | None:
    """The message, or None where the exchange has none that can be read."""
    if exchange.error is not None or exchange.status != 200:
        return None
    streamed = isinstance(exchange.request_json, dict) and exchange.request_json.get("stream") is True
    try:
        match surface, streamed:
            case "responses", True:
                return _of_events(exchange.chunks)
            case "responses", False:
                return _of_response(exchange.json)
            case _, True:
                return _of_chunks(exchange.chunks)
            case _:
                return _of_choice(exchange.json["choices"][0])
    except (LookupError, TypeError, AttributeError, ValueError):
        return None


def _thought(message: dict[str, Any]) -> str:
    """Servers have two names for it (CS-17)."""
    return message.get("reasoning_content") or message.get("reasoning") or ""


def _of_choice(choice: dict[str, Any]) -> Answer:
    message = choice.get("message")
    if message is None:
        return Answer(content=choice["text"], finish=str(choice["finish_reason"]))
    called = [call["function"] for call in message.get("tool_calls") or []]
    return Answer(
        reasoning=_thought(message),
        content=message.get("content") or "",
        calls=tuple(Call(function["name"], function["arguments"]) for function in called),
        finish=str(choice["finish_reason"]),
    )


def _of_chunks(chunks: list[Any]) -> Answer:
    reasoning: list[str] = []
    content: list[str] = []
    calls: dict[int, list[str]] = {}
    finish = ""
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = choice.get("delta") or {"content": choice.get("text")}
        reasoning.append(_thought(delta))
        content.append(delta.get("content") or "")
        for call in delta.get("tool_calls") or []:
            function = call.get("function") or {}
            name_and_arguments = calls.setdefault(call["index"], ["", ""])
            name_and_arguments[0] += function.get("name") or ""
            name_and_arguments[1] += function.get("arguments") or ""
        finish = choice.get("finish_reason") or finish
    return Answer(
        reasoning="".join(reasoning),
        content="".join(content),
        calls=tuple(Call(*calls[index]) for index in sorted(calls)),
        finish=finish,
    )


def _of_response(response: dict[str, Any]) -> Answer:
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[Call] = []
    for item in response["output"]:
        match item["type"]:
            case "reasoning":
                reasoning.append(_joined(item.get("content")) or _joined(item.get("summary")))
            case "message":
                content += [part.get("text") or "" for part in item["content"]]
            case "function_call":
                calls.append(Call(item["name"], item["arguments"]))
    return Answer(
        reasoning="".join(reasoning),
        content="".join(content),
        calls=tuple(calls),
        finish=_finish(response, bool(calls)),
    )


def _joined(parts: list[Any] | None) -> str:
    return "".join(part["text"] for part in parts or [])


def _of_events(events: list[Any]) -> Answer:
    """By the deltas: that they add up to the items is what other checks are for (RS-09)."""
    thoughts: dict[int, str] = {}
    summaries: dict[int, str] = {}
    content: list[str] = []
    calls: dict[int, list[str]] = {}
    finish = ""
    for event in events:
        match event["type"]:
            case "response.reasoning_text.delta":
                index = event["output_index"]
                thoughts[index] = thoughts.get(index, "") + event["delta"]
            case "response.reasoning_summary_text.delta":
                index = event["output_index"]
                summaries[index] = summaries.get(index, "") + event["delta"]
            case "response.output_text.delta":
                content.append(event["delta"])
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                calls[event["output_index"]] = [event["item"]["name"], ""]
            case "response.function_call_arguments.delta":
                calls[event["output_index"]][1] += event["delta"]
            case "response.function_call_arguments.done":
                # A server may write short arguments in one piece, without a delta.
                calls[event["output_index"]][1] = calls[event["output_index"]][1] or event["arguments"]
            case "response.completed" | "response.incomplete" | "response.failed":
                finish = _finish(event["response"], bool(calls))
    return Answer(
        # Of an item with both, the summary only repeats the thought, as in an answer in one piece.
        reasoning="".join(
            thoughts.get(index) or summaries.get(index, "") for index in sorted({*thoughts, *summaries})
        ),
        content="".join(content),
        calls=tuple(Call(*calls[index]) for index in sorted(calls)),
        finish=finish,
    )


def _finish(response: dict[str, Any], called: bool) -> str:
    """The chat's word for how a response ended."""
    if response["status"] == "completed":
        return "tool_calls" if called else "stop"
    reason = (response.get("incomplete_details") or {}).get("reason")
    return "length" if reason == "max_output_tokens" else str(response["status"])
