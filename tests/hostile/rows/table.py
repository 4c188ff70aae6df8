"""A row of the table of hostile requests, small valid requests to start from, and what rows are made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
INPUT_TOKENS = "/v1/responses/input_tokens"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
COMPLETION = "/v1/chat/completions/{completion_id}"
CONVERSATIONS = "/v1/conversations"
CONVERSATION = "/v1/conversations/{conversation_id}"
CONVERSATION_ITEMS = "/v1/conversations/{conversation_id}/items"
COMPACT = "/v1/responses/compact"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"
LOAD_ADAPTER = "/v1/load_lora_adapter"
UNLOAD_ADAPTER = "/v1/unload_lora_adapter"
LOAD_MODEL = "/models/load"
UNLOAD_MODEL = "/models/unload"
FOLLOW_LOAD = "/v1/model/load"

MB = 1_000_000
USER = {"role": "user", "content": "hi"}


@dataclass(frozen=True)
class Row:
    """One hostile request. A body that is a function is made when the row runs."""

    name: str
    path: str
    body: Callable[[], Any] | dict[str, Any] | bytes | None
    fields: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"

    def data(self) -> bytes:
        """Return the bytes of the body, within the largest one that the server takes unless the row wants more."""
        body = self.body() if callable(self.body) else self.body
        return body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()


def base(path: str) -> dict[str, Any]:
    """Return a small valid request."""
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"model": "pocket", "messages": [USER], "max_completion_tokens": 2},
        MESSAGES: {"model": "pocket", "messages": [USER], "max_tokens": 2},
        COUNT_TOKENS: {"model": "pocket", "messages": [USER]},
        COMPLETIONS: {"model": "pocket", "prompt": "hi", "max_tokens": 2},
        RESPONSES: {"model": "pocket", "input": "hi", "max_output_tokens": 16},
        INPUT_TOKENS: {"model": "pocket", "input": "hi"},
        COMPACT: {"model": "pocket", "input": "hi"},
        COMPLETION: {"metadata": {}},
        CONVERSATIONS: {},
        CONVERSATION: {"metadata": {}},
        CONVERSATION_ITEMS: {"items": [{"role": "user", "content": "hi"}]},
        TOKENIZE: {"prompt": "hi"},
        DETOKENIZE: {"tokens": [1]},
        LOAD_ADAPTER: {"lora_name": "a", "lora_path": "a"},
        UNLOAD_ADAPTER: {"lora_name": "a"},
        LOAD_MODEL: {"model": "pocket"},
        UNLOAD_MODEL: {"model": "other"},  # The model is needed.
        FOLLOW_LOAD: {"name": "pocket"},
    }
    return bodies[path]


ROWS: list[Row] = []


def add(name: str, path: str, make: Callable[..., dict[str, Any]], *fields: str) -> None:
    """Add a row of the small valid request with some members changed."""
    ROWS.append(Row(name, path, lambda: {**base(path), **make()}, fields))


def raw(name: str, path: str, body: Callable[..., Any] | bytes | None, **options: Any) -> None:
    """Add a row with a body, headers or method of its own."""
    ROWS.append(Row(name, path, body, **options))


def nested(depth: int, leaf: Any = None) -> Any:
    """Return objects in objects."""
    value = leaf
    for _ in range(depth):
        value = {"a": value}
    return value


def wide(count: int) -> dict[str, Any]:
    """Return a schema with many properties."""
    return {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(count)}}


def deep(depth: int) -> Any:
    """Return a schema of objects in objects."""
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def doubling(word: str) -> Any:
    """Return forty definitions, each of which uses the next one twice."""
    definitions = {f"d{n}": {word: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    return {"$defs": {**definitions, "d40": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def function(index: int = 0, **more: Any) -> dict[str, Any]:
    """Return a tool of chat."""
    return {"type": "function", "function": {"name": f"f{index}", **more}}


def user(content: Any) -> dict[str, Any]:
    """Return a conversation of one message."""
    return {"messages": [{"role": "user", "content": content}]}


def history(**message: Any) -> dict[str, Any]:
    """Return a conversation with an earlier answer."""
    return {"messages": [USER, {"role": "assistant", "content": "a", **message}, USER]}


def calls(count: int, arguments: Any = "{}") -> dict[str, Any]:
    """Return a conversation with one message of many calls and their results."""
    found = [
        {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": arguments}}
        for n in range(count)
    ]
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": "r"} for n in range(count)]
    return {"messages": [USER, {"role": "assistant", "tool_calls": found}, *results]}


TEXT = "hello world. "
LONG = {
    "words": lambda: TEXT * (9 * MB // len(TEXT)),
    "one word": lambda: "a" * (9 * MB),
    "spaces": lambda: " " * (9 * MB),
    "control tokens": lambda: "<|im_start|>" * (9 * MB // 12),
    "beginnings of markers": lambda: "<|im_" * (9 * MB // 5),
    "escapes": lambda: '"\\' * (2 * MB),
    "emoji": lambda: "\U0001f600" * 700_000,
}
TEXT_FIELDS = (
    "ChatCompletionRequest*Message.content",
    "*.text",
    "CreateCompletionRequest.prompt",
    "InputParam",
    "*.input",
    "TokenizeRequest.prompt",
)
PART = {"type": "text", "text": "a"}
INPUT_PART = {"type": "input_text", "text": "a"}
