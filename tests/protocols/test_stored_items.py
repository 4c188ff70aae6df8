"""Input items are stored with ids, and read again as they were (ST-04, ST-08, ST-13).

- A stored input gives the model the same messages as the input itself, and storing it again changes nothing.
- Every stored item has an id of its own and is an item of the contract; ids of clients are kept.
- References become the items that they name; a call that broke off is no part of a context.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.judges import valid
from support.strategies import texts

from plumbline.answer.turn import Message
from plumbline.contract._generated.items import InputItem
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.errors import ApiError
from plumbline.server.protocols.responses.input import read_input
from plumbline.server.protocols.responses.stored_items import (
    as_context,
    referenced_ids,
    resolve_references,
    stored_input,
)

ids = st.one_of(st.none(), st.sampled_from(["msg_1", "x"]), st.text("abc_1", min_size=1, max_size=9))
statuses = st.sampled_from(["completed", "in_progress"])


def fields(kind: str, required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **required}, optional={"id": ids, **optional})


inputs = st.lists(st.fixed_dictionaries({"type": st.just("input_text"), "text": texts}), max_size=3)
answers: st.SearchStrategy[Any] = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("output_text"), "text": texts},
            optional={"annotations": st.just([]), "logprobs": st.sampled_from([None, []])},
        ),
        st.fixed_dictionaries({"type": st.just("refusal"), "refusal": texts}),
    ),
    max_size=3,
)
messages = st.one_of(
    fields(
        "message",
        {"role": st.sampled_from(["user", "system", "developer"]), "content": st.one_of(texts, inputs)},
        status=statuses,
    ),
    fields(
        "message",
        {"role": st.just("assistant"), "content": st.one_of(texts, answers)},
        phase=st.sampled_from(["commentary", "final_answer", None]),
    ),
    fields(
        "reasoning",
        {"summary": st.just([])},
        content=st.lists(
            st.fixed_dictionaries({"type": st.just("reasoning_text"), "text": texts}), max_size=2
        ),
    ),
)


@st.composite
def rounds(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A call and its output."""
    call_id = f"call_{draw(st.uuids())}"
    output = draw(st.one_of(texts, inputs))
    if draw(st.booleans()):
        call = draw(fields("custom_tool_call", {"name": st.just("f"), "input": texts}, status=statuses))
        answer = draw(fields("custom_tool_call_output", {"output": st.just(output)}))
    else:
        call = draw(
            fields(
                "function_call", {"name": st.just("f"), "arguments": st.just("{}")}, namespace=st.just("n")
            )
        )
        answer = draw(fields("function_call_output", {"output": st.just(output)}, status=statuses))
    return [{**call, "call_id": call_id}, {**answer, "call_id": call_id}]


conversations = st.lists(st.one_of(messages.map(lambda item: [item]), rounds()), min_size=1, max_size=4).map(
    lambda parts: [item for part in parts for item in part]
)


def decoded(items: list[dict[str, Any]]) -> list[InputItem]:
    return msgspec.json.decode(encode(items), type=list[InputItem])


def seen(items: Any) -> list[Message]:
    """Return what the model sees, where a string and its one part are the same."""
    found = list(read_input(items, None))
    for index, message in enumerate(found):
        if message.parts is None and message.content is not None:
            found[index] = msgspec.structs.replace(message, parts=(message.content,))
    return found


@given(conversations)
def test_a_stored_input_gives_the_same_messages(given_items: list[dict[str, Any]]) -> None:
    items = decoded(given_items)
    stored = stored_input(items)

    assert seen(as_context(item.body for item in stored)) == seen(items)


@given(conversations)
def test_storing_again_changes_nothing(given_items: list[dict[str, Any]]) -> None:
    stored = stored_input(decoded(given_items))

    assert stored_input(as_context(item.body for item in stored)) == stored


@given(conversations)
def test_every_stored_item_has_its_own_id(given_items: list[dict[str, Any]]) -> None:
    stored = stored_input(decoded(given_items))
    for record in stored:
        body = msgspec.json.decode(record.body)
        assert body["id"] == record.id
        valid("ItemResource", body)

    assert len({record.id for record in stored}) == len(stored) == len(given_items)
    named = dict.fromkeys(item["id"] for item in given_items if item.get("id"))
    assert set(named) <= {record.id for record in stored}


def test_a_string_is_stored_as_a_message_of_the_user() -> None:
    """R-12."""
    (record,) = stored_input("hi")
    body = msgspec.json.decode(record.body)

    assert body == {
        "type": "message",
        "id": record.id,
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "hi"}],
    }


def test_references_become_the_items_that_they_name() -> None:
    """ST-13."""
    (record,) = stored_input("hi")
    items = decoded([{"type": "item_reference", "id": record.id}])

    assert referenced_ids(items) == [record.id]
    resolved = resolve_references(items, {record.id: record.body})
    assert seen(resolved) == seen(decoded([{"type": "message", "role": "user", "content": "hi"}]))
    with pytest.raises(ApiError) as refused:
        resolve_references(items, {})
    assert (refused.value.status, refused.value.param) == (400, "input[0].id")


def test_a_call_that_broke_off_is_no_part_of_a_context() -> None:
    """TOOL-12: nobody carried it out."""
    call = {
        "type": "function_call",
        "id": "fc",
        "call_id": "c",
        "name": "f",
        "arguments": "{",
        "status": "incomplete",
    }

    assert as_context([encode(call)]) == []
