"""Calls of the tools that clients run, as items and back.

- The item of a call, sent back, shows the model the arguments that it wrote.
- A call that was cut anywhere is an incomplete item without anything to run, or none.
- Any other text is no call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.events import ToolCallStart
from plumbline.contract._generated.items import InputItem
from plumbline.contract.wire.decode import encode
from plumbline.server.protocols.responses.client_tools.calls import CLIENT_CALLS
from plumbline.server.protocols.responses.client_tools.history import call_arguments, call_name
from plumbline.server.protocols.responses.items import CallItem, ItemStatus

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
NUMBER = st.none() | st.integers(0, 2**31)
COMMANDS = st.lists(TEXT, min_size=1, max_size=3)
DIFFS = st.builds(
    lambda kind, path, diff: {"type": kind, "path": path, "diff": "" if kind == "delete_file" else diff},
    st.sampled_from(["create_file", "update_file", "delete_file"]),
    TEXT.filter(bool),
    TEXT,
)


def in_order(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw an object whose members are in the order of the tool's schema, as a grammar has them."""
    return st.tuples(*members.values()).map(lambda values: dict(zip(members, values, strict=True)))


ARGUMENTS: Mapping[str, st.SearchStrategy[dict[str, Any]]] = {
    "shell": in_order(commands=COMMANDS, timeout_ms=NUMBER, max_output_length=NUMBER),
    "local_shell": in_order(command=COMMANDS, working_directory=st.none() | TEXT, timeout_ms=NUMBER),
    "apply_patch": DIFFS,
    "tool_search": st.dictionaries(TEXT, st.none() | TEXT | st.lists(TEXT, max_size=2), max_size=3),
}
DECODER = msgspec.json.Decoder(InputItem)


def finished(name: str, pieces: list[str], status: ItemStatus) -> CallItem:
    item = CLIENT_CALLS[name](ToolCallStart(name, "call_1"))
    item.id = "item_1"
    for piece in pieces:
        item.append(piece)
    item.finish(status)
    return item


def test_every_tool_has_a_law() -> None:
    assert set(CLIENT_CALLS) == set(ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
@given(data=st.data())
def test_an_item_that_is_sent_back_shows_the_model_what_it_wrote(name: str, data: st.DataObject) -> None:
    """ST-04, TOOL-10."""
    arguments = data.draw(ARGUMENTS[name])
    text = json.dumps(arguments, ensure_ascii=False)
    cut = data.draw(st.integers(0, len(text)))
    item = finished(name, [text[:cut], text[cut:]], "completed")
    again: Any = DECODER.decode(encode(item.finished))
    assert not item.dropped
    assert (call_name(again), call_arguments(again)) == (name, text)


@pytest.mark.parametrize("name", ARGUMENTS)
@given(data=st.data())
def test_a_call_that_is_cut_has_nothing_to_run(name: str, data: st.DataObject) -> None:
    """Arguments are one object, so that no beginning of them is whole."""
    text = json.dumps(data.draw(ARGUMENTS[name]))
    item = finished(name, [text[: data.draw(st.integers(0, len(text) - 1))]], "incomplete")
    if item.dropped:
        assert name == "apply_patch", "its item has no status for it"
        return
    found = msgspec.to_builtins(item.finished)
    action = found.get("action", {})
    assert found["status"] == "incomplete"
    assert [
        one for one in (action.get("commands"), action.get("command"), found.get("arguments")) if one
    ] == []


@pytest.mark.parametrize("name", ARGUMENTS)
@given(value=st.none() | st.integers() | TEXT | st.lists(TEXT, max_size=2))
def test_what_is_no_object_is_no_call(name: str, value: Any) -> None:
    """R-07: a call that breaks off before other output is left out."""
    assert finished(name, [json.dumps(value)], "completed").dropped
