"""Fold an answer, whole or streamed, of any of the three APIs into one `Answer`.

A stream and a whole answer with the same content fold into equal values. The fold never raises: it leaves out
malformed parts and names them in `Answer.faults`. Checks read the other parts; schema checks report the malformed
ones. The differential and exact comparisons treat an answer as missing if a field that they compare is malformed.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.transcript.sse import load_json

__all__ = [
    "REASONING_KEYS",
    "Answer",
    "AnsweredCall",
    "Choice",
    "Fault",
    "Surface",
    "fold",
    "fold_stream",
    "fold_whole",
    "is_stream",
    "objects_in",
]

Surface = Literal["chat", "completions", "responses"]
Fault = Literal["envelope", "choice", "message", "delta", "text", "reasoning", "calls", "finish"]
"""The malformed part:

- `envelope`: a body, chunk or event without the list or type that everything else depends on
- `choice`: a choice, message, delta or output item that is not an object
- `message`: a whole choice or output item without its message or text
- `delta`: a streamed choice without its delta or text
- `text`, `reasoning`: not a string
- `calls`: a tool call without its index, name or arguments
- `finish`: a whole choice without `finish_reason`
"""
REASONING_KEYS = ("reasoning_content", "reasoning")
"""Servers use either name (CS-17), and those that rename it send both for a while."""


class AnsweredCall(msgspec.Struct, repr_omit_defaults=True, eq=False):
    """One tool call, without its id: ids differ between two answers with the same content.

    Arguments are equal as JSON: a parser of whole answers writes them anew, with other white space than the model.
    """

    name: str = ""
    arguments: str = ""
    """The arguments, or the input of a custom tool."""
    custom: bool = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AnsweredCall) or (self.name, self.custom) != (other.name, other.custom):
            return False
        if self.arguments == other.arguments or self.custom:
            return self.arguments == other.arguments
        values = [load_json(one.arguments) for one in (self, other)]
        # As texts, because `true` equals 1 in Python.
        return None not in values and len({json.dumps(value, sort_keys=True) for value in values}) == 1


class Choice(msgspec.Struct, repr_omit_defaults=True):
    """One choice, or the output of a response. Two with the same content are equal, whole or streamed."""

    content: str = ""
    refusal: str = ""
    """What the model says instead of an answer."""
    reasoning: str = ""
    summary: str = ""
    """The summaries of the reasoning items of a response, except of items that also have a text."""
    calls: list[AnsweredCall] = msgspec.field(default_factory=list)
    finish_reason: Any = None
    """The last one that is not null; of a response its status."""


class Answer(msgspec.Struct):
    """The choices of an answer in the order of their index, and what belongs to all of them."""

    choices: list[Choice] = msgspec.field(default_factory=list)
    finish_reasons: list[Any] = msgspec.field(default_factory=list)
    """Each `finish_reason` that is not null; of a response its status and the values of `incomplete_details`."""
    logprobs: list[Any] = msgspec.field(default_factory=list)
    """Each `logprobs` that is not null, as it was sent."""
    usage: Any = None
    """As it was sent."""
    faults: set[Fault] = msgspec.field(default_factory=set)


def is_stream(exchange: Exchange) -> bool:
    """Return whether the request asks for a stream."""
    body = exchange.request_json
    return isinstance(body, dict) and body.get("stream") is True


def fold(surface: Surface, exchange: Exchange) -> Answer:
    """Fold the answer of an exchange, as a stream if the request asks for one."""
    if is_stream(exchange):
        return fold_stream(surface, exchange.chunks)
    return fold_whole(surface, exchange.json)


def fold_whole(surface: Surface, body: Any) -> Answer:
    """Fold the JSON body of a whole answer."""
    answer = Answer()
    envelope = _object(answer, body, "envelope")
    if surface == "responses":
        _fold_output(answer, envelope)
        return answer
    answer.usage = envelope.get("usage")
    for part in sorted(_choices(answer, envelope), key=_index):
        choice = Choice()
        _add_texts(answer, choice, message := _message(answer, part, surface, stream=False))
        _add_end(answer, choice, part)
        choice.calls = [
            _call(answer, call, whole=True) for call in _objects(answer, message.get("tool_calls"), "calls")
        ]
        if "finish_reason" not in part:
            answer.faults.add("finish")
        answer.choices.append(choice)
    return answer


def fold_stream(surface: Surface, values: list[Any]) -> Answer:
    """Fold the JSON of the events of a stream."""
    return _fold_events(values) if surface == "responses" else _fold_chunks(surface, values)


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; an empty list for any other value."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _fold_chunks(surface: Surface, values: list[Any]) -> Answer:
    answer = Answer()
    choices: dict[int, Choice] = {}
    calls: dict[int, dict[int, AnsweredCall]] = {}
    for value in values:
        chunk = _object(answer, value, "envelope")
        answer.usage = chunk.get("usage") or answer.usage
        for part in _choices(answer, chunk):
            index = _index(part)
            choice = choices.setdefault(index, Choice())
            _add_texts(answer, choice, delta := _message(answer, part, surface, stream=True))
            _add_end(answer, choice, part)
            for piece in _objects(answer, delta.get("tool_calls"), "calls"):
                if "index" not in piece:
                    answer.faults.add("calls")
                _extend(
                    calls.setdefault(index, {}).setdefault(_index(piece), AnsweredCall()),
                    _call(answer, piece, whole=False),
                )
    for index, choice in sorted(choices.items()):
        choice.calls = [call for _, call in sorted(calls.get(index, {}).items())]
        answer.choices.append(choice)
    return answer


def _fold_output(answer: Answer, response: dict[str, Any]) -> None:
    choice = Choice()
    _add_status(answer, choice, response)
    if not isinstance(response.get("output"), list):
        answer.faults.add("envelope")
    for item in _objects(answer, response.get("output"), "choice"):
        match item.get("type"):
            case "reasoning":
                text = _joined(answer, item.get("content"), "reasoning")
                choice.reasoning += text
                choice.summary += "" if text else _joined(answer, item.get("summary"), "reasoning")
            case "message":
                if item.get("content") is None:
                    answer.faults.add("message")
                choice.content += _joined(answer, item.get("content"), "text")
                choice.refusal += _joined(answer, item.get("content"), "text", "refusal")
            case "function_call":
                choice.calls.append(_function(answer, item, whole=True))
            case None:
                answer.faults.add("choice")
    answer.choices.append(choice)


def _fold_events(values: list[Any]) -> Answer:
    """Fold by the deltas: RS-09 checks that they add up to the items."""
    answer = Answer()
    choice = Choice()
    texts: dict[int, str] = {}
    summaries: dict[int, str] = {}
    calls: dict[int, AnsweredCall] = {}
    for value in values:
        event = _object(answer, value, "envelope")
        place = event.get("output_index")
        index = place if isinstance(place, int) else 0
        match event.get("type"):
            case "response.reasoning_text.delta":
                texts[index] = texts.get(index, "") + _text(answer, event.get("delta"), "reasoning")
            case "response.reasoning_summary_text.delta":
                summaries[index] = summaries.get(index, "") + _text(answer, event.get("delta"), "reasoning")
            case "response.output_text.delta":
                choice.content += _text(answer, event.get("delta"), "text")
            case "response.refusal.delta":
                choice.refusal += _text(answer, event.get("delta"), "text")
            case "response.output_item.added":
                item = _object(answer, event.get("item"), "choice")
                if item.get("type") == "function_call":
                    calls[index] = AnsweredCall(
                        name=_function(answer, {"arguments": "", **item}, whole=True).name
                    )
            case "response.function_call_arguments.delta":
                _known_call(answer, calls, index).arguments += _text(answer, event.get("delta"), "calls")
            case "response.function_call_arguments.done":
                # A server may send short arguments in one piece, without a delta.
                call = _known_call(answer, calls, index)
                call.arguments = call.arguments or _text(answer, event.get("arguments"), "calls")
            case "response.completed" | "response.incomplete" | "response.failed":
                _add_status(answer, choice, _object(answer, event.get("response"), "envelope"))
            case None:
                answer.faults.add("envelope")
    # Drop the summary of an item with a text, because it only repeats the text.
    choice.reasoning = "".join(text for _, text in sorted(texts.items()))
    choice.summary = "".join(text for index, text in sorted(summaries.items()) if not texts.get(index))
    choice.calls = [call for _, call in sorted(calls.items())]
    answer.choices.append(choice)
    return answer


def _known_call(answer: Answer, calls: dict[int, AnsweredCall], index: int) -> AnsweredCall:
    if index not in calls:
        answer.faults.add("calls")
    return calls.setdefault(index, AnsweredCall())


def _add_status(answer: Answer, choice: Choice, response: dict[str, Any]) -> None:
    details = response.get("incomplete_details") or {}
    if "status" not in response or not isinstance(details, dict):
        answer.faults.add("envelope")
        return
    choice.finish_reason = response["status"]
    answer.finish_reasons = [response["status"], *details.values()]
    answer.usage = response.get("usage")


def _choices(answer: Answer, envelope: dict[str, Any]) -> list[dict[str, Any]]:
    if not isinstance(envelope.get("choices"), list):
        answer.faults.add("envelope")
    return _objects(answer, envelope.get("choices"), "choice")


def _message(answer: Answer, choice: dict[str, Any], surface: Surface, *, stream: bool) -> dict[str, Any]:
    """Return the message or delta of a choice. The text of a legacy completion becomes the content of a message."""
    if surface == "completions":
        message = None if choice.get("text") is None else {"content": choice["text"]}
    else:
        message = choice.get("delta" if stream else "message")
    if message is None:
        answer.faults.add("delta" if stream else "message")
        return {}
    return _object(answer, message, "choice")


def _add_texts(answer: Answer, choice: Choice, message: dict[str, Any]) -> None:
    choice.content += _text(answer, message.get("content"), "text")
    choice.refusal += _text(answer, message.get("refusal"), "text")
    reasoning = next((message[key] for key in REASONING_KEYS if message.get(key)), None)
    choice.reasoning += _text(answer, reasoning, "reasoning")


def _add_end(answer: Answer, choice: Choice, part: dict[str, Any]) -> None:
    if (reason := part.get("finish_reason")) is not None:
        choice.finish_reason = reason
        answer.finish_reasons.append(reason)
    if part.get("logprobs") is not None:
        answer.logprobs.append(part["logprobs"])


def _call(answer: Answer, call: dict[str, Any], *, whole: bool) -> AnsweredCall:
    custom = call.get("custom")
    if isinstance(custom, dict):
        return AnsweredCall(
            _text(answer, custom.get("name")), _text(answer, custom.get("input")), custom=True
        )
    function = call.get("function")
    return _function(answer, function if isinstance(function, dict) else {}, whole=whole)


def _function(answer: Answer, function: dict[str, Any], *, whole: bool) -> AnsweredCall:
    """Read a function call; in a stream a piece may lack the name or the arguments."""
    if whole and not ("name" in function and "arguments" in function):
        answer.faults.add("calls")
    return AnsweredCall(_text(answer, function.get("name")), _text(answer, function.get("arguments")))


def _extend(call: AnsweredCall, piece: AnsweredCall) -> None:
    call.name += piece.name
    call.arguments += piece.arguments
    call.custom = call.custom or piece.custom


def _joined(answer: Answer, parts: Any, fault: Fault, key: str = "text") -> str:
    return "".join(_text(answer, part.get(key), fault) for part in _objects(answer, parts, fault))


def _index(value: dict[str, Any]) -> int:
    index = value.get("index")
    return index if isinstance(index, int) else 0


def _object(answer: Answer, value: Any, fault: Fault) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    answer.faults.add(fault)
    return {}


def _objects(answer: Answer, value: Any, fault: Fault) -> list[dict[str, Any]]:
    """Return the objects of a list that may be left out."""
    found = objects_in(value)
    if value and not (isinstance(value, list) and len(found) == len(value)):
        answer.faults.add(fault)
    return found


def _text(answer: Answer, value: Any, fault: Fault = "calls") -> str:
    """Return a string that may be left out."""
    if value and not isinstance(value, str):
        answer.faults.add(fault)
    return value if isinstance(value, str) else ""
