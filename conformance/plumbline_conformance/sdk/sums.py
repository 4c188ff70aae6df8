"""Add up the texts of a stream, from its bytes or from the objects that a client made of them.

This module reads streams independently of `transcript/answer_fold.py`, so that a mistake of the
judge's own fold cannot hide a mistake of the client. Do not merge the two.

A sum has a text for each place: `choices[0].content`, `choices[0].tool_calls[1].arguments`. Empty texts are left out,
because readers treat null and an empty text in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from plumbline_conformance.suite.scenario import Problem
from plumbline_conformance.transcript.sse import Event

__all__ = [
    "Sum",
    "chat_sum",
    "completions_sum",
    "differences",
    "event_bodies",
    "get_field",
    "message_sum",
    "messages_sum",
    "responses_sum",
    "texts_of",
]

Sum = dict[str, str]
Get = Callable[[Any, str], Any]
"""Reads a member of an object, or None."""
_DELTAS = {
    "response.output_text.delta": "text",
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
_SHOWN = 120


def get_field(value: Any, name: str) -> Any:
    """Read a member of a JSON object."""
    return value.get(name) if isinstance(value, dict) else None


def event_bodies(events: Iterable[Event]) -> list[Any]:
    """Return the JSON of the events up to `[DONE]`, where every client stops."""
    found = []
    for event in events:
        if event.data is not None and event.data.startswith("[DONE]"):
            break
        found.append(event.json)
    return found


def chat_sum(chunks: Iterable[Any], get: Get, part: str = "delta") -> Sum:
    """Add up texts, calls and finish reasons of every choice.

    Args:
        chunks: the JSON, or the client's objects.
        get: reads a member of them.
        part: the member with the text of a choice: `delta`, or `message` in a whole answer.
    """
    found: Sum = {}
    for choice in (choice for chunk in chunks for choice in _list(get(chunk, "choices"))):
        index = get(choice, "index")
        if not _is_number(index):
            continue
        where, delta = f"choices[{index}]", get(choice, part)
        for name in ("content", "refusal"):
            _add(found, f"{where}.{name}", get(delta, name))
        for place, call in enumerate(_list(get(delta, "tool_calls"))):
            number = get(call, "index") if part == "delta" else place
            if _is_number(number):
                _add_call(found, f"{where}.tool_calls[{number}]", call, get)
        _set(found, f"{where}.finish_reason", get(choice, "finish_reason"))
    return found


def _add_call(found: Sum, where: str, call: Any, get: Get) -> None:
    # An id and a name come once. A client that appends repeated ones ends with a wrong id and name.
    if f"{where}.id" not in found:
        _set(found, f"{where}.id", get(call, "id"))
    function = get(call, "function")
    if f"{where}.name" not in found:
        _set(found, f"{where}.name", get(function, "name"))
    _add(found, f"{where}.arguments", get(function, "arguments"))


def completions_sum(chunks: Iterable[Any], get: Get) -> Sum:
    """Add up texts and finish reasons of every choice."""
    found: Sum = {}
    for choice in (choice for chunk in chunks for choice in _list(get(chunk, "choices"))):
        if _is_number(index := get(choice, "index")):
            _add(found, f"choices[{index}].text", get(choice, "text"))
            _set(found, f"choices[{index}].finish_reason", get(choice, "finish_reason"))
    return found


def responses_sum(events: Iterable[Any], get: Get) -> Sum:
    """Add up the deltas of texts and arguments of every item."""
    found: Sum = {}
    for event in events:
        kind, index = get(event, "type"), get(event, "output_index")
        if not isinstance(kind, str) or kind not in _DELTAS or not _is_number(index):
            continue
        # With leading zeros, places sort alphabetically in the order of the items.
        where = f"output[{index:03}]"
        part = get(event, "content_index")
        if kind == "response.output_text.delta" and _is_number(part):
            where += f".content[{part:03}]"
        _add(found, f"{where}.{_DELTAS[kind]}", get(event, "delta"))
    return found


def messages_sum(events: Iterable[Any], get: Get) -> Sum:
    """Add up the blocks and the reason of a message of Messages."""
    found: Sum = {}
    inputs: Sum = {}
    for event in events:
        index = get(event, "index")
        match get(event, "type"):
            case "content_block_start" if _is_number(index):
                _add_block(found, index, get(event, "content_block"), get)
            case "content_block_delta" if _is_number(index):
                delta, where = get(event, "delta"), f"content[{index:03}]"
                # The client keeps the last part of a signature only, so a server must send it whole.
                for name in ("text", "thinking", "signature"):
                    _add(found, f"{where}.{name}", get(delta, name))
                _add(inputs, f"{where}.input", get(delta, "partial_json"))
            case "message_delta":
                for name in ("stop_reason", "stop_sequence"):
                    _set(found, name, get(get(event, "delta"), name))
    return found | {place: _json_of(text) for place, text in inputs.items()}


def message_sum(message: Any, get: Get) -> Sum:
    """Return the blocks and the reason of a whole message of Messages in the form of `messages_sum`."""
    found: Sum = {}
    for index, block in enumerate(_list(get(message, "content"))):
        _add_block(found, index, block, get)
    for name in ("stop_reason", "stop_sequence"):
        _set(found, name, get(message, name))
    return found


def _add_block(found: Sum, index: int, block: Any, get: Get) -> None:
    where = f"content[{index:03}]"
    for name in ("text", "thinking", "signature", "id", "name", "data"):
        _set(found, f"{where}.{name}", get(block, name))
    # A stream begins with an empty input and sends it in deltas.
    if get(block, "input"):
        found[f"{where}.input"] = json.dumps(get(block, "input"), sort_keys=True)


def _json_of(text: str) -> str:
    """Return JSON with sorted names, so that equal values have equal texts; other texts as they are."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return json.dumps(value, sort_keys=True) if value else ""


def texts_of(sums: Sum, kind: str) -> list[str]:
    """Return the texts of one kind in the sum of a response, in the order of its items."""
    return [text for place, text in sorted(sums.items()) if place.endswith(f".{kind}")]


def differences(of_bytes: Sum, of_client: Sum) -> Iterator[Problem]:
    """Compare the sum of the bytes with the sum of the client's objects."""
    for place in dict.fromkeys([*of_bytes, *of_client]):
        expected, actual = of_bytes.get(place, ""), of_client.get(place, "")
        if expected != actual:
            start = next((at for at, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b), 0)
            start = max(0, start - _SHOWN // 3)
            yield Problem(
                expected=_shown(expected, start), actual=_shown(actual, start), pointer=place, rule="SDK-02"
            )


def _shown(text: str, start: int) -> str:
    cut = text[start : start + _SHOWN]
    return f"{'…' if start else ''}{cut!r}{'…' if len(text) > start + _SHOWN else ''}"


def _add(found: Sum, place: str, text: Any) -> None:
    if isinstance(text, str) and text:
        found[place] = found.get(place, "") + text


def _set(found: Sum, place: str, text: Any) -> None:
    if isinstance(text, str) and text:
        found[place] = text


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
