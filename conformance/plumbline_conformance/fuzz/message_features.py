"""Generate the optional features of valid Messages requests: tools, stop strings, conversations, schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from plumbline_conformance.fuzz.schema_strategies import texts

__all__ = ["message_features"]

Strategy = st.SearchStrategy[Any]
_TEXT = texts(1).map(lambda text: {"type": "text", "text": text})
_CONTENT = texts(1) | st.lists(_TEXT, min_size=1, max_size=3)


def message_features(names: Strategy, schemas: Strategy) -> dict[str, Callable[[], Strategy]]:
    """Return a function that makes the strategy of each feature, by the feature's name in `features.SHARES`.

    Args:
        names: generates names of tools.
        schemas: generates JSON Schemas.
    """
    return {
        "stream": lambda: st.just({"stream": True}),
        "tools": lambda: _tools(names, schemas),
        "stop": lambda: st.fixed_dictionaries({"stop_sequences": st.lists(texts(1, 12), max_size=3)}),
        "parts": lambda: _conversation(names),
        "structured": lambda: schemas.map(
            lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        ),
    }


@st.composite
def _tools(draw: st.DrawFn, names: Strategy, schemas: Strategy) -> dict[str, Any]:
    """Generate a few tools, and a choice among them in half of the cases."""
    tool_names = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    tools = [
        {"name": name, "input_schema": {**draw(schemas), "type": "object"}, "strict": draw(st.booleans())}
        for name in tool_names
    ]
    if draw(st.booleans()):
        return {"tools": tools}
    choice: dict[str, Any] = {"type": draw(st.sampled_from(["auto", "any", "none", "tool"]))}
    if choice["type"] == "tool":
        choice["name"] = tool_names[0]
    # The type `none` has no other fields.
    if choice["type"] != "none" and draw(st.booleans()):
        choice["disable_parallel_tool_use"] = True
    return {"tools": tools, "tool_choice": choice}


@st.composite
def _conversation(draw: st.DrawFn, names: Strategy) -> dict[str, Any]:
    """Generate a conversation of one to four turns.

    Some have a call and its result. One ends with an assistant message, which the answer continues.
    """
    user = {"role": "user", "content": draw(_CONTENT)}
    answer = {"role": "assistant", "content": draw(_CONTENT)}
    arguments = draw(st.dictionaries(texts(), texts(), max_size=2))
    call = {"type": "tool_use", "id": "t", "name": draw(names), "input": arguments}
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": "t", "is_error": draw(st.booleans())}
    if draw(st.booleans()):
        result["content"] = draw(_CONTENT)
    called = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    turns = [[user], [user, answer], [user, answer, user], [user, *called], [user, *called, answer, user]]
    system = {"system": draw(_CONTENT)} if draw(st.booleans()) else {}
    return {"messages": draw(st.sampled_from(turns)), **system}
