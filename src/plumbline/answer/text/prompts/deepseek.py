"""Encode prompts of DeepSeek V3.2 and V4, which come with a program instead of a chat template.

    <｜begin▁of▁sentence｜>SYSTEM<｜User｜>…<｜Assistant｜><think>…</think>…<｜end▁of▁sentence｜>

An assistant turn opens with `<think>` if the model should think and with `</think>` if not. Calls are written in DSML
tags. V3.2 puts results directly after the call, V4 into the next user turn. Thinking of earlier turns is left out, in
V4 only without tools.

The instructions about tools are part of the model: they are read from the program in its folder
(`encoding/encoding_*.py`), which is parsed and never run. Without that program a conversation with tools is refused,
because the model was trained on exactly these instructions.
Source: DeepSeek's encoding programs, as published with the weights.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.text.prompts.encoders import Conversation, PromptEncoder
from plumbline.answer.text.templates.template import TemplateError
from plumbline.base.exact_number import dumps

__all__ = ["DeepSeekEncoder", "ModelTexts"]

Version = Literal["v32", "v4"]

_BOS, _EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_USER, _ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
_THINK, _SAY = "<think>", "</think>"


class ModelTexts(msgspec.Struct, frozen=True):
    """The texts that a model's program puts into prompts."""

    tools: str = ""
    """The instructions about tools, with a place for `{tool_schemas}`; empty if the model has no instructions."""
    efforts: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Prefixes of the prompt, by reasoning effort."""

    @classmethod
    def from_folder(cls, folder: Path) -> ModelTexts:
        """Read the texts from the program in a model's folder; empty if the folder has no program."""
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
        keeps_all = self._version == "v4" and bool(tools)
        places = self._places(messages, thinks=thinks, keeps_all=keeps_all, opens=opens)
        for index, (message, place) in enumerate(zip(messages, places, strict=True)):
            parts.append(self._turn(message, place))
            if message["role"] == "system":
                if tools and index == 0:
                    parts.append("\n\n" + self._tools(tools))
                if place.following == "assistant" or place.opens_answer:
                    parts.append(_ASSISTANT + place.mark)
        return "".join(parts)

    def _places(
        self, messages: Conversation, *, thinks: bool, keeps_all: bool, opens: bool
    ) -> Iterator[_Place]:
        """Yield where each message stands. Thinking before the last user turn is left out, unless all is kept."""
        # In V4, results are part of the user turn.
        asking = ("user", "tool") if self._version == "v4" else ("user",)
        roles = [message["role"] for message in messages]
        last_user = max((i for i, role in enumerate(roles) if role in asking), default=-1)
        for index in range(len(roles)):
            yield _Place(
                before=roles[index - 1] if index else None,
                following=roles[index + 1] if index + 1 < len(roles) else None,
                opens=opens,
                mark=_THINK if thinks and (keeps_all or index >= last_user) else _SAY,
                keeps_thought=thinks and (keeps_all or index > last_user),
            )

    def _turn(self, message: Mapping[str, Any], place: _Place) -> str:
        """Return one message, with the beginning of the assistant turn if that follows a user's."""
        text = message.get("content") or ""
        match message["role"]:
            case "system":
                return text
            case "user":
                joined = self._version == "v4" and place.before in ("tool", "user")
                opening = self._version == "v32" or place.following not in ("tool", "user")
                return ("\n\n" if joined else _USER) + text + (place.opening if opening else "")
            case "tool":
                return self._result(text, place)
            case "assistant":
                end = (
                    _EOS if place.following is not None or not place.opens else _EOS + _ASSISTANT + place.mark
                )
                return self._assistant_turn(message, place.keeps_thought) + end
            case role:
                raise TemplateError(f"This model's prompts have no messages of role {role!r}.")

    def _tools(self, tools: Sequence[Mapping[str, Any]]) -> str:
        if not self._texts.tools:
            raise TemplateError(
                "This model folder has no encoding/encoding_*.py, so its instructions about tools are not known; "
                "it cannot be used with tools."
            )
        schemas = "\n".join(dumps(tool["function"]) for tool in tools)
        return self._texts.tools.replace("{tool_schemas}", schemas)

    def _assistant_turn(self, message: Mapping[str, Any], thinks: bool) -> str:
        thought = (message.get("reasoning_content") or "") + _SAY if thinks else ""
        calls = [
            WrittenCall(call["function"]["name"], _json(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        written = "\n\n" + render_calls(calls, self._calls) if calls else ""
        return thought + (message.get("content") or "") + written

    def _result(self, text: str, place: _Place) -> str:
        if self._version == "v4":
            head = "\n\n" if place.before in ("tool", "user") else _USER
            tail = "" if place.following in ("tool", "user") else place.opening
            return f"{head}<tool_result>{text}</tool_result>{tail}"
        head = "" if place.before == "tool" else "\n\n<function_results>"
        tail = ""
        if place.following != "tool":
            tail = "\n</function_results>" + (f"\n\n{place.mark}" if place.opening else "")
        return f"{head}\n<result>{text}</result>{tail}"


class _Place(NamedTuple):
    """Where a message stands in a conversation."""

    before: str | None
    """The role of the message before it."""
    following: str | None
    opens: bool
    """Whether the prompt ends with the beginning of an answer."""
    mark: str
    """What the assistant turn after this message begins with."""
    keeps_thought: bool
    """Whether the thinking of this message stays in the prompt."""

    @property
    def opens_answer(self) -> bool:
        """Whether the answer begins after this message."""
        return self.following is None and self.opens

    @property
    def opening(self) -> str:
        """The beginning of the turn after this message, if there is one."""
        return _ASSISTANT + self.mark if self.following is not None or self.opens else ""


def _json(arguments: Any) -> str:
    """Return arguments for the tags, which can only hold an object."""
    if isinstance(arguments, str):
        raise TemplateError("The arguments of an earlier call are not a JSON object.")
    return dumps(arguments)
