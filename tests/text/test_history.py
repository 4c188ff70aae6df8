"""Law: whatever a conversation has, every template shows it: calls that a limit cut (CHAT-24), several instructions."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.about import about
from support.models import byte_level

from plumbline.answer.dialects.streams.json_stream import readable_object
from plumbline.answer.text.prompts.joined_messages import (
    FORMS,
    by_turns,
    one_call_each,
    with_few_instructions,
)
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


WITHOUT_A_USER = {
    "instructions": (Message(role="system", content="Be kind."),),
    "an answer": (Message(role="system", content="Be kind."), Message(role="assistant", content="Hello.")),
    "a greeting first": (
        Message(role="assistant", content="Hello."),
        Message(role="user", content="And now?"),
    ),
    "a result": (
        Message(role="system", content="Be kind."),
        Message(role="assistant", tool_calls=(ToolCall("abcdefghi", "get_weather", '{"city": "Zurich"}'),)),
        Message(role="tool", content="sunny", tool_call_id="abcdefghi", name="get_weather"),
    ),
}


CALL = ToolCall("abcdefghi", "get_weather", '{"city": "Zurich"}')
OTHER = ToolCall("abcdefghj", "get_weather", '{"city": "Basel"}')
RESULTS = (
    Message(role="tool", content="sunny", tool_call_id=CALL.id, name="get_weather"),
    Message(role="tool", content="cold", tool_call_id=OTHER.id, name="get_weather"),
)
HI = Message(role="user", content="Hi")
BUSY = {
    "calls at once": (HI, Message(role="assistant", tool_calls=(CALL, OTHER)), *RESULTS),
    "results in another order": (HI, Message(role="assistant", tool_calls=(CALL, OTHER)), *RESULTS[::-1]),
    "thoughts, text and a call": (
        HI,
        Message(role="assistant", content="I look.", reasoning="Hm.", tool_calls=(CALL,)),
        RESULTS[0],
    ),
    "a user after a result": (HI, Message(role="assistant", tool_calls=(CALL,)), RESULTS[0], HI),
    "instructions after a result": (
        HI,
        Message(role="assistant", tool_calls=(CALL,)),
        RESULTS[0],
        Message(role="system", content="Be kind."),
    ),
    "an empty answer": (HI, Message(role="assistant", content=""), Message(role="user", content="And now?")),
}


PARTS: dict[Role, tuple[Message, ...]] = {
    "system": (Message(role="system", content="one\ntwo\nthree", parts=("one", "two", "three")), HI),
    "user": (Message(role="user", content="one\ntwo\nthree", parts=("one", "two", "three")),),
    "assistant": (
        HI,
        Message(role="assistant", content="one\ntwo\nthree", parts=("one", "two", "three")),
        HI,
    ),
}


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.stem for path in TEMPLATES])
def test_every_template_takes_what_agents_send(path: Path) -> None:
    """One test, because compiling a template takes longer than all the rest."""
    renderer = Renderer(TOKENIZER, ChatTemplate(path.read_text("utf-8"), bos_token="<s>", eos_token="</s>"))

    def rendered_with(messages: Sequence[Message], *tools: Tool) -> str | None:
        try:
            return renderer.text(ChatPrompt(messages=tuple(messages), tools=tools))
        except TemplateError:
            return None

    usual = rendered_with((HI, Message(role="assistant", tool_calls=(CALL,)), RESULTS[0]), TOOL)
    if rendered_with((HI,)):  # It needs no tools.
        for kind, messages in WITHOUT_A_USER.items():
            with about(kind):
                assert rendered_with(messages) or (usual is None and kind == "a result")
        for role, messages in PARTS.items():
            with about(role):
                found = rendered_with(messages) or ""
                assert "one" not in found or ("two" in found and "three" in found)
    for kind, messages in () if usual is None else BUSY.items():
        assert usual is not None
        with about(kind):
            found = rendered_with(messages, TOOL) or ""
            for message in messages:
                shown_results = "sunny" in usual or message.role != "tool"
                assert not shown_results or message.tool_calls or (message.content or "") in found
                if "Zurich" in usual:
                    assert all(json.loads(call.arguments)["city"] in found for call in message.tool_calls)


STRICT = """{%- set ns = namespace(last='') -%}
{%- for m in messages -%}
  {%- if m.role == 'system' and not loop.first -%}{{ raise_exception('one system message') }}{%- endif -%}
  {%- if m.role == 'user' and ns.last in ('user', 'tool') -%}{{ raise_exception('turns') }}{%- endif -%}
  {%- if m.role == 'assistant' and ns.last in ('', 'system', 'assistant') -%}{{ raise_exception('turns') }}{%- endif -%}
  {%- if m.role == 'assistant' and not m.content and not m.tool_calls -%}{{ raise_exception('empty') }}{%- endif -%}
  {%- if m.tool_calls and m.content and m.thinking -%}{{ raise_exception('one of them') }}{%- endif -%}
  {%- set ns.last = m.role -%}
  [{{ m.role }}]{{ m.thinking or '' }}
  {%- if m.content is string %}{{ m.content }}{% elif m.content %}{{ m.content[0].text }}{% endif -%}
  {%- if m.tool_calls -%}{%- set c = m.tool_calls[0] -%}{{ c.function.name }}{{ c.function.arguments | tojson }}
  {%- if c.id | length != 9 -%}{{ raise_exception('ids') }}{%- endif -%}{%- endif -%}
{%- endfor -%}
{%- for t in tools or [] -%}{{ '(' + t.function.name + ': ' + t.function.description + ')' }}
{%- for p in t.function.parameters.properties.values() -%}{{ p.description + '.' }}{%- endfor -%}{%- endfor -%}"""
"""Every refusal and omission of published templates in one."""


@given(
    kinds=st.lists(
        st.sampled_from(["system", "user", "parts", "answer", "empty", "call", "calls", "thoughts"]),
        min_size=1,
        max_size=8,
    )
)
@example(kinds=["system"])
@example(kinds=["user", "calls", "user"])
@example(kinds=["answer", "user", "thoughts", "system"])
def test_a_template_with_every_refusal_shows_every_conversation(kinds: list[str]) -> None:
    """Law: any conversation is rendered, with each of its texts and calls once, in its order."""
    messages: list[Message] = []
    words: list[str] = []
    for number, kind in enumerate(kinds):
        word = f"w{number}w"
        calls = tuple(
            ToolCall(f"call_{number}_{n}", "f", json.dumps({"at": f"{word}{n}"}))
            for n in range({"call": 1, "calls": 3, "thoughts": 1}.get(kind, 0))
        )
        match kind:
            case "parts":
                messages.append(
                    Message(role="user", content=f"{word}a\n{word}b", parts=(f"{word}a", f"{word}b"))
                )
                words += [f"{word}a", f"{word}b"]
            case "system" | "user":
                messages.append(Message(role="system" if kind == "system" else "user", content=word))
                words.append(word)
            case "answer" | "empty":
                messages.append(Message(role="assistant", content=word if kind == "answer" else ""))
                words += [word] if kind == "answer" else []
            case _:
                said = {"content": f"{word}t", "reasoning": f"{word}r"} if kind == "thoughts" else {}
                messages.append(Message(role="assistant", tool_calls=calls, **said))  # type: ignore[arg-type]
                messages += [
                    Message(role="tool", content=f"{call.id}o", tool_call_id=call.id) for call in calls[::-1]
                ]
                words += (
                    [f"{word}{n}" for n in range(len(calls))]
                    + [*said.values()]
                    + [f"{call.id}o" for call in calls]
                )
    tools = (Tool(name="f", parameters={"type": "object", "properties": {"at": {"type": "string"}}}),)
    text = Renderer(TOKENIZER, ChatTemplate(STRICT)).text(ChatPrompt(messages=tuple(messages), tools=tools))
    for word in words:
        assert text.count(word) == 1, (word, text)


REFUSALS = {
    "ids": "{%- if c.id | length != 9 -%}{{ raise_exception('ids') }}{%- endif -%}",
    "arguments": "{%- for name in c.function.arguments.keys() -%}{{ name }}{%- endfor -%}",
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_only_what_a_template_refuses_is_changed(refusal: str) -> None:
    """Templates of the first Mistral models show calls that were made at once together, and no text beside them."""
    template = ChatTemplate(
        "{%- for m in messages -%}[{{ m.role }}{% if m.tool_calls %} {{ m.tool_calls | length }} calls]"
        "{%- for c in m.tool_calls -%}"
        + REFUSALS[refusal]
        + "{{ c.function.arguments | tojson }}{%- endfor -%}"
        "{%- else -%}]{{ m.content }}{%- endif -%}{%- endfor -%}"
    )
    arguments = "[1]" if refusal == "arguments" else "{}"
    calls = tuple(ToolCall(f"call_0123456789_{n}", "f", arguments) for n in range(2))
    text = shown(
        template,
        [
            HI,
            Message(role="assistant", content="I look."),
            Message(role="assistant", tool_calls=calls),
            *(Message(role="tool", content="sunny", tool_call_id=call.id) for call in calls),
        ],
    )
    read = {"ids": "{}{}", "arguments": 'arguments{"arguments": [1]}' * 2}[refusal]
    assert text == f"[user]Hi[assistant]I look.[assistant 2 calls]{read}[tool]sunny[tool]sunny"


def test_instructions_that_a_template_reads_stay_instructions() -> None:
    """SmolLM3's template takes `/no_think` out of them, so they are not in the prompt as they are."""
    template = ChatTemplate(
        "{%- for m in messages -%}[{{ m.role }}]"
        "{{ m.content | replace('/no_think', '') if m.role == 'system' else m.content }}{%- endfor -%}"
    )
    messages = [
        Message(role="system", content="Be kind. /no_think"),
        Message(role="system", content="Two."),
        HI,
    ]
    assert shown(template, messages) == "[system]Be kind. [system]Two.[user]Hi"


def test_an_answer_to_go_on_with_stays_at_the_end() -> None:
    template = ChatTemplate(
        "{%- for m in messages if m.role != 'system' or loop.first -%}[{{ m.role }}]{{ m.content }}{%- endfor -%}"
    )
    messages = (HI, Message(role="system", content="Be kind."), Message(role="assistant", content="Sure, "))
    prompt = ChatPrompt(messages=messages, add_generation_prompt=False, continue_final_message=True)
    assert Renderer(TOKENIZER, template).text(prompt) == "[user]Hi\n\nBe kind.[assistant]Sure, "


def test_what_a_request_has_besides_its_messages_does_not_hide_an_omission() -> None:
    """What a template leaves out is found out once, for the requests of all clients."""
    template = ChatTemplate(
        "{{- hint or '' -}}{%- for t in tools or [] -%}{{ t.function.description }}{%- endfor -%}"
        "{%- for m in messages -%}[{{ m.role }}]{{ m.content }}"
        "{%- if m.tool_calls -%}{{ m.tool_calls[0].function.arguments | tojson }}{%- endif -%}{%- endfor -%}"
    )
    renderer = Renderer(TOKENIZER, template)
    conversation = (HI, Message(role="assistant", tool_calls=(CALL, OTHER)), *RESULTS)
    for hint, tool in (("osprey", msgspec.structs.replace(TOOL, description="An osprey.")), ("", TOOL)):
        prompt = ChatPrompt(messages=conversation, tools=(tool,), template_kwargs={"hint": hint})
        assert "Basel" in renderer.text(prompt)
    conversation = (*conversation, Message(role="assistant", content="It is "))  # type: ignore[assignment]
    for cut in (True, False):
        assert "Basel" in Renderer(TOKENIZER, template).text(
            ChatPrompt(messages=conversation, add_generation_prompt=not cut, continue_final_message=cut)
        )


@pytest.mark.parametrize(
    "messages",
    [
        [Message(role="user", content="x" * 999)] * 20_000,
        [Message(role="system", content="x" * 999)] * 20_000,
        [Message(role="user", content="x" * 999, parts=("x" * 999,))] * 20_000,
        [
            Message(role="assistant", tool_calls=tuple(ToolCall(str(n), "f", "{}") for n in range(20_000))),
            *(Message(role="tool", content="", tool_call_id=str(n)) for n in reversed(range(20_000))),
        ],
    ],
    ids=["users", "instructions", "parts", "calls"],
)
def test_other_forms_take_a_time_linear_in_the_conversation(messages: list[Message]) -> None:
    begun = time.process_time()
    for form in (with_few_instructions, by_turns, one_call_each):
        form(messages)
    assert time.process_time() - begun < 3


@given(
    roles=st.lists(
        st.sampled_from(["system", "developer", "user", "assistant", "tool"]), min_size=1, max_size=7
    )
)
def test_other_forms_of_a_conversation_have_each_of_its_texts_once(roles: list[Role]) -> None:
    messages = tuple(Message(role=role, content=f"text {number}") for number, role in enumerate(roles))
    for form in FORMS:
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
