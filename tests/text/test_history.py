"""Law: whatever a conversation has, every template shows it: calls that a limit cut (CHAT-24), several instructions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.about import about
from support.models import byte_level

from plumbline.answer.dialects.streams.json_stream import readable_object
from plumbline.answer.text.prompts.joined_messages import as_objects, by_turns, with_few_instructions
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate, TemplateError
from plumbline.answer.turn import ChatPrompt, Message, Role, Tool, ToolCall

TOKENIZER = byte_level()
TEMPLATES = sorted((Path(__file__).parent / "templates").glob("*.jinja"))
WHOLE = '{"city": "Zurich", "days": [1, {"a": "b"}]}'
TOOL = Tool(name="get_weather", parameters={"type": "object", "properties": {"city": {"type": "string"}}})


def rendered(template: ChatTemplate, arguments: str, call_id: str = "abcdefghi") -> str:
    messages = (
        Message(role="user", content="Hi"),
        Message(role="assistant", content="", tool_calls=(ToolCall(call_id, "get_weather", arguments),)),
        Message(role="tool", content="cut", tool_call_id=call_id, name="get_weather"),
        Message(role="user", content="Go on."),
    )
    return Renderer(TOKENIZER, template).text(ChatPrompt(messages=messages, tools=(TOOL,)))


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.stem for path in TEMPLATES])
def test_every_template_shows_what_can_be_read_of_a_cut_call(path: Path) -> None:
    template = ChatTemplate(path.read_text("utf-8"))
    try:
        whole = rendered(template, WHOLE)
    except TemplateError:
        return  # It has no calls, or other conversations.
    for size in (4, 18, 34):
        with about(WHOLE[:size]):
            shown = rendered(template, WHOLE[:size])
            for text in ("city", "Zur", "Zurich", "days"):
                assert text not in WHOLE[:size] or text not in whole or text in shown


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.stem for path in TEMPLATES])
def test_every_template_shows_arguments_that_are_no_object(path: Path) -> None:
    template = ChatTemplate(path.read_text("utf-8"))
    try:
        whole = rendered(template, WHOLE)
    except TemplateError:
        return
    assert "Zurich" not in whole or "Zurich" in rendered(template, WHOLE, "call_0123456789abcdef")
    for arguments in ("not json", "[1, 2]", '"text"'):
        shown = rendered(template, arguments)
        assert "Zurich" not in whole or all(word in shown for word in arguments.strip('[]"').split(", "))


INSTRUCTED = (
    Message(role="system", content="Be kind."),
    Message(role="developer", content="Be brief."),
    Message(role="user", content="Hi"),
    Message(role="assistant", content="Hello."),
    Message(role="system", content="It is late."),
    Message(role="user", content="And now?"),
    Message(role="user", content="Say it."),
)


def shown(template: ChatTemplate, messages: Sequence[Message]) -> str:
    return Renderer(TOKENIZER, template).text(ChatPrompt(messages=tuple(messages)))


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.stem for path in TEMPLATES])
def test_every_template_shows_all_instructions_wherever_they_stand(path: Path) -> None:
    template = ChatTemplate(path.read_text("utf-8"))
    try:
        usual = shown(template, [INSTRUCTED[0], *INSTRUCTED[2:4], INSTRUCTED[5]])
    except TemplateError:
        return
    text = shown(template, INSTRUCTED)
    for message in INSTRUCTED:
        content = message.content or ""
        if content in usual or message.role in ("developer", "system", "user"):
            assert content in text


@given(
    roles=st.lists(
        st.sampled_from(["system", "developer", "user", "assistant", "tool"]), min_size=1, max_size=7
    )
)
def test_other_forms_of_a_conversation_have_each_of_its_texts_once(roles: list[Role]) -> None:
    messages = tuple(Message(role=role, content=f"text {number}") for number, role in enumerate(roles))
    for form in (with_few_instructions, by_turns, as_objects):
        found = "".join(message.content or "" for message in form(messages))
        assert all(found.count(message.content or "") == 1 for message in messages)
    few = with_few_instructions(messages)
    assert all(message.role not in ("system", "developer") for message in few[1:])


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(arguments=st.dictionaries(st.text(max_size=4), _values, max_size=3), place=st.floats(0, 1))
def test_what_can_be_read_of_cut_arguments_is_an_object_with_the_members_before_the_cut(
    arguments: dict[str, object], place: float
) -> None:
    text = json.dumps(arguments)
    cut = text[: 1 + int(place * (len(text) - 1))]
    found = json.loads(readable_object(cut))
    assert [*found] == [*arguments][: len(found)] or (
        len(found) and [*found][:-1] == [*arguments][: len(found) - 1]
    )
    for name in [*found][:-1]:
        assert found[name] == arguments[name]
    assert json.loads(readable_object(text)) == arguments
