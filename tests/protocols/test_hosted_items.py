"""Items that other servers make, in the input of a response (TOOL-15).

Laws:
    1. Items of every hosted kind are shown, left out and named, or refused by name.
    2. What is left out changes no other message, wherever it stands.
    3. Tools of an item are shown like tools of the request.
    4. A message of an agent is shown with the names of both agents.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.turn import Message
from plumbline.contract._generated.items import AnyHostedItem
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.decode import decode, encode
from plumbline.server.protocols.responses.client_tools.namespaces import unavailable_tools

from .minimal_requests import FLAT_TOOL, USER, read, refusal

KINDS = sorted(str(kind.__struct_config__.tag) for kind in get_args(AnyHostedItem))
REFUSED = {"program", "program_output", "computer_call", "computer_call_output"}
SHOWN = {"additional_tools", "agent_message"}
LEFT_OUT = sorted({*KINDS} - REFUSED - SHOWN)
OTHERS: list[dict[str, Any]] = [
    USER,
    {"role": "assistant", "content": "yes"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "r"},
    USER,
]


def decoded(items: list[dict[str, Any]]) -> Any:
    return decode(CreateResponse, encode({"model": "m", "input": items})).input


def item(kind: str) -> dict[str, Any]:
    return {
        "type": kind,
        "id": "x_1",
        "status": "completed",
        "action": {"type": "open_page", "url": "https://a"},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_shown_left_out_or_refused(kind: str) -> None:
    if kind in REFUSED:
        assert refusal("responses", input=[USER, item(kind)]).param == "input[1].type"
    elif kind in SHOWN:
        assert unavailable_tools([], decoded([item(kind)])) == ()
    else:
        read("responses", input=[USER, item(kind)])


@given(st.lists(st.tuples(st.integers(0, len(OTHERS)), st.sampled_from(LEFT_OUT)), max_size=4))
def test_what_is_left_out_changes_no_message_and_is_named(places: list[tuple[int, str]]) -> None:
    items: list[dict[str, Any]] = []
    for index, other in enumerate([*OTHERS, None]):
        items += [item(kind) for place, kind in places if place == index]
        items += [] if other is None else [other]
    assert read("responses", input=items).prompt == read("responses", input=OTHERS).prompt
    assert set(unavailable_tools([], decoded(items))) == {kind for _, kind in places}


TOOLS: list[dict[str, Any]] = [
    FLAT_TOOL,
    {"type": "custom", "name": "exec"},
    {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "run"}]},
    {"type": "web_search"},
]


@given(
    st.lists(st.sampled_from(TOOLS), unique_by=lambda tool: str(tool), max_size=4),
    st.integers(0, len(OTHERS)),
)
def test_tools_of_an_item_are_shown_like_tools_of_the_request(
    tools: list[dict[str, Any]], place: int
) -> None:
    adding = {"type": "additional_tools", "role": "developer", "tools": tools}
    items = [*OTHERS[:place], adding, *OTHERS[place:]]
    assert read("responses", input=items) == read("responses", input=OTHERS, tools=tools)
    hosted = ("web_search",) if TOOLS[-1] in tools else ()
    assert unavailable_tools([], decoded(items)) == hosted


def test_tools_of_an_item_may_be_missing_but_not_wrong() -> None:
    assert read("responses", input=[USER, {"type": "additional_tools"}]).prompt.tools == ()
    wrong = {"type": "additional_tools", "tools": [{"type": "nothing"}]}
    assert refusal("responses", input=[USER, wrong]).param == "input[1].tools"
    remote = {
        "type": "additional_tools",
        "tools": [{"type": "mcp", "server_label": "a", "server_url": "https://a"}],
    }
    assert refusal("responses", input=[USER, remote]).param == "input[1].tools[0].type"


@pytest.mark.parametrize("kind", ["input_text", "output_text", "text"])
def test_a_message_of_an_agent_is_shown_with_the_names(kind: str) -> None:
    said = {
        "type": "agent_message",
        "author": "main/w",
        "recipient": "main",
        "content": [{"type": kind, "text": "Done."}],
    }
    found = read("responses", input=[USER, said]).prompt.messages[1]
    assert found == Message(role="user", content="Message from main/w to main:\nDone.")
    sealed = {**said, "content": [{"type": "encrypted_content", "encrypted_content": "x"}]}
    assert refusal("responses", input=[USER, sealed]).param == "input[1].content[0].type"
