"""Build what templates get from messages and tools, and change texts in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from plumbline.answer.dialects.streams.json_stream import readable_object
from plumbline.answer.text.templates.content_format import ContentFormat
from plumbline.answer.text.templates.template import TemplateError
from plumbline.answer.text.templates.values import Arguments, NoContent
from plumbline.answer.turn import Message, Part, Tool
from plumbline.base.exact_number import dumps, exact_number

__all__ = [
    "guarded",
    "mapped",
    "strings",
    "template_message",
    "template_tool",
    "with_descriptions",
    "without_null",
]

_MOST_OPENED = 100
"""Objects and lists of a value that is not too deep to be written, however they are nested."""


def guarded(
    message: Mapping[str, Any], in_content: Callable[[str], str], elsewhere: Callable[[str], str]
) -> dict[str, Any]:
    """Return the message with its texts protected; the role cannot contain text of the client."""
    return {
        name: value if name == "role" else mapped(value, in_content if name == "content" else elsewhere)
        for name, value in message.items()
    }


def _content(message: Message, content_format: ContentFormat) -> str | NoContent | list[dict[str, str]]:
    """Return the content in the format that the template expects, a string or parts.

    Raises:
        TemplateError: the message has files, and the template takes strings.
    """
    text = message.content if message.content is not None else ""
    if message.parts is not None and not all(isinstance(part, str) for part in message.parts):
        if content_format == "string":
            raise TemplateError("The model's chat template takes text only: it has no place for files.")
        return [_part(part) for part in message.parts]
    if content_format == "string" or (content_format == "either" and message.parts is None):
        return NoContent() if message.content is None else text
    return [_part(part) for part in ((text,) if message.parts is None else message.parts)]


def _part(part: Part) -> dict[str, str]:
    """Return a part as transformers' templates expect it; for a file they write its placeholder."""
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": part.modality}


def without_null(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with an empty string for null content."""
    return {**message, "content": ""} if isinstance(message["content"], NoContent) else message


def template_message(message: Message, content_format: ContentFormat) -> dict[str, Any]:
    """Return a message as templates expect it, in the format of the chat completions API."""
    fields: dict[str, Any] = {
        # Templates know `system`; `developer` is OpenAI's newer name for the same role.
        "role": "system" if message.role == "developer" else message.role,
        "content": _content(message, content_format),
    }
    if message.reasoning is not None:
        # Templates use one of these names: Solar Open the last, gpt-oss `thinking`, most others the first.
        fields["reasoning_content"] = fields["thinking"] = fields["reasoning"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        fields["name"] = message.name
    if message.phase is not None:
        fields["phase"] = message.phase
    return fields


def _arguments(text: str) -> Arguments | str:
    """Return the arguments for templates, usable as an object and as its JSON; text that is no object stays text.

    Of an object that breaks off, they have what can be read (CHAT-24): a client sends back what it got of an answer
    that a limit cut, and templates that loop over the members take no text.
    """
    if not text.strip():
        return Arguments({}, "{}")
    try:
        value = json.loads(text, parse_float=exact_number)
    except (ValueError, RecursionError):
        read = readable_object(text)
        return _arguments(read) if read and read != text else text
    if "\\u" in text or text.count("[") + text.count("{") > _MOST_OPENED:
        try:
            encoded = dumps(value)
        except RecursionError:
            return text
        try:
            encoded.encode()
        except UnicodeEncodeError:  # Half a surrogate pair can be escaped in JSON, but not encoded as UTF-8.
            whole = encoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            value = json.loads(whole, parse_float=exact_number)
    return (
        Arguments(value, text) if isinstance(value, dict) else Arguments({}, "{}") if value is None else text
    )


def template_tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = (
        dict(tool.parameters) if tool.parameters else {"type": "object", "properties": {}}
    )
    return {"type": "function", "function": function}


def with_descriptions(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool with an empty description where it or one of its parameters has none."""
    function = tool["function"]
    parameters = function["parameters"]
    properties = parameters.get("properties")
    if isinstance(properties, Mapping):
        described = {
            name: {"description": "", **schema} if isinstance(schema, Mapping) else schema
            for name, schema in properties.items()
        }
        parameters = {**parameters, "properties": described}
    return {**tool, "function": {"description": "", **function, "parameters": parameters}}


def strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            if isinstance(value, Arguments):
                yield str(value)
            for key, item in value.items():
                yield str(key)
                yield from strings(item)
        case list() | tuple():
            for item in value:
                yield from strings(item)


_OUR_KEYS = frozenset(
    {"type", "function", "name", "arguments", "description", "parameters", "id", "text", "title"}
)
"""Keys that templates read."""


def _key(key: Any, change: Callable[[str], str]) -> str:
    return key if key in _OUR_KEYS else change(str(key))


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case Mapping():
            changed = {_key(key, change): mapped(item, change) for key, item in value.items()}
            return Arguments(changed, change(str(value))) if isinstance(value, Arguments) else changed
        case list() | tuple():
            return [mapped(item, change) for item in value]
        case _:
            return value
