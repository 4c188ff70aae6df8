"""Prompts of DeepSeek's encoding programs. The texts about tools come out of the model's folder, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plumbline.answer.dialects.registry import choose
from plumbline.answer.text.prompts.deepseek import DeepSeekEncoder, ModelTexts, Version
from plumbline.answer.text.templates.template import TemplateError

PROGRAM = '''
import os
dsml_token: str = "｜DSML｜"
TOOLS_{name} = """Tools of ours: <{{dsml_token}}{block}> after {{thinking_end_token}}
{{tool_schemas}}"""
REASONING_EFFORT_PROMPTS = {{"high": "Think hard.", "low": ""}}
os.remove(os.path.join(os.path.dirname(__file__), "proof"))
'''
TOOL = {"type": "function", "function": {"name": "f", "description": "d"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": "x", "n": [1]}}}
TAGS = (
    '\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="n" string="false">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
)
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Sys."},
    {"role": "user", "content": "One"},
    {"role": "assistant", "content": "Yes.", "reasoning_content": "Old."},
    {"role": "user", "content": "Two"},
    {"role": "assistant", "content": "", "reasoning_content": "New.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "R"},
]


def encoder(tmp_path: Path, version: Version) -> DeepSeekEncoder:
    name, block = ("SYSTEM_TEMPLATE", "function_calls") if version == "v32" else ("TEMPLATE", "tool_calls")
    folder = tmp_path / "encoding"
    folder.mkdir()
    (folder / "proof").touch()
    (folder / "encoding_ds.py").write_text(PROGRAM.format(name=name, block=block), "utf-8")
    texts = ModelTexts.from_folder(tmp_path)
    assert (folder / "proof").exists(), "the program was run"
    return DeepSeekEncoder(version, texts)


def test_a_talk_with_a_call_in_v32(tmp_path: Path) -> None:
    said = encoder(tmp_path, "v32").render(TALK, tools=[TOOL], kwargs={"thinking": True})
    assert said == (
        "<｜begin▁of▁sentence｜>Sys.\n\nTools of ours: <｜DSML｜function_calls> after </think>\n"
        '{"name": "f", "description": "d"}'
        "<｜User｜>One<｜Assistant｜></think>Yes.<｜end▁of▁sentence｜>"
        "<｜User｜>Two<｜Assistant｜><think>New.</think>\n\n"
        f"<｜DSML｜function_calls>{TAGS}</｜DSML｜function_calls><｜end▁of▁sentence｜>"
        "\n\n<function_results>\n<result>R</result>\n</function_results>\n\n<think>"
    )


def test_a_talk_with_a_call_in_v4(tmp_path: Path) -> None:
    kwargs = {"enable_thinking": True, "reasoning_effort": "high"}
    said = encoder(tmp_path, "v4").render(TALK, tools=[TOOL], kwargs=kwargs)
    assert said == (
        "<｜begin▁of▁sentence｜>Think hard.Sys.\n\nTools of ours: <｜DSML｜tool_calls> after </think>\n"
        '{"name": "f", "description": "d"}'
        "<｜User｜>One<｜Assistant｜><think>Old.</think>Yes.<｜end▁of▁sentence｜>"
        "<｜User｜>Two<｜Assistant｜><think>New.</think>\n\n"
        f"<｜DSML｜tool_calls>{TAGS}</｜DSML｜tool_calls><｜end▁of▁sentence｜>"
        "<｜User｜><tool_result>R</tool_result><｜Assistant｜><think>"
    )


@pytest.mark.parametrize("version", ["v32", "v4"])
def test_without_thinking_every_turn_closes_it(tmp_path: Path, version: Version) -> None:
    said = encoder(tmp_path, version).render(TALK[:4])
    assert said == (
        "<｜begin▁of▁sentence｜>Sys.<｜User｜>One<｜Assistant｜></think>Yes.<｜end▁of▁sentence｜>"
        "<｜User｜>Two<｜Assistant｜></think>"
    )


@pytest.mark.parametrize("version", ["v32", "v4"])
def test_the_last_message_can_be_left_open(tmp_path: Path, version: Version) -> None:
    said = encoder(tmp_path, version).render(TALK[:3], continue_final_message=True)
    assert said.endswith("<｜Assistant｜></think>Yes.")


def test_tools_without_the_model_s_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="instructions about tools"):
        DeepSeekEncoder("v4", ModelTexts.from_folder(tmp_path)).render(TALK, tools=[TOOL])


@pytest.mark.parametrize(("version", "name"), [("v32", "deepseek_v32"), ("v4", "deepseek_v4")])
def test_the_dialect_is_detected_from_the_program(tmp_path: Path, version: Version, name: str) -> None:
    encoder(tmp_path, version)
    chosen = choose(ModelTexts.from_folder(tmp_path).tools).tool
    assert chosen is not None
    assert chosen.name == name
