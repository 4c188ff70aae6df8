"""Generate valid requests with features that break servers: streams, tools, stop strings, structured output, logprobs.

Requests have dozens of optional fields. With equal chances, one request in thousands would be a stream with tools, and
none would be a valid conversation. So each feature has its own share, and its fields usually fit each other, because a
server that refuses one field does not reach the next.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from plumbline_conformance.fuzz.message_features import message_features
from plumbline_conformance.fuzz.schema_strategies import anything, odd_schemas, of_schema, texts

__all__ = ["SHARES", "featured", "limits"]

Strategy = st.SearchStrategy[Any]
Fields = Mapping[str, Any]
"""The schemas of an operation's fields."""

SHARES = {
    "stream": 50,
    "tools": 45,
    "stop": 30,
    "n": 25,
    "parts": 35,
    "structured": 25,
    "logprobs": 30,
}
"""Percentage of requests with each feature, if the operation has it."""
_NAMES = st.sampled_from(["f", "get_weather", "a-b", "_", "1", "x" * 64])
_PLAIN: list[dict[str, Any]] = [
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {
        "type": "object",
        "properties": {
            "städte": {"type": "array", "items": {"enum": ["ä", "👩‍👩‍👧", '"']}},
            "x": {"type": "boolean"},
        },
        "required": ["städte", "x"],
        "additionalProperties": False,
    },
]
_SCHEMAS = st.sampled_from(_PLAIN) | odd_schemas


class Luck:
    """Make random decisions with exact probabilities, which hypothesis can shrink.

    Hypothesis prefers simple values: only about thirty of a hundred booleans are true. So it draws a seed for `random`,
    and can veto each positive decision, which removes one feature after the other when shrinking.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._dice = random.Random(draw(st.integers(0, 2**64 - 1)))

    def has(self, percent: int) -> bool:
        """Return True in this percentage of cases."""
        return self._dice.randrange(100) < percent and self._draw(st.integers(0, 99)) > 0


@st.composite
def featured(draw: st.DrawFn, fields: Fields) -> dict[str, Any]:
    """Generate the fields of some features."""
    luck = Luck(draw)
    found: dict[str, Any] = {}
    of_messages = message_features(_NAMES, _SCHEMAS) if "system" in fields else None
    for name, share in SHARES.items():
        if not luck.has(share):
            continue
        if of_messages is None:
            found |= draw(_FEATURES[name](fields, luck))
        elif name in of_messages:
            found |= draw(of_messages[name]())
    return {name: value for name, value in found.items() if name in fields}


@st.composite
def limits(draw: st.DrawFn, fields: Fields) -> dict[str, int]:
    """Generate one token limit, mostly a small one, to keep runs short."""
    names = [name for name in _LEAST if name in fields]
    if not names:
        return {}
    name = draw(st.sampled_from(names))
    most = 40 if Luck(draw).has(25) else 5
    return {name: draw(st.integers(_LEAST[name], _LEAST[name] + most))}


_LEAST = {"max_tokens": 1, "max_completion_tokens": 1, "max_output_tokens": 16}
"""The fields that limit an answer, with their minimum; a request has one of them."""


@st.composite
def _stream(draw: st.DrawFn, fields: Fields, luck: Luck) -> dict[str, Any]:
    if not luck.has(50):
        return {"stream": True}
    if "input" not in fields and luck.has(60):
        return {"stream": True, "stream_options": {"include_usage": True}}
    return {
        "stream": True,
        "stream_options": draw(of_schema(fields.get("stream_options", {"type": "null"}))),
    }


@st.composite
def _tools(draw: st.DrawFn, fields: Fields, luck: Luck) -> dict[str, Any]:
    if "tools" not in fields:
        return {}
    flat = "messages" not in fields
    names = draw(st.lists(_NAMES, min_size=1, max_size=3, unique=True))
    tools = [draw(_tool(name, luck, flat=flat)) for name in names]
    if luck.has(10):
        tools += draw(of_schema(fields["tools"])) or []
    if not luck.has(65):
        return {"tools": tools}
    return {"tools": tools, "tool_choice": draw(_choice(names, fields["tool_choice"], flat=flat))}


@st.composite
def _tool(draw: st.DrawFn, name: str, luck: Luck, *, flat: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if luck.has(50):
        function["description"] = draw(texts())
    if luck.has(75):
        function["parameters"] = draw(_SCHEMAS)
    if luck.has(25):
        function["strict"] = draw(st.booleans())
    return {"type": "function", **function} if flat else {"type": "function", "function": function}


def _choice(names: list[str], schema: dict[str, Any], *, flat: bool) -> Strategy:
    def named(name: str) -> dict[str, Any]:
        return (
            {"type": "function", "name": name} if flat else {"type": "function", "function": {"name": name}}
        )

    def allowed(mode: str) -> dict[str, Any]:
        choice = {"mode": mode, "tools": [named(names[0])]}
        return {"type": "allowed_tools", **(choice if flat else {"allowed_tools": choice})}

    return st.one_of(
        st.sampled_from(["none", "auto", "required"]),
        st.sampled_from(names).map(named),
        st.sampled_from(["auto", "required"]).map(allowed),
        of_schema(schema),
    )


def _stop(fields: Fields, luck: Luck) -> Strategy:
    one = st.sampled_from([" ", "e", "the", "\n", "</think>", "}"]) | texts(1, 12)
    return st.fixed_dictionaries({"stop": one | st.lists(one, min_size=1, max_size=4)})


def _n(fields: Fields, luck: Luck) -> Strategy:
    return st.fixed_dictionaries({"n": st.integers(1, 3)})


@st.composite
def _parts(draw: st.DrawFn, fields: Fields, luck: Luck) -> dict[str, Any]:
    """Generate a prompt of several parts, sometimes within a conversation; nothing if there is no prompt."""
    where = next((name for name in ("messages", "input", "prompt") if name in fields), None)
    if where is None:
        return {}
    if where == "prompt":
        prompts = st.lists(texts(1), min_size=2, max_size=3) | st.lists(
            st.integers(0, 300), min_size=1, max_size=5
        )
        return {"prompt": draw(prompts)}
    text = texts(1).map(lambda part: {"type": "text" if where == "messages" else "input_text", "text": part})
    user = {"role": "user", "content": draw(st.lists(text, min_size=1, max_size=4))}
    if not luck.has(50):
        return {where: [user]}
    return {where: draw(_conversation(user, flat=where == "input"))}


@st.composite
def _conversation(draw: st.DrawFn, user: dict[str, Any], *, flat: bool) -> list[dict[str, Any]]:
    """Generate a few turns, some with a call and its result; the arguments may be invalid JSON."""
    arguments = draw(st.sampled_from(["{}", '{"a": 1}']) | texts() | anything.map(str))
    name, output = draw(_NAMES), draw(texts())
    first = {"role": draw(st.sampled_from(["system", "developer"])), "content": draw(texts(1))}
    answer = {"role": "assistant", "content": draw(texts(1))}
    if flat:
        called: list[dict[str, Any]] = [
            {"type": "function_call", "call_id": "c", "name": name, "arguments": arguments},
            {"type": "function_call_output", "call_id": "c", "output": output},
        ]
    else:
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        content = draw(st.none() | texts())
        called = [
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": output},
        ]
    middle = draw(st.sampled_from([[], [user, answer], [user, *called], [user, *called, answer]]))
    return [*([first] if draw(st.booleans()) else []), *middle, user]


@st.composite
def _response_format(draw: st.DrawFn, fields: Fields, luck: Luck) -> dict[str, Any]:
    schema = draw(_SCHEMAS)
    strict = {"strict": True} if luck.has(50) else {}
    named = {"name": draw(_NAMES), "schema": schema, **strict}
    kind = draw(st.sampled_from(["text", "json_object", "json_schema", "json_schema"]))
    if kind != "json_schema":
        output_format: dict[str, Any] = {"type": kind}
    elif "text" in fields:
        output_format = {"type": kind, **named}
    else:
        output_format = {"type": kind, "json_schema": named}
    return {"text": {"format": output_format}, "response_format": output_format}


@st.composite
def _logprobs(draw: st.DrawFn, fields: Fields, luck: Luck) -> dict[str, Any]:
    several = draw(st.integers(0, 5))
    if "include" in fields:
        return {"include": ["message.output_text.logprobs"], "top_logprobs": several}
    if "top_logprobs" not in fields:
        return {"logprobs": several}
    return {"logprobs": True, **({"top_logprobs": several} if luck.has(60) else {})}


_FEATURES: dict[str, Callable[[Fields, Luck], Strategy]] = {
    "stream": _stream,
    "tools": _tools,
    "stop": _stop,
    "n": _n,
    "parts": _parts,
    "structured": _response_format,
    "logprobs": _logprobs,
}
