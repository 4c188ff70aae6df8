"""What breaks servers, in requests that are valid: streams, tools, stop strings, parts, promised forms, logprobs.

Requests have dozens of optional members. Drawn alike, a stream with tools would come once in thousands of requests,
and never with a conversation that a server answers. Each feature here has a share of its own, and its members fit
each other more often than not: a request that is refused for its second member says nothing of its first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from plumbline_conformance.fuzz.schema_strategies import anything, odd_schemas, of_schema, texts

__all__ = ["SHARES", "featured", "limits"]

Strategy = st.SearchStrategy[Any]
Members = Mapping[str, Any]
"""The schemas of an operation's members."""

SHARES = {
    "stream": 50,
    "tools": 35,
    "stop": 30,
    "n": 25,
    "parts": 35,
    "form": 25,
    "logprobs": 30,
}
"""In how many of a hundred requests a feature is, where the operation has it."""
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
    """Throws dice that keep to their chances.

    What hypothesis draws leans towards what is simple: of a hundred booleans, thirty are true where it varies what it
    has already tried. So it draws the seed of the dice, and to each throw that was lucky it may say no: what is shrunk
    loses one feature after the other.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._dice = random.Random(draw(st.integers(0, 2**64 - 1)))

    def has(self, percent: int) -> bool:
        """True in so many of a hundred cases."""
        return self._dice.randrange(100) < percent and self._draw(st.integers(0, 99)) > 0


@st.composite
def featured(draw: st.DrawFn, members: Members) -> dict[str, Any]:
    """Members of some of the features that an operation has."""
    luck = Luck(draw)
    found: dict[str, Any] = {}
    for name, share in SHARES.items():
        if luck.has(share):
            found |= draw(_FEATURES[name](members, luck))
    return {name: value for name, value in found.items() if name in members}


@st.composite
def limits(draw: st.DrawFn, members: Members) -> dict[str, int]:
    """One limit of tokens: nearly always a small one, or a run would take hours."""
    names = [name for name in _LEAST if name in members]
    if not names:
        return {}
    name = draw(st.sampled_from(names))
    most = 40 if Luck(draw).has(25) else 5
    return {name: draw(st.integers(_LEAST[name], _LEAST[name] + most))}


_LEAST = {"max_tokens": 1, "max_completion_tokens": 1, "max_output_tokens": 16}
"""The fields that limit an answer; two of them are a question of their own."""


@st.composite
def _stream(draw: st.DrawFn, members: Members, luck: Luck) -> dict[str, Any]:
    if not luck.has(50):
        return {"stream": True}
    if "input" not in members and luck.has(50):
        return {"stream": True, "stream_options": {"include_usage": True}}
    return {
        "stream": True,
        "stream_options": draw(of_schema(members.get("stream_options", {"type": "null"}))),
    }


@st.composite
def _tools(draw: st.DrawFn, members: Members, luck: Luck) -> dict[str, Any]:
    if "tools" not in members:
        return {}
    flat = "messages" not in members
    names = draw(st.lists(_NAMES, min_size=1, max_size=3, unique=True))
    tools = [draw(_tool(name, luck, flat=flat)) for name in names]
    if luck.has(10):
        tools += draw(of_schema(members["tools"])) or []
    if not luck.has(65):
        return {"tools": tools}
    return {"tools": tools, "tool_choice": draw(_choice(names, members["tool_choice"], flat=flat))}


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
        some = {"mode": mode, "tools": [named(names[0])]}
        return {"type": "allowed_tools", **(some if flat else {"allowed_tools": some})}

    return st.one_of(
        st.sampled_from(["none", "auto", "required"]),
        st.sampled_from(names).map(named),
        st.sampled_from(["auto", "required"]).map(allowed),
        of_schema(schema),
    )


def _stop(members: Members, luck: Luck) -> Strategy:
    one = st.sampled_from([" ", "e", "the", "\n", "</think>", "}"]) | texts(1, 12)
    return st.fixed_dictionaries({"stop": one | st.lists(one, min_size=1, max_size=4)})


def _n(members: Members, luck: Luck) -> Strategy:
    return st.fixed_dictionaries({"n": st.integers(1, 3)})


@st.composite
def _parts(draw: st.DrawFn, members: Members, luck: Luck) -> dict[str, Any]:
    """A prompt of several pieces: texts, and now and then whatever else a piece may be."""
    where = next(name for name in ("messages", "input", "prompt") if name in members)
    if where == "prompt":
        prompts = st.lists(texts(1), min_size=2, max_size=3) | st.lists(
            st.integers(0, 300), min_size=1, max_size=5
        )
        return {"prompt": draw(prompts)}
    text = texts(1).map(lambda said: {"type": "text" if where == "messages" else "input_text", "text": said})
    user = {"role": "user", "content": draw(st.lists(text, min_size=1, max_size=4))}
    if not luck.has(50):
        return {where: [user]}
    return {where: draw(_conversation(user, flat=where == "input"))}


@st.composite
def _conversation(draw: st.DrawFn, user: dict[str, Any], *, flat: bool) -> list[dict[str, Any]]:
    """A few turns, with a call and what came of it; its arguments are JSON or nothing like it."""
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
def _response_format(draw: st.DrawFn, members: Members, luck: Luck) -> dict[str, Any]:
    schema = draw(_SCHEMAS)
    strict = {"strict": True} if luck.has(50) else {}
    named = {"name": draw(_NAMES), "schema": schema, **strict}
    kind = draw(st.sampled_from(["text", "json_object", "json_schema", "json_schema"]))
    if kind != "json_schema":
        form: dict[str, Any] = {"type": kind}
    elif "text" in members:
        form = {"type": kind, **named}
    else:
        form = {"type": kind, "json_schema": named}
    return {"text": {"format": form}, "response_format": form}


@st.composite
def _logprobs(draw: st.DrawFn, members: Members, luck: Luck) -> dict[str, Any]:
    several = draw(st.integers(0, 5))
    if "include" in members:
        return {"include": ["message.output_text.logprobs"], "top_logprobs": several}
    if "top_logprobs" not in members:
        return {"logprobs": several}
    return {"logprobs": True, **({"top_logprobs": several} if luck.has(60) else {})}


_FEATURES: dict[str, Callable[[Members, Luck], Strategy]] = {
    "stream": _stream,
    "tools": _tools,
    "stop": _stop,
    "n": _n,
    "parts": _parts,
    "form": _response_format,
    "logprobs": _logprobs,
}
