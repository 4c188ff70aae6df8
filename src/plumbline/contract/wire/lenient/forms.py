"""The forms of requests that `--lenient` accepts: one function for each, named after who accepts or sends
it.

A form takes the JSON of a body and returns it in the words of the contract. It returns the same object if the body does
not have the form. A form changes only what decoding or a reader would refuse, so every valid body keeps its meaning;
the one exception is `transformers_generation_config`, which is an unknown field of the contract.

Forms are pure, need one pass over the lists that they read, and never look inside texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from plumbline.contract.wire.decode import encode

from .generation_config import generation_config

__all__ = ["FORMS", "MAX_STOPS", "READ_LATER", "Form", "Json"]

Json: TypeAlias = dict[str, Any]
Form: TypeAlias = Callable[[Json], Json]

MAX_STOPS = 64
"""Stop strings of a request that uses `vllm_many_stops`; the contract has four."""

READ_LATER = (b'"generation_config"', b'"stop"', b'"echo"', b'"reasoning', b"\\u00")
"""What a body contains that has a form and decodes all the same: members that a reader refuses or that are unknown, as
they are or with escapes."""

_PARTS = frozenset({"input_text", "input_image", "input_file"})
_AUDIO = {
    "audio/wav": "wav",
    "audio/wave": "wav",
    "audio/x-wav": "wav",
    "audio/vnd.wave": "wav",
    "audio/mp3": "mp3",
    "audio/mpeg": "mp3",
}
"""Formats of `input_audio`, by media type."""


def gateway_flat_input(body: Json) -> Json:
    """Make one user message of an input that is a list of content parts."""
    parts = body.get("input")
    if not isinstance(parts, list) or not parts or not all(_has_type(part, _PARTS) for part in parts):
        return body
    return {**body, "input": [{"type": "message", "role": "user", "content": parts}]}


def transformers_nested_tools(body: Json) -> Json:
    """Flatten function tools, and the choice of one, that Responses requests nest in `function` as in chat."""
    changed = _with_items(body, "tools", _flat_tool)
    choice = changed.get("tool_choice")
    flat = _flat_tool(choice)
    return changed if flat is choice else {**changed, "tool_choice": flat}


def sglang_null_content(body: Json) -> Json:
    """Give user messages with a null, and assistant messages with reasoning only, an empty text."""
    return _with_items(body, "messages", _with_text)


def sglang_object_arguments(body: Json) -> Json:
    """Write the arguments of earlier calls as JSON text, in chat messages and in Responses items.

    Clients of tools without parameters send null, or leave them out.
    """
    body = _with_items(body, "messages", _with_call_texts)
    for name in ("input", "items"):
        body = _with_items(body, name, _with_arguments_text)
    return body


def gateway_bare_reasoning(body: Json) -> Json:
    """Give reasoning items of earlier turns that have no summary an empty one."""
    for name in ("input", "items"):
        body = _with_items(body, name, _with_summary)
    return body


def sglang_structural_tag(body: Json) -> Json:
    """Move a `response_format` of the type `structural_tag` to the field `structural_tag`."""
    described = body.get("response_format")
    if not _has_type(described, {"structural_tag"}) or body.get("structural_tag") is not None:
        return body
    return {**_without(body, "response_format"), "structural_tag": _without(described, "type")}


def tabbyapi_empty_stops(body: Json) -> Json:
    """Drop empty stop strings; a list of nothing else is no `stop`."""
    stop = body.get("stop")
    if stop == "" or stop == []:
        return _without(body, "stop")
    if not isinstance(stop, list) or "" not in stop:
        return body
    kept = [text for text in stop if text != ""]
    return {**body, "stop": kept} if kept else _without(body, "stop")


def vllm_echo(body: Json) -> Json:
    """Drop an `echo` that has nothing to repeat, and ask for logprobs of the new text only where it has."""
    if body.get("echo") is not True:
        return body
    if body.get("response_prefix") is None and not _continues_assistant(body):
        return _without(body, "echo")
    if body.get("logprobs") is not True:
        return body
    # llama.cpp's name for logprobs does not promise entries for the repeated text.
    wanted = body.get("top_logprobs")
    return {**_without(body, "logprobs"), "n_probs": body.get("n_probs") or 1, "top_logprobs": wanted or 0}


def vllm_audio_url(body: Json) -> Json:
    """Turn parts `audio_url` with a data URL of WAV or MP3 into `input_audio`; other URLs stay."""
    return _with_items(body, "messages", _with_audio)


def vllm_null_members(body: Json) -> Json:
    """Drop members that are null where the contract has members that may be missing, but not null."""
    body = _with_items(body, "messages", _named_message)
    body = _with_items(body, "tools", lambda tool: _nullless(tool, "function", ("description", "parameters")))
    body = _nullless(body, "stream_options", ("include_usage", "include_obfuscation"))
    described = _nullless(body.get("response_format"), "json_schema", ("description", "schema"))
    if described is not body.get("response_format"):
        body = {**body, "response_format": described}
    changed: Json = _nullless(body, "text", ("format",))
    return changed


def _named_message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    if "name" in message and message["name"] is None:
        message = _without(message, "name")
    return _with_items(message, "content", lambda part: _nullless(part, "image_url", ("detail",)))


def _nullless(value: Any, name: str, members: tuple[str, ...]) -> Any:
    """Drop these members of a member where they are null; returns the same object if none is."""
    inner = value.get(name) if isinstance(value, dict) else None
    if not isinstance(inner, dict) or not any(key in inner and inner[key] is None for key in members):
        return value
    return {**value, name: {k: v for k, v in inner.items() if k not in members or v is not None}}


def _has_type(value: Any, types: Any) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    return isinstance(kind, str) and kind in types


def _without(body: Any, name: str) -> Json:
    return {key: value for key, value in body.items() if key != name}


def _with_items(body: Json, name: str, change: Callable[[Any], Any]) -> Json:
    """Change the items of a list member; returns the same object if no item changes."""
    items = body.get(name)
    if not isinstance(items, list):
        return body
    changed = [change(item) for item in items]
    if all(new is old for new, old in zip(changed, items, strict=True)):
        return body
    return {**body, name: changed}


def _flat_tool(tool: Any) -> Any:
    if not _has_type(tool, {"function"}) or "name" in tool or not isinstance(tool.get("function"), dict):
        return tool
    return {**_without(tool, "function"), **_without(tool["function"], "type")}


def _with_text(message: Any) -> Any:
    if not isinstance(message, dict) or message.get("content") is not None:
        return message
    match message.get("role"):
        case "user" if "content" in message:
            return {**message, "content": ""}
        case "assistant" if _only_reasons(message):
            return {**message, "content": ""}
        case _:
            return message


def _only_reasons(message: Json) -> bool:
    if (
        any(message.get(name) for name in ("tool_calls", "function_call"))
        or message.get("refusal") is not None
    ):
        return False
    return any(message.get(name) for name in ("reasoning", "reasoning_content"))


def _with_call_texts(message: Any) -> Any:
    is_assistant = isinstance(message, dict) and message.get("role") == "assistant"
    return _with_items(message, "tool_calls", _with_call_text) if is_assistant else message


def _with_call_text(call: Any) -> Any:
    function = call.get("function") if _has_type(call, {"function"}) else None
    text = _with_arguments(function)
    return call if text is function else {**call, "function": text}


def _with_arguments_text(item: Any) -> Any:
    return _with_arguments(item) if _has_type(item, {"function_call"}) else item


def _with_summary(item: Any) -> Any:
    bare = _has_type(item, {"reasoning"}) and item.get("summary") is None
    return {**item, "summary": []} if bare else item


def _with_arguments(function: Any) -> Any:
    arguments = function.get("arguments") if isinstance(function, dict) else ""
    if not isinstance(arguments, dict | None):
        return function
    return {**function, "arguments": encode(arguments or {}).decode()}


def _continues_assistant(body: Json) -> bool:
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return (
        body.get("continue_final_message") is True
        and isinstance(last, dict)
        and last.get("role") == "assistant"
    )


def _with_audio(message: Any) -> Any:
    return _with_items(message, "content", _input_audio) if isinstance(message, dict) else message


def _input_audio(part: Any) -> Any:
    described = part.get("audio_url") if _has_type(part, {"audio_url"}) else None
    url = described.get("url") if isinstance(described, dict) else None
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    media_type, *parameters = head.removeprefix("data:").lower().split(";")
    kind = _AUDIO.get(media_type)
    if not comma or not head.startswith("data:") or kind is None or parameters[-1:] != ["base64"]:
        return part
    return {
        **_without(part, "audio_url"),
        "type": "input_audio",
        "input_audio": {"data": data, "format": kind},
    }


_CONVERSATION = (sglang_null_content, sglang_object_arguments, vllm_audio_url, vllm_null_members)
_EARLIER_ITEMS = (gateway_bare_reasoning, sglang_object_arguments)
_ITEMS = (gateway_flat_input, *_EARLIER_ITEMS)

FORMS: Mapping[str, tuple[Form, ...]] = {
    "CreateChatCompletionRequest": (
        *_CONVERSATION,
        generation_config("max_completion_tokens", "max_tokens"),
        sglang_structural_tag,
        tabbyapi_empty_stops,
        vllm_echo,
    ),
    "CreateCompletionRequest": (
        vllm_null_members,
        generation_config("max_tokens"),
        sglang_structural_tag,
        tabbyapi_empty_stops,
    ),
    "CreateResponse": (
        *_ITEMS,
        vllm_null_members,
        transformers_nested_tools,
        generation_config("max_output_tokens", has_choices=False),
        tabbyapi_empty_stops,
    ),
    "TokenCountsBody": (*_ITEMS, transformers_nested_tools),
    "CompactResponseMethodPublicBody": _ITEMS,
    "CreateConversationBody": _EARLIER_ITEMS,
    "CreateConversationItemsBody": _EARLIER_ITEMS,
    "TokenizeRequest": _CONVERSATION,
}
"""The forms of each request, by the name of its type, in the order in which they are applied."""
