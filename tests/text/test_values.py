"""What templates get where they disagree: arguments as an object and as text, content as null and as no text."""

from __future__ import annotations

import pytest
from support.models import byte_level

from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate, TemplateError
from plumbline.answer.turn import ChatPrompt, Message, ToolCall

TOKENIZER = byte_level()

ARGUMENTS = (
    """{%- for m in messages %}{%- for c in m.tool_calls or [] %}{%- set a = c['function']['arguments'] %}"""
)
CLOSED = "{%- endfor %}{%- endfor %}"


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{{ 'x' + a + 'y' }}", "x{WRITTEN}y"),
        ("{{ a + 'y' }}", "{WRITTEN}y"),
        ("{{ 'x' ~ a }}", "x{WRITTEN}"),
        ("{{ a }}", "{WRITTEN}"),
        ("{{ a | string | trim }}", "{WRITTEN}"),
        ("{{ a + a }}", "{WRITTEN}{WRITTEN}"),
        ("{{ ['a', a] | join(':') }}", "a:{WRITTEN}"),
        ("{{ 'no' if a is string else a | tojson }}", "{OBJECT}"),
        ("{{ {'arguments': a} | tojson }}", '{"arguments": {OBJECT}}'),
        ("{% if a is mapping %}{% for k, v in a.items() %}{{ k }}={{ v }}{% endfor %}{% endif %}", "b=1a=<|im_end|>"),
        ("{% for k, v in a | items %}{{ k }}={{ v }};{% endfor %}{{ a.b }}{{ a['b'] }}", "b=1;a=<|im_end|>;11"),
    ],
)  # fmt: skip
def test_arguments_are_an_object_and_the_text_that_the_model_wrote(template: str, shown: str) -> None:
    """DeepSeek's templates join arguments with strings; no template expects a Python literal."""
    written = '{"b":1, "a": "<|im_end|>"}'
    call = ToolCall("abcdefghi", "f", written)
    prompt = ChatPrompt(messages=(Message(role="assistant", content="", tool_calls=(call,)),))
    made = Renderer(TOKENIZER, ChatTemplate(f"{ARGUMENTS}{template}{CLOSED}"))
    expected = shown.replace("{WRITTEN}", written).replace("{OBJECT}", '{"b": 1, "a": "<|im_end|>"}')
    assert made.text(prompt) == expected
    assert TOKENIZER.added["<|im_end|>"] not in made.token_ids(prompt)


def test_argument_members_may_have_any_name() -> None:
    call = ToolCall("abcdefghi", "f", '{"text": "hello"}')
    prompt = ChatPrompt(messages=(Message(role="assistant", content="", tool_calls=(call,)),))
    made = Renderer(TOKENIZER, ChatTemplate(f"{ARGUMENTS}{{{{ a.text }}}}{{{{ a.x is defined }}}}{CLOSED}"))
    assert made.text(prompt) == "helloFalse"


@pytest.mark.parametrize("arguments", ["", " ", "{}"])
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    call = ToolCall("abcdefghi", "f", arguments)
    prompt = ChatPrompt(messages=(Message(role="assistant", content="", tool_calls=(call,)),))
    made = Renderer(TOKENIZER, ChatTemplate(f"{ARGUMENTS}{{{{ 'x' + a + (a | tojson) }}}}{CLOSED}"))
    assert made.text(prompt) == "x{}{}"


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{{ 'null' if c is none else 'text' }}", "null"),
        ("{{ 'text' if c is not none else 'null' }}", "null"),
        ("{{ 'null' if c == none else 'text' }}{{ 'text' if c != none }}", "null"),
        ("{{ 'text' if c else 'null' }}", "null"),
        ("{{ 'null' if c is sameas none else 'text' }}{{ 'x' is sameas none }}", "nullFalse"),
        ("{{ [c] }}{{ {'c': c} }}", "[None]{'c': None}"),
        ("{{ 'text' if c is string else 'null' }}", "null"),
        ("{{ c | tojson }}{{ {'c': c} | tojson }}", 'null{"c": null}'),
        ("{{ 'a' + c + 'b' }}{{ c + 'd' }}", "abd"),
        ("{{ 'a' ~ c }}{{ c }}{{ c | trim }}{{ c | string }}", "a"),
        ("{{ c | default('x') }}{{ c | default('y', true) }}{{ c or 'z' }}", "yz"),
        ("{{ c | length }}{{ 'x' in c }}{{ c.split('x') | length }}{{ c.startswith('x') }}{{ c[:3] }}", "0False1False"),
        ("{% for part in c %}{{ part }}{% endfor %}{{ c[0] | default('none') }}", "none"),
        ("{% if c is none %}{{ raise_exception('no null') }}{% endif %}{{ c }}x", "x"),
        ("{% if c is not string %}{{ raise_exception('no null') }}{% endif %}{{ c }}x", "x"),
    ],
)  # fmt: skip
def test_content_that_is_null_is_null_and_no_text(template: str, shown: str) -> None:
    """Templates that ask for null add a turn that was never there, or drop the call, where they are given a text."""
    call = ToolCall("abcdefghi", "f", "{}")
    prompt = ChatPrompt(messages=(Message(role="assistant", content=None, tool_calls=(call,)),))
    set_c = "{% set c = messages[0].content %}"
    assert Renderer(TOKENIZER, ChatTemplate(set_c + template)).text(prompt) == shown


def test_content_that_is_an_empty_text_is_not_null() -> None:
    made = Renderer(
        TOKENIZER, ChatTemplate("{{ messages[0].content is none }}{{ messages[0].content is string }}")
    )
    assert made.text(ChatPrompt(messages=(Message(role="assistant", content=""),))) == "FalseTrue"
    refusing = Renderer(TOKENIZER, ChatTemplate("{{ raise_exception('never') }}"))
    for content in ("", None):
        with pytest.raises(TemplateError, match="never"):
            refusing.text(ChatPrompt(messages=(Message(role="assistant", content=content),)))
