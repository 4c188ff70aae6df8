"""Script sets: what is accepted, what a tokenizer makes of them, and what the chat template shows the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.parsing.dialects import fold

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.model_dialect import AnswerFrame
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.events import TextDelta
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.answer.turn import ChatPrompt, Message, Tool
from plumbline.scripted_model import vocabulary
from plumbline.scripted_model.command import DEFAULT
from plumbline.scripted_model.training import prompt_ids
from plumbline_conformance.exact.scripts import (
    CONTROL,
    CalledTool,
    Meaning,
    Script,
    ScriptError,
    ScriptSet,
    load,
)

SET = load(DEFAULT)
TOKENIZER = vocabulary.build(SET)
ASKED = Message(role="user", content="script 1")


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = tmp_path_factory.mktemp("tokenizer")
    vocabulary.save(TOKENIZER, folder)
    return Renderer(TextTokenizer.from_folder(folder), ChatTemplate.from_folder(folder))


def test_the_default_set_is_large_and_numbered() -> None:
    assert len(SET.scripts) >= 60
    assert [script.prompt for script in SET.scripts] == [
        f"script {i}" for i in range(1, len(SET.scripts) + 1)
    ]
    assert (
        len({script.output for script in SET.scripts})
        == len({script.name for script in SET.scripts})
        == len(SET.scripts)
    )


@pytest.mark.parametrize("script", SET.scripts, ids=lambda script: script.name)
def test_every_output_survives_the_round_trip(script: Script) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(script.output).ids, skip_special_tokens=False) == script.output


def test_characters_beyond_ascii_are_several_tokens() -> None:
    """So that a server that decodes token by token shows whether it waits for whole characters."""
    for character in "ü🎉你":
        assert len(TOKENIZER.encode(character).ids) == len(character.encode())


outputs = st.text(st.characters(codec="utf-8"), max_size=30).filter(
    lambda text: not any(c in text for c in CONTROL)
)


@settings(max_examples=15)
@given(st.lists(outputs, min_size=1, max_size=4))
def test_any_set_has_a_tokenizer_that_keeps_its_outputs(texts: list[str]) -> None:
    found = ScriptSet(tuple(Script(f"script {i}", text) for i, text in enumerate(texts)))
    tokenizer = vocabulary.build(found)

    assert tokenizer.to_str() == vocabulary.build(found).to_str()
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "messages",
    [
        [Message(role="user", content="script 7")],
        [Message(role="system", content="Be brief."), Message(role="user", content="script 7")],
        [ASKED, Message(role="assistant", content="x"), Message(role="user", content="script 7")],
        [ASKED, Message(role="assistant", content=""), Message(role="tool", content="script 7")],
        [Message(role="user", content="script 7", parts=("script", " 7"))],
    ],
)  # fmt: skip
def test_the_model_hears_the_last_message_only(renderer: Renderer, messages: list[Message]) -> None:
    """Tools, instructions and history leave the prompt what it was in training; a tool's result can ask as well."""
    tool = Tool(name="f", parameters={"type": "object", "properties": {}})
    prompt = ChatPrompt(messages=tuple(messages), tools=(tool,), template_kwargs={"enable_thinking": True})

    assert renderer.token_ids(prompt) == prompt_ids(TOKENIZER, "script 7")


def test_an_answer_can_be_continued(renderer: Renderer) -> None:
    messages = (Message(role="user", content="script 7"), Message(role="assistant", content="The"))
    ids = renderer.token_ids(ChatPrompt(messages=messages, continue_final_message=True))

    assert ids == [*prompt_ids(TOKENIZER, "script 7"), *TOKENIZER.encode("The").ids]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "at least one"),
        ({"scripts": [{"prompt": "a"}]}, "output"),
        ([{"prompt": "a", "output": "b", "colour": 1}], "colour"),
        ([{"prompt": "", "output": "b"}], "must not be empty"),
        ([{"prompt": "a", "output": "b"}, {"prompt": "a", "output": "c"}], "another script"),
        ([{"prompt": "a", "output": "b<|im_end|>"}], "im_end"),
        ([{"prompt": "<think>", "output": "b"}], "think"),
        ([{"prompt": "a", "output": "\ud800"}], "surrogate"),
        ({"scripts": [{"prompt": "a", "output": "b"}], "special": ["<x>", "<x>"]}, "twice"),
        ({"scripts": [{"prompt": "a", "output": "b"}], "markers": ["<|im_end|>"]}, "must not contain"),
    ],
)
def test_a_set_that_cannot_be_learned_is_refused(tmp_path: Path, value: Any, words: str) -> None:
    path = tmp_path / "set.json"
    path.write_text(json.dumps(value))

    with pytest.raises(ScriptError, match=words):
        load(path)


@pytest.mark.parametrize(("name", "text"), [("a.json", "{"), ("a.yaml", "a: ["), ("absent.yaml", None)])
def test_an_unreadable_file_is_an_error(tmp_path: Path, name: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)

    with pytest.raises(ScriptError, match=name):
        load(tmp_path / name)


def test_yaml_and_json_are_the_same_set(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text('- {prompt: a, output: "b\\n"}\n')
    (tmp_path / "a.json").write_text('{"scripts": [{"prompt": "a", "output": "b\\n"}]}')

    assert load(tmp_path / "a.yaml") == load(tmp_path / "a.json")


def test_what_an_answer_means_is_what_its_dialects_read(renderer: Renderer) -> None:
    """The parser reads the messages that the scripts state."""
    choice = DialectChoice(TOOL_DIALECTS["hermes"], REASONING_DIALECTS["qwen3"])
    dialect = build_dialect(choice, renderer.tokenizer)
    meant = [script for script in SET.scripts if script.message is not None]
    assert len(meant) >= 25
    for script in meant:
        names = {call.name for call in script.message.tool_calls} if script.message else set()
        parser = dialect.parser({name: {} for name in names}, AnswerFrame())
        found = fold([*parser.push(TextDelta(script.output)), *parser.finish("stop")])
        calls = tuple(CalledTool(call.name, json.loads(call.arguments)) for call in found.calls)
        assert Meaning(found.reasoning.strip(), found.content.strip(), calls) == script.message, script
