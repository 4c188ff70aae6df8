"""Templates that fail, that are missing, and what a client may and may not give them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import (
    RENDERER,
    TOKENIZER,
)

from plumbline.answer.text import render as rendering
from plumbline.answer.text.prompts.protection import guarded_tokens
from plumbline.answer.text.render import Renderer, TooManyTokensError
from plumbline.answer.text.templates.template import ChatTemplate, TemplateError
from plumbline.answer.turn import ChatPrompt, Message, TextPrompt, Tool, ToolCall


def render(source: str, **options: Any) -> str:
    return ChatTemplate(source).render([{"role": "user", "content": "hi"}], **options)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[5].content.x.y }}", "could not render"),
        ("{{ 1 / 0 }}", "could not render"),
        ("{{ [].__class__.__mro__ }}", "could not render"),
        ("{{ messages.append(1) }}", "could not render"),
        ("{{ messages.pop() }}", "could not render"),
        ("{% set own = [] %}{{ own.insert(0, 1) }}", "could not render"),
        ("{% for i in range(99999999) %}{% endfor %}", "could not render"),
    ],
)
def test_a_failing_template_is_an_error(source: str, words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        render(source)


def test_a_template_may_extend_and_shorten_lists_of_its_own() -> None:
    source = (
        "{% set ns = namespace(ids=[]) %}{% for m in messages %}{% set _ = ns.ids.append(m.content) %}{% endfor %}"
        "{{ ns.ids }}{{ ns.ids.pop(0) }}{{ ns.ids }}"
    )
    assert render(source) == "['hi']hi[]"


def test_older_templates_get_the_tools_as_functions() -> None:
    """FireFunction v2 reads `functions`, the JSON of the tools, and the time."""
    tools = [{"type": "function", "function": {"name": "f", "description": "é"}}]
    text = render("{{ functions }}|{{ datetime }}", tools=tools)
    functions, _, time = text.partition("|")
    assert json.loads(functions) == [tools[0]["function"]]
    assert datetime.fromisoformat(time).year > 2000
    assert json.loads(render("{{ functions }}")) == []
    assert render("{{ functions }}", tools=tools, kwargs={"functions": "own"}) == "own"
    assert render("{{ datetime is defined }}", tools=tools) == "False"


def test_a_template_that_is_not_jinja_is_refused_when_it_is_loaded() -> None:
    with pytest.raises(TemplateError, match="not valid"):
        ChatTemplate("{% for %}")


def test_a_model_without_a_template_sends_to_completions() -> None:
    with pytest.raises(TemplateError, match="/v1/completions"):
        Renderer(TOKENIZER, None).token_ids(ChatPrompt(messages=(Message(role="user", content="hi"),)))


def test_a_client_cannot_replace_what_the_template_is_given() -> None:
    source = "{{ eos_token }}|{{ messages[0].content }}|{{ add_generation_prompt }}|{{ tools }}"
    template = ChatTemplate(source, eos_token="<end>")
    fakes = {"eos_token": "x", "messages": [], "add_generation_prompt": False, "tools": ["x"]}

    assert template.render([{"role": "user", "content": "hi"}], kwargs=fakes) == "<end>|hi|True|None"


def test_training_marks_mean_nothing_to_a_prompt() -> None:
    assert render("a{% generation %}b{% endgeneration %}c") == "abc"


@pytest.mark.parametrize("content", ["n", "im", "", "The answer", "trailing  ", "<|im_end|>", "a\n\nb\n"])
def test_a_continued_message_ends_where_its_text_ends(content: str) -> None:
    """Whatever letters it shares with what the template writes after it."""
    messages = (Message(role="user", content="hi"), Message(role="assistant", content=content))
    ids = RENDERER.token_ids(ChatPrompt(messages=messages, continue_final_message=True))

    assert TOKENIZER.decode(ids).endswith(f"<|im_start|>assistant\n{content}")
    assert [i for i in ids if i in TOKENIZER.added.values()] == [
        TOKENIZER.added[token] for token in ("<|im_start|>", "<|im_end|>", "<|im_start|>")
    ]


def test_a_template_that_drops_the_final_message_cannot_continue_it() -> None:
    with pytest.raises(TemplateError, match="continue_final_message"):
        render("nothing", continue_final_message=True)


@pytest.mark.parametrize(
    "arguments", ["", "{}", '{"a": "\\ud800"}', "not json", "[1]", "[" * 100_000, "1" * 5000]
)
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    """Whatever a client replays as the arguments of a call, rendering it never fails."""
    calls = (ToolCall("c", "f", arguments),)
    text = RENDERER.text(ChatPrompt(messages=(Message(role="assistant", tool_calls=calls),)))

    shown = {"": "{}", '{"a": "\\ud800"}': '{"a": "\ufffd"}'}.get(arguments, arguments)
    assert f'"arguments": {shown}}}</tool_call>' in text


def test_parameters_that_are_nested_too_deeply_are_refused() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(TemplateError, match="too deeply"):
        RENDERER.token_ids(
            ChatPrompt(
                messages=(Message(role="user", content="hi"),), tools=(Tool(name="f", parameters=deep),)
            )
        )


@pytest.mark.parametrize("write", [lambda folder, text: (folder / "chat_template.jinja").write_text(text)])
def test_a_folders_template_is_found(tmp_path: Path, write: Callable[[Path, str], Any]) -> None:
    assert ChatTemplate.from_folder(tmp_path) is None
    config = {
        "chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "two"}]
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = ChatTemplate.from_folder(tmp_path)
    assert found is not None
    assert found.source == "two"
    write(tmp_path, "one")
    found = ChatTemplate.from_folder(tmp_path)
    assert found is not None
    assert found.source == "one"


WORDS = st.lists(st.sampled_from(["hello", " the", "<|im_start|>", "x", "\u20ac", "\n"]), max_size=60)


@given(WORDS, st.integers(0, 80))
def test_a_prompt_is_refused_unencoded_only_if_it_has_too_many_tokens(words: list[str], most: int) -> None:
    """Counting in pieces may cut tokens in two, but it never refuses a prompt that fits."""
    prompt = TextPrompt("".join(words))
    whole = len(RENDERER.token_ids(prompt))
    refused = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendering, "_PIECE", 32)
        patch.setattr(rendering, "_CUT", 4)
        patch.setattr(rendering, "_USUAL", 0)
        try:
            assert len(RENDERER.token_ids(prompt, most)) == whole
        except TooManyTokensError as error:
            refused = error.least
    assert refused is None or most < refused <= whole


def test_a_prompt_of_megabytes_is_refused_unencoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    encode = TOKENIZER.encode_rendered

    def counted(text: str, guard: Any = None) -> list[int]:
        encoded.append(len(text))
        return encode(text, guard)

    monkeypatch.setattr(TOKENIZER, "encode_rendered", counted)
    tool = Tool(name="f", description="x " * 1_000_000, parameters=None)
    prompt = ChatPrompt(messages=(Message(role="user", content="a"),), tools=(tool,))
    with pytest.raises(TooManyTokensError):
        RENDERER.token_ids(prompt, 4096)
    assert sum(encoded) < 300_000


def test_tokens_with_the_form_of_control_tokens_are_guarded_though_they_are_not_special() -> None:
    template = ChatTemplate("{{ '<|' + messages[0].role + '|>' }}<row>")
    tokenizer: Any = SimpleNamespace(
        added={"<|user|>": 7, "<｜tool｜>": 8, "<row>": 9, "<b>": 10, "<s>": 11, "  ": 12}, special_ids={11}
    )
    assert set(guarded_tokens(tokenizer, template).tokens) == {"<|user|>", "<｜tool｜>", "<row>", "<s>"}
