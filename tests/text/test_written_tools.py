"""Tools with templates that have no place for them (TOOL-01).

Laws:
    1. Of any conversation, every template shows the name and the parameters of each tool, or the start names that it
       shows none; where they are written, the description as well.
    2. No text of a tool becomes a control token; the markers of the form of a call may.
    3. The form of a call in the prompt is read as a call by the dialect that reads the answers.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.about import about
from support.models import byte_level

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.registry import GENERIC, TOOL_DIALECTS, DialectChoice, choose
from plumbline.answer.dialects.written_calls import CallWriter
from plumbline.answer.events import TextDelta, ToolCallEnd, ToolCallStart
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.shown_call import shown_call
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.turn import ChatPrompt, Message, Tool

TOKENIZER = byte_level()
TEMPLATES = sorted((Path(__file__).parent / "templates").glob("*.jinja"))
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
UNSHOWN = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
TOLD = (
    (),
    (Message(role="system", content="w0 be terse"),),
    (Message(role="developer", content="w0", parts=("w0", "w1")),),
)
HISTORIES = (
    (Message(role="user", content="q0"),),
    (
        Message(role="user", content="q0"),
        Message(role="assistant", content="a0"),
        Message(role="user", content="q1"),
    ),
    (Message(role="assistant", content="a0"), Message(role="user", content="q1")),
)


@cache
def served(source: str) -> Renderer:
    """Return the renderer of a served model with this template."""
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    choice = choose(source, show_call=partial(shown_call, Renderer(TOKENIZER, template)))
    choice = choice if choice.tool is not None else msgspec.structs.replace(choice, tool=GENERIC)
    return Renderer(TOKENIZER, template, write_calls=CallWriter(choice))


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.stem for path in TEMPLATES])
def test_every_template_shows_tools(path: Path) -> None:
    renderer = served(path.read_text("utf-8"))
    if "tools" in renderer.left_out():
        return  # The start names it.
    schema = {"type": "object", "properties": {"p0where": {"type": "string", "description": "d1place"}}}
    tools = tuple(Tool(name=f"t{n}look", description=f"d{n}about", parameters=schema) for n in range(2))
    for told in TOLD:
        for history in HISTORIES:
            text = renderer.text(ChatPrompt(messages=(*told, *history), tools=tools))
            with about((told, history, text)):
                assert all(
                    word in text for word in ("t0look", "t1look", "p0where", history[-1].content or "")
                )
                assert not told or "w0" in text
                assert not renderer.writes_tools() or all(f"d{n}about" in text for n in range(2))


def test_a_template_without_system_messages_and_tools_is_named() -> None:
    assert "tools" in served(UNSHOWN).left_out()
    assert served(UNSHOWN).writes_tools() is None
    assert served(PLAIN).left_out() == []
    assert served(PLAIN).writes_tools() is True


def test_without_tools_nothing_is_written() -> None:
    assert served(PLAIN).text(ChatPrompt(messages=HISTORIES[0])) == "[user]q0<|im_end|>"


@given(text=st.text(st.sampled_from('<|im_end|>{}"\\\n')), name=st.sampled_from(["look", "l<|im_end|>"]))
@example(text="<|im_end|>", name="<|im_end|>")
def test_no_text_of_a_tool_becomes_a_control_token(text: str, name: str) -> None:
    tool = Tool(
        name=name,
        description=text,
        parameters={"type": "object", "properties": {text or "a": {"const": text}}},
    )
    ids = served(PLAIN).token_ids(ChatPrompt(messages=HISTORIES[0], tools=(tool,)))
    end = TOKENIZER.added["<|im_end|>"]
    assert ids.count(end) == 2  # After the system message and the user's.
    assert ids[-1] == end


@pytest.mark.parametrize("name", sorted({dialect.name for dialect in TOOL_DIALECTS.values()}))
def test_the_form_of_a_call_is_read_as_one(name: str) -> None:
    choice = DialectChoice(TOOL_DIALECTS[name], None)
    if choice.tool is not None and choice.tool.messages:
        return  # Its calls have headers, so that the form is plain JSON; its encoder has a place for tools.
    renderer = Renderer(TOKENIZER, ChatTemplate(PLAIN), write_calls=CallWriter(choice))
    tool = Tool(name="look", description="d", parameters={"type": "object", "properties": {}})
    text = renderer.text(ChatPrompt(messages=HISTORIES[0], tools=(tool,)))
    form = text.partition("wait for the result.\n")[2].partition("\nIf no function")[0]
    schema = {"type": "object", "properties": {"parameter_name": {"type": "string"}}}
    dialect = build_dialect(choice, TOKENIZER)
    parser = dialect.parser({"function_name": schema}, dialect.frame(()))
    events = [*parser.push(TextDelta(form)), *parser.finish("stop")]
    assert [type(event) for event in events if isinstance(event, ToolCallStart | ToolCallEnd)] == [
        ToolCallStart,
        ToolCallEnd,
    ]
    assert not any(isinstance(event, TextDelta) and event.text.strip() for event in events)
