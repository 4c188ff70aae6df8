"""Encode prompts of DeepSeek V3.2 and V4, which come with a program instead of a chat template.

    <｜begin▁of▁sentence｜>SYSTEM<｜User｜>…<｜Assistant｜><think>…</think>…<｜end▁of▁sentence｜>

An assistant turn opens with `<think>` if the model should think and with `</think>` if not. Calls are written in DSML
tags. V3.2 puts results directly behind the call, V4 into the next user turn. Thinking of earlier turns is left out, in
V4 only without tools.

The instructions about tools are part of the model: they are read from the program in its folder
(`encoding/encoding_*.py`), which is parsed and never run. Without that program a conversation with tools is refused,
because the model was trained on exactly these instructions.
Source: DeepSeek's encoding programs, as published with the weights.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from plumbline.dialects.parsers.render import render_calls
from plumbline.dialects.registry import TOOL_DIALECTS
from plumbline.dialects.spec.call_format import Call
from plumbline.text.prompts.encoders import Conversation, PromptEncoder
from plumbline.text.templates.template import TemplateError

__all__ = ["DeepSeekEncoder", "ModelTexts"]

Version = Literal["v32", "v4"]

_BOS, _EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_USER, _ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
_THINK, _SAY = "<think>", "</think>"


class ModelTexts(msgspec.Struct, frozen=True):
    """The texts that a model's program puts into prompts."""

    tools: str = ""
    """The instructions about tools, with a place for `{tool_schemas}`; empty if there are none."""
    efforts: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Prefixes of the prompt, by reasoning effort."""

    @classmethod
    def from_folder(cls, folder: Path) -> ModelTexts:
        """Read them from the program in a model's folder; empty if there is none."""
        for path in sorted(folder.glob("encoding/encoding_*.py")):
            found = _constants(path.read_text("utf-8"))
            tools = found.get("TOOLS_SYSTEM_TEMPLATE", found.get("TOOLS_TEMPLATE", ""))
            efforts = found.get("REASONING_EFFORT_PROMPTS", {})
            marks = {
                "dsml_token": "｜DSML｜",
                "thinking_start_token": _THINK,
                "thinking_end_token": _SAY,
            }
            if isinstance(tools, str) and isinstance(efforts, dict):
                for name, text in marks.items():
                    tools = tools.replace(f"{{{name}}}", text)
                return cls(tools, efforts)
        return cls()


def _constants(source: str) -> dict[str, Any]:
    """The literals that a program assigns to names, without running it."""
    found: dict[str, Any] = {}
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return found
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        try:
            found[name] = ast.literal_eval(value)
        except ValueError:
            continue
    return found


class DeepSeekEncoder(PromptEncoder):
    """Encode conversations for one of the two versions; `variables` are the template variables that it reads."""

    variables = frozenset({"enable_thinking", "reasoning_effort", "thinking"})

    def __init__(self, version: Version, texts: ModelTexts) -> None:
        self._version = version
        self._texts = texts
        self._calls = TOOL_DIALECTS["deepseek_v32" if version == "v32" else "deepseek_v4"].sections[0]

    def encode(
        self,
        messages: Conversation,
        tools: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
        *,
        opens: bool,
    ) -> str:
        """Return the prompt of a conversation; see `PromptEncoder.encode`."""
        thinks = bool(kwargs.get("thinking", kwargs.get("enable_thinking", False)))
        parts = [_BOS]
        if thinks:
            parts.append(self._texts.efforts.get(str(kwargs.get("reasoning_effort")), ""))
        if tools and (not messages or messages[0]["role"] != "system"):
            parts.append("\n\n" + self._tools(tools))
        # In V4, results are part of the user turn.
        asking = ("user", "tool") if self._version == "v4" else ("user",)
        last_user = max((i for i, m in enumerate(messages) if m["role"] in asking), default=-1)
        keeps_all = self._version == "v4" and bool(tools)
        for index, message in enumerate(messages):
            following = messages[index + 1]["role"] if index + 1 < len(messages) else None
            open_mark = _THINK if thinks and (keeps_all or index >= last_user) else _SAY
            text = message.get("content") or ""
            match message["role"]:
                case "system":
                    parts.append(text)
                    if tools and index == 0:
                        parts.append("\n\n" + self._tools(tools))
                    if following == "assistant" or (following is None and opens):
                        parts.append(_ASSISTANT + open_mark)
                case "user":
                    before = messages[index - 1]["role"] if index else None
                    joined = self._version == "v4" and before in ("tool", "user")
                    parts.append("\n\n" + text if joined else _USER + text)
                    if self._version == "v32" or following not in ("tool", "user"):
                        parts.append(self._opening(following, opens, open_mark))
                case "tool":
                    parts.append(self._result(messages, index, following, opens, open_mark))
                case "assistant":
                    parts.append(self._assistant_turn(message, thinks and (keeps_all or index > last_user)))
                    if following is not None or not opens:
                        parts.append(_EOS)
                    elif opens:
                        parts.append(_EOS + _ASSISTANT + open_mark)
                case role:
                    raise TemplateError(f"This model's prompts have no messages of role {role!r}.")
        return "".join(parts)

    def _tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        if not self._texts.tools:
            raise TemplateError(
                "This model folder has no encoding/encoding_*.py, so its instructions about tools are not known; "
                "it cannot be used with tools."
            )
        schemas = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        return self._texts.tools.replace("{tool_schemas}", schemas)

    def _opening(self, following: str | None, opens: bool, open_mark: str) -> str:
        return _ASSISTANT + open_mark if following is not None or opens else ""

    def _assistant_turn(self, message: Mapping[str, Any], thinks: bool) -> str:
        thought = (message.get("reasoning_content") or "") + _SAY if thinks else ""
        calls = [
            Call(call["function"]["name"], _json(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        written = "\n\n" + render_calls(calls, self._calls) if calls else ""
        return thought + (message.get("content") or "") + written

    def _result(
        self, messages: Conversation, index: int, following: str | None, opens: bool, open_mark: str
    ) -> str:
        text = messages[index].get("content") or ""
        before = messages[index - 1]["role"] if index else None
        if self._version == "v4":
            head = "\n\n" if before in ("tool", "user") else _USER
            tail = "" if following in ("tool", "user") else self._opening(following, opens, open_mark)
            return f"{head}<tool_result>{text}</tool_result>{tail}"
        head = "" if before == "tool" else "\n\n<function_results>"
        tail = ""
        if following != "tool":
            tail = "\n</function_results>" + (f"\n\n{open_mark}" if following is not None or opens else "")
        return f"{head}\n<result>{text}</result>{tail}"


def _json(arguments: Any) -> str:
    """Return arguments for the tags, which can only hold an object."""
    if isinstance(arguments, str):
        raise TemplateError("The arguments of an earlier call are no JSON object.")
    return json.dumps(arguments, ensure_ascii=False)
