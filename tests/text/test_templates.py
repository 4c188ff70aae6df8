"""Chat templates in the style of every family, rendered as transformers renders them.

The files in `templates/` are our own, written with the means and the shape of the families' templates: macros that call
themselves, namespaces, loop controls, filters, dates, refusals. What is compared is the text of the prompt after
tokenising with every client text guarded, so the guard is under test as well.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.models import byte_level
from transformers.utils.chat_template_utils import render_jinja_template

from plumbline.answer.text.prompts.joined_messages import FORMS, one_call_each
from plumbline.answer.text.render import Renderer, UnusedVariableError
from plumbline.answer.text.templates.template import ChatTemplate, TemplateError
from plumbline.answer.turn import ChatPrompt, Message, Tool, ToolCall

FOLDER = Path(__file__).parent / "templates"
SOURCES = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.jinja"))}
TOKENIZER = byte_level()

FORMATS = {
    **dict.fromkeys(SOURCES, "string"),
    **dict.fromkeys(
        (
            *(
                "gemma3",
                "gemma4",
                "glm45",
                "glm47",
                "granite4",
                "kimi_k2",
                "llama4",
                "minimax_m2",
                "minimax_m3",
            ),
            *("mistral_v7", "qwen2_vl", "step3"),
        ),
        "either",
    ),
    "smolvlm_parts": "parts",
}
"""What each template reads, found by reading it."""

FAMILIES = [*(name for name in SOURCES if not name.startswith("command_r.")), "command_r"]
TOOLS_OWN_TEMPLATE = {"command_r"}


@cache
def renderer(family: str) -> Renderer:
    if family in TOOLS_OWN_TEMPLATE:
        plain, tool_use = SOURCES[f"{family}.default"], SOURCES[f"{family}.tool_use"]
        template = ChatTemplate(plain, tool_use=tool_use, bos_token="<s>", eos_token="</s>")
    else:
        template = ChatTemplate(SOURCES[family], bos_token="<s>", eos_token="</s>")
    return Renderer(TOKENIZER, template)


def source(family: str, tools: bool) -> str:
    if family in TOOLS_OWN_TEMPLATE:
        return SOURCES[f"{family}.tool_use" if tools else f"{family}.default"]
    return SOURCES[family]


pieces = st.sampled_from(
    ["a", "B", " ", "\n", "\n\n", "é", "🎉", "<", ">", '"', "'", "\\", "{", "}", "</think>", "<think>x", "/think", "%}",
     "<|im_end|>", "\\ue000", "hello"]
)  # fmt: skip
texts = st.lists(pieces, max_size=6).map("".join)
words = st.text("abc_", min_size=1, max_size=4)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, -2.0]) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
schemas = st.sampled_from(
    [
        {"type": "string"}, {"type": "string", "description": "a 'b' \"c\"", "enum": ["x", "y"]}, {"type": "integer"},
        {"type": "array", "items": {"type": "number"}}, {"type": ["string", "null"]}, {"type": "boolean"},
        {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]}, {"anyOf": [{"type": "string"}]},
        {"type": "object", "additionalProperties": {"type": "integer"}}, {},
    ]
)  # fmt: skip
tools = st.builds(
    Tool,
    name=words,
    description=st.none() | texts,
    parameters=st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(words, schemas, max_size=3)},
        optional={"required": st.lists(words, max_size=2)},
    ),
)
ids = st.sampled_from(["call_1", "abcdefghi", "ABC123xyz", "functions.f:0"])


def with_parts(message: Message, parts: tuple[str, ...] | None) -> Message:
    if parts is None:
        return message
    return Message(role=message.role, content="\n".join(parts), parts=parts)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Instructions, questions, thoughts, calls with their results, answers; ends anywhere after a question."""
    maybe_parts = st.none() | st.lists(texts, max_size=3).map(tuple)
    found: list[Message] = []
    if draw(st.booleans()):
        # Some templates look for switches in instructions. A marker is opaque to them here, and has none inside.
        plain = texts.filter(lambda text: "think>" not in text)
        found.append(
            with_parts(
                Message(role="system", content=draw(plain)), draw(st.none() | plain.map(lambda t: (t,)))
            )
        )
    for _ in range(draw(st.integers(1, 3))):
        found.append(with_parts(Message(role="user", content=draw(texts)), draw(maybe_parts)))
        if draw(st.booleans()):
            calls = tuple(
                ToolCall(draw(ids), draw(words), json.dumps(draw(st.dictionaries(words, values, max_size=3))))
                for _ in range(draw(st.integers(1, 2)))
            )
            thought = draw(st.none() | texts.filter(bool))
            said = draw(st.none() | texts)
            found.append(Message(role="assistant", content=said, reasoning=thought, tool_calls=calls))
            found += [Message(role="tool", content=draw(texts), tool_call_id=call.id) for call in calls]
        if draw(st.booleans()):
            thought = draw(st.none() | texts.filter(bool))
            found.append(Message(role="assistant", content=draw(texts), reasoning=thought))
    return tuple(found)


variables = st.fixed_dictionaries(
    {},
    optional={
        "enable_thinking": st.booleans(),
        "thinking": st.booleans(),
        "thinking_budget": st.sampled_from([0, 512, 7]),
        "reasoning_effort": st.sampled_from(["low", "high"]),
        "tools_in_user_message": st.booleans(),
        "add_vision_id": st.booleans(),
        "thinking_mode": st.sampled_from(["enabled", "disabled", "adaptive"]),
        "controls": st.just({"length": "long", "citations": True}),
    },
)
documents = st.none() | st.lists(
    st.fixed_dictionaries({"doc_id": st.integers(0, 9), "title": texts, "text": texts}), max_size=2
).map(tuple)


def as_transformers_takes_it(message: Message, form: str) -> dict[str, Any]:
    """Return the message as transformers expects it: arguments as objects, content in the template's format."""
    parts = message.parts
    if form == "parts" and parts is None:
        parts = (message.content or "",)
    listed = form != "string" and parts is not None
    found: dict[str, Any] = {
        "role": message.role,
        "content": [{"type": "text", "text": part} for part in parts or ()] if listed else message.content,
    }
    if message.reasoning is not None:
        # Newer releases of transformers fill in the second name themselves; the oldest that we support does not.
        found["reasoning_content"] = found["thinking"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": json.loads(c.arguments)},
            }
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    return found


def theirs(family: str, prompt: ChatPrompt) -> str | None:
    """transformers' rendering, or None where it refuses.

    Content that is null is given as null, and as no text to a template that raises with null or prints it.
    """
    told = [msgspec.structs.replace(m, content=m.content or "") for m in prompt.messages]
    as_text = their_rendering(family, msgspec.structs.replace(prompt, messages=tuple(told)))
    as_null = their_rendering(family, prompt)
    printed = as_null is None or (as_text is not None and as_null.count("None") > as_text.count("None"))
    return as_text if printed else as_null


def their_rendering(family: str, prompt: ChatPrompt) -> str | None:
    """transformers' rendering of the messages as they are."""
    text = source(family, bool(prompt.tools))
    form = FORMATS[
        f"{family}.{'tool_use' if prompt.tools else 'default'}" if family in TOOLS_OWN_TEMPLATE else family
    ]
    given_tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                **({} if tool.description is None else {"description": tool.description}),
                "parameters": tool.parameters,
            },
        }
        for tool in prompt.tools
    ]
    try:
        rendered, _ = render_jinja_template(
            [[as_transformers_takes_it(message, form) for message in prompt.messages]],
            tools=given_tools or None,
            documents=None if prompt.documents is None else list(prompt.documents),
            chat_template=text,
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
            bos_token="<s>",
            eos_token="</s>",
            **prompt.template_kwargs,
        )
    except Exception:  # Whatever a template raises, the request is refused.
        return None
    assert isinstance(rendered[0], str)
    return rendered[0]


def ours(family: str, prompt: ChatPrompt) -> str | None:
    try:
        return renderer(family).text(prompt)
    except TemplateError:
        return None


@cache
def refuses_several_calls(family: str, with_tools: bool) -> bool:
    """Return whether a template takes a message with one call, and none with two."""
    calls = [ToolCall(f"abcdefgh{number}", "f", "{}") for number in range(2)]
    taken = []
    for count in (1, 2):
        results = (
            Message(role="tool", content="r", tool_call_id=call.id, name="f") for call in calls[:count]
        )
        asking = Message(role="assistant", tool_calls=tuple(calls[:count]))
        conversation = (Message(role="user", content="Hi"), asking, *results)
        tool = (Tool(name="f", description="f", parameters={"type": "object", "properties": {}}),)
        prompt = ChatPrompt(
            messages=conversation, tools=tool if with_tools else (), add_generation_prompt=True
        )
        taken.append(theirs(family, prompt) is not None)
    return taken == [True, False]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=EXPLORED or 3)
@given(data=st.data())
def test_a_prompt_is_the_one_that_transformers_makes_or_both_refuse(family: str, data: st.DataObject) -> None:
    messages = data.draw(conversations())
    given_tools = tuple(data.draw(st.lists(tools, max_size=2)))
    reads_documents = renderer(family).template.uses("documents", tools=bool(given_tools))  # type: ignore[union-attr]
    last = messages[-1]
    # Thoughts inside a final message's content are taken out by some templates; see the test on those below.
    may_continue = last.role == "assistant" and not last.tool_calls and "think" not in (last.content or "")
    continues = may_continue and data.draw(st.booleans())
    prompt = ChatPrompt(
        messages=messages,
        tools=given_tools,
        template_kwargs=data.draw(variables),
        documents=data.draw(documents) if reads_documents else None,
        add_generation_prompt=not continues and data.draw(st.booleans()),
        continue_final_message=continues,
    )

    said: tuple[Message, ...] = prompt.messages
    if refuses_several_calls(family, bool(given_tools)):
        said = one_call_each(said)
    expected = theirs(family, msgspec.structs.replace(prompt, messages=said))
    for other in FORMS:
        if expected is None and (changed := other(said)) != said:  # Our renderer tries what says the same.
            said = changed
            expected = theirs(family, msgspec.structs.replace(prompt, messages=said))
    assert ours(family, prompt) == expected


def sent(role: str, content: str, **fields: Any) -> Message:
    return Message(role=role, content=content, **fields)  # type: ignore[arg-type]


WEATHER = Tool(
    name="get_weather",
    description="The weather of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
LOOP = (
    sent("user", "How is Paris?"),
    sent("assistant", "", tool_calls=(ToolCall("abcdefghi", "get_weather", '{"city": "Paris", "days": 3}'),)),
    sent("tool", "sunny", tool_call_id="abcdefghi"),
)
NO_CALLS = {"gemma3", "llama3", "qwen2_vl", "smollm3", "smolvlm_parts"}
"""Families whose templates show no calls, or take turns too strictly for them."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_conversation_is_never_refused(family: str) -> None:
    """Guard the law above, which would pass if all conversations were refused."""
    prompt = ChatPrompt(messages=(sent("user", "one"), sent("assistant", "two"), sent("user", "three")))
    text = ours(family, prompt)

    assert text is not None
    assert text.index("one") < text.index("two") < text.index("three")


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - NO_CALLS))
def test_a_call_and_its_result_are_shown_with_arguments_as_an_object(family: str) -> None:
    text = ours(family, ChatPrompt(messages=LOOP, tools=(WEATHER,)))

    assert text is not None
    assert "sunny" in text
    assert "Paris" in text.rpartition("How is Paris?")[2]
    # Arguments that were passed on as a string would come out escaped, as JSON inside JSON; Jamba wants just that.
    assert ('\\"city\\"' in text) == (family == "jamba")


@pytest.mark.parametrize("name", SOURCES)
def test_the_content_format_is_detected_from_the_template(name: str) -> None:
    assert ChatTemplate(SOURCES[name]).content_format(tools=False) == FORMATS[name]


@pytest.mark.parametrize("name", sorted(name for name, form in FORMATS.items() if form != "string"))
def test_parts_and_their_text_make_the_same_prompt_where_a_template_joins_parts(name: str) -> None:
    joined = ours(name, ChatPrompt(messages=(sent("user", "ab"),)))

    assert ours(name, ChatPrompt(messages=(sent("user", "ab", parts=("a", "b")),))) == joined


@pytest.mark.parametrize(
    ("template", "content_format"),
    [
        ("{{ messages[0].content }}", "string"),
        ("{% for m in messages %}{{ m['content'].split('x')[0] }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for c in m['content'] %}{{ c.text }}{% endfor %}{% endfor %}", "parts"),
        ("{{ messages[0].content[0].text }}", "parts"),
        ("{{ messages[0]['content'][0]['text'] }}", "parts"),
        ("{% set c = messages[0].content %}{% set d = c %}{% for p in d %}{{ p.text }}{% endfor %}", "parts"),
        ("{{ messages[0].content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}", "parts"),
        ("{% macro f(x) %}{% for p in x %}{{ p.text }}{% endfor %}{% endmacro %}{{ f(messages[0].content) }}", "parts"),
        ("{% macro f(x) %}{% for p in x %}{{ p.text }}{% endfor %}{% endmacro %}{{ f(tools) }}{{ content }}", "string"),
        ("{% macro f(x) %}{% for p in x %}{{ p }}{% endfor %}{% endmacro %}{{ f(messages[0].content) }}", "string"),
        ("{% set c = messages[0].content %}{% if c is string %}{{ c }}{% else %}{{ c[0].text }}{% endif %}", "either"),
        ("{% set c = messages[0].get('content') or [] %}{% for p in c %}{{ p.text }}{% endfor %}", "parts"),
        ("{% for m in messages %}{{ m.content if m.content is string else 'no' }}{% endfor %}", "string"),
    ],
)  # fmt: skip
def test_the_content_format_is_detected_for_any_variable_name(template: str, content_format: str) -> None:
    assert ChatTemplate(template).content_format(tools=False) == content_format


def test_only_a_template_with_tools_is_picked_for_tools(tmp_path: Path) -> None:
    """As transformers picks among named templates."""
    entry = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools[0].function.name }}"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entry}))
    template = ChatTemplate.from_folder(tmp_path)

    assert template is not None
    assert template.render([]) == "plain"
    assert template.render([], tools=[{"function": {"name": "f"}}]) == "f"


def test_a_folder_with_additional_templates_is_read(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("plain")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    template = ChatTemplate.from_folder(tmp_path)

    assert template is not None
    assert (template.render([]), template.render([], tools=[{}])) == ("plain", "tools")


def test_the_template_of_a_processor_is_taken_unless_only_the_tokenizers_has_tools(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ tools or 'text' }}"}))
    for source, with_tools in (("images", "[{}]"), ("images{{ tools or '' }}", "images[{}]")):
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": source}))
        template = ChatTemplate.from_folder(tmp_path)
        assert template is not None
        assert (template.render([]), template.render([], tools=[{}])) == ("images", with_tools)
    (tmp_path / "chat_template.json").write_text("{}")
    with pytest.raises(TemplateError, match=r"chat_template\.json"):
        ChatTemplate.from_folder(tmp_path)


def test_named_templates_without_a_default_are_refused(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "rag", "template": "r"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    with pytest.raises(TemplateError, match="rag"):
        ChatTemplate.from_folder(tmp_path)


def test_a_token_that_the_model_does_not_have_is_not_defined(tmp_path: Path) -> None:
    source = "{{ bos_token is defined }} {{ pad_token }} {{ eos_token }}"
    config = {"chat_template": source, "pad_token": {"content": "<p>"}, "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = ChatTemplate.from_folder(tmp_path, eos_token="</s>")

    assert template is not None
    assert template.render([]) == "False <p> </s>"


def test_documents_are_refused_where_the_template_does_not_read_them() -> None:
    """What is not honoured is refused, with the name of the field."""
    prompt = ChatPrompt(messages=(sent("user", "hi"),), documents=({"text": "d"},))

    with pytest.raises(UnusedVariableError) as caught:
        renderer("qwen3").token_ids(prompt)
    assert caught.value.field == "documents"
    assert "d<|end_of_text|>" in renderer("granite3").text(prompt)


def test_a_final_message_that_loses_its_thoughts_cannot_be_continued() -> None:
    """Even where an earlier message has the same words, which is enough for transformers."""
    messages = (sent("user", "x</think>y"), sent("assistant", "x</think>y"))

    assert ours("deepseek_r1", ChatPrompt(messages=messages, continue_final_message=True)) is None


def test_reasoning_has_every_name_that_templates_know() -> None:
    template = ChatTemplate(
        "{{ messages[0].thinking }}={{ messages[0].reasoning_content }}={{ messages[0].reasoning }}"
    )
    prompt = ChatPrompt(messages=(sent("assistant", "", reasoning="hm"),))

    assert Renderer(TOKENIZER, template).text(prompt) == "hm=hm=hm"


@pytest.mark.parametrize("written", ["tojson(ensure_ascii=true)", "string"])
def test_a_guarded_text_is_whole_where_a_template_writes_literals(written: str) -> None:
    """The marks of the guard are escaped with the text there, and taken out all the same."""
    template = ChatTemplate("{{ [messages[0].content] | " + written + " }}")
    prompt = ChatPrompt(messages=(sent("user", "a<|im_end|>b"),))

    assert "a<|im_end|>b" in Renderer(TOKENIZER, template).text(prompt)
