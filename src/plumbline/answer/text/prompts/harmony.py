"""Encode prompts in OpenAI's harmony format (gpt-oss), for model folders without a chat template.

    <|start|>system<|message|>…<|end|>                  identity, date, reasoning effort, channels
    <|start|>developer<|message|>…<|end|>               instructions, and tools as TypeScript types
    <|start|>user<|message|>…<|end|>
    <|start|>assistant<|channel|>final<|message|>…<|end|>
    <|start|>functions.f to=assistant<|channel|>commentary<|message|>…<|end|>

Thinking of turns before the last final answer is left out. Source: OpenAI's harmony format documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from plumbline.answer.text.prompts.encoders import Conversation, PromptEncoder
from plumbline.answer.text.templates.template import TemplateError
from plumbline.base.exact_number import dumps

__all__ = ["HarmonyEncoder", "typescript"]

_EFFORTS = {
    "minimal": "low",
    "none": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
}
"""The format has three efforts; thinking cannot be turned off."""
_MAX_DEPTH = 64


class HarmonyEncoder(PromptEncoder):
    """Encode conversations for gpt-oss. Variables: `reasoning_effort`, `model_identity`, `current_date`."""

    variables = frozenset({"current_date", "model_identity", "reasoning_effort"})

    def encode(
        self,
        messages: Conversation,
        tools: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
        *,
        opens: bool,
    ) -> str:
        """Return the prompt of a conversation; see `PromptEncoder.encode`."""
        system_messages = [message for message in messages if message["role"] == "system"]
        conversation = [message for message in messages if message["role"] != "system"]
        parts = [_message("system", _system(kwargs, bool(tools)))]
        instructions = "\n\n".join(message["content"] for message in system_messages if message["content"])
        developer = [f"# Instructions\n\n{instructions}"] if instructions else []
        if tools:
            developer.append(_tools(tools))
        if developer:
            parts.append(_message("developer", "\n\n".join(developer)))
        last_final = max(
            (i for i, m in enumerate(conversation) if m["role"] == "assistant" and not m.get("tool_calls")),
            default=-1,
        )
        names: dict[str, str] = {}
        for index, message in enumerate(conversation):
            parts += _harmony_messages(message, names, thinks=index > last_final)
        if opens:
            parts.append("<|start|>assistant")
        return "".join(parts)


def _message(author: str, text: str, channel: str = "", end: str = "<|end|>") -> str:
    header = f"<|channel|>{channel}" if channel else ""
    return f"<|start|>{author}{header}<|message|>{text}{end}"


def _system(kwargs: Mapping[str, Any], has_tools: bool) -> str:
    identity = kwargs.get("model_identity") or "You are ChatGPT, a large language model trained by OpenAI."
    date = kwargs.get("current_date") or datetime.now().strftime("%Y-%m-%d")
    effort = _EFFORTS.get(str(kwargs.get("reasoning_effort") or "medium"))
    if effort is None:
        raise TemplateError(
            f"reasoning_effort must be low, medium or high, got {kwargs['reasoning_effort']!r}"
        )
    lines = [
        f"{identity}\nKnowledge cutoff: 2024-06\nCurrent date: {date}",
        f"Reasoning: {effort}",
        "# Valid channels: analysis, commentary, final. Channel must be included for every message.",
    ]
    if has_tools:
        lines[-1] += "\nCalls to these tools must go to the commentary channel: 'functions'."
    return "\n\n".join(lines)


def _harmony_messages(message: Mapping[str, Any], names: dict[str, str], *, thinks: bool) -> list[str]:
    """Return the harmony messages of one API message; `names` collects the tools of the calls by id."""
    text = message.get("content") or ""
    match message["role"]:
        case "user":
            return [_message("user", text)]
        case "tool":
            name = names.get(str(message.get("tool_call_id")), "unknown")
            return [_message(f"functions.{name} to=assistant", text, "commentary")]
        case "assistant":
            calls = message.get("tool_calls") or ()
            parts: list[str] = []
            reasoning = message.get("reasoning_content")
            if reasoning and thinks:
                parts.append(_message("assistant", reasoning, "analysis"))
            if text or not calls:
                spoken = calls or message.get("phase") == "commentary"
                parts.append(_message("assistant", text, "commentary" if spoken else "final"))
            for call in calls:
                function = call["function"]
                names[str(call.get("id"))] = function["name"]
                arguments = function["arguments"]
                body = arguments if isinstance(arguments, str) else dumps(arguments)
                channel = f"commentary to=functions.{function['name']} <|constrain|>json"
                parts.append(_message("assistant", body, channel, "<|call|>"))
            return parts
        case role:
            raise TemplateError(f"The harmony format has no messages of role {role!r}.")


def _tools(tools: Sequence[Mapping[str, Any]]) -> str:
    lines = ["# Tools", "", "## functions", "", "namespace functions {", ""]
    for tool in tools:
        function = tool["function"]
        lines += _comment(function.get("description"))
        parameters = function.get("parameters") or {}
        if parameters.get("properties"):
            lines.append(f"type {function['name']} = (_: {typescript(parameters, parameters)}) => any;")
        else:
            lines.append(f"type {function['name']} = () => any;")
        lines.append("")
    return "\n".join([*lines, "} // namespace functions"])


def _comment(text: Any) -> list[str]:
    return [f"// {line}".rstrip() for line in str(text).splitlines()] if text else []


def typescript(schema: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """Return a JSON Schema as a TypeScript type, in the layout that the models were trained on.

    Raises:
        TemplateError: the schema is nested too deeply, or refers to itself.
    """
    if depth > _MAX_DEPTH:
        raise TemplateError("The parameters of a tool are nested too deeply or refer to themselves.")
    if not isinstance(schema, Mapping):
        return "any"
    options = _options(schema, root)
    if options is not None:
        return " | ".join(dict.fromkeys(typescript(one, root, depth + 1) for one in options))
    if isinstance(schema.get("enum"), Sequence):
        return " | ".join(dumps(value) for value in schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        return " | ".join(typescript({**schema, "type": one}, root, depth + 1) for one in kind)
    match kind:
        case "object":
            return _object(schema, root, depth)
        case "array":
            item = typescript(schema.get("items"), root, depth + 1)
            return f"({item})[]" if " | " in item else f"{item}[]"
        case "integer" | "number":
            return "number"
        case "string" | "boolean" | "null":
            return str(kind)
        case _:
            return "any"


def _options(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Sequence[Any] | None:
    """Return the schemas that a schema consists of: what it refers to, or its alternatives. None if it is plain."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        found: Any = root
        for part in reference[2:].split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        return [found]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), Sequence):
            options: Sequence[Any] = schema[key]
            return options
    return None


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return "object"
    required = schema.get("required") or ()
    lines = ["{"]
    for key, value in properties.items():
        if isinstance(value, Mapping):
            lines += _comment(value.get("description"))
        line = f"{key}{'' if key in required else '?'}: {typescript(value, root, depth + 1)},"
        if isinstance(value, Mapping) and "default" in value:
            default = value["default"]
            line += f" // default: {default if isinstance(default, str) else dumps(default)}"
        lines.append(line)
    return "\n".join([*lines, "}"])
