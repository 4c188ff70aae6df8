"""The table of hostile requests: every large field at its maximum and beyond, and everything beside the fields.

`FIELDS` of a row are the members of the contract's schemas that it fills, as patterns such as `*.tools`; the test of
the contract demands a row for every member that can be large. Scalars get their rows from the contract itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "DETOKENIZE",
    "FORM_ROWS",
    "INPUT_TOKENS",
    "LOAD_ADAPTER",
    "RESPONSES",
    "ROWS",
    "TOKENIZE",
    "UNLOAD_ADAPTER",
    "UNLOAD_MODEL",
    "Row",
    "base",
]

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
    return {
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
    }[path]


ROWS: list[Row] = []


def add(name: str, path: str, make: Callable[[], dict[str, Any]], *fields: str) -> None:
    """Add a row of the small valid request with some members changed."""
    ROWS.append(Row(name, path, lambda: {**base(path), **make()}, fields))


def raw(name: str, path: str, body: Callable[[], Any] | bytes | None, **options: Any) -> None:
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
for kind, text in LONG.items():
    add(f"chat: {kind}", CHAT, lambda text=text: user(text()), *TEXT_FIELDS)
    add(
        f"tokenize: {kind}",
        TOKENIZE,
        lambda text=text: {"prompt": text(), "return_token_strs": True},
        *TEXT_FIELDS,
    )
add(
    "conversation: large items",
    CONVERSATIONS,
    lambda: {"items": [{"role": "user", "content": LONG["words"]()[:450_000]}] * 20},
    "CreateConversationBody.items",
)
add(
    "conversation items: large items",
    CONVERSATION_ITEMS,
    lambda: {"items": [{"role": "user", "content": LONG["words"]()[:450_000]}] * 20},
    "CreateConversationItemsBody.items",
)
add("an unknown response is continued", RESPONSES, lambda: {"previous_response_id": "x" * 1_000})
add("an unknown conversation is continued", RESPONSES, lambda: {"conversation": "x" * 1_000})
add(
    "many references to unknown items",
    RESPONSES,
    lambda: {"input": [{"type": "item_reference", "id": f"msg_{n}"} for n in range(8_000)]},
)
add("completion: words", COMPLETIONS, lambda: {"prompt": LONG["words"]()}, *TEXT_FIELDS)
add("responses: words", RESPONSES, lambda: {"input": LONG["words"]()}, *TEXT_FIELDS)
add("input tokens: words", INPUT_TOKENS, lambda: {"input": LONG["words"]()}, *TEXT_FIELDS)
add("compact: words", COMPACT, lambda: {"input": LONG["words"]()}, "CompactResponse*.instructions")

# Counts of messages, parts, calls and tools

for count in (16_384, 50_000):
    add(f"{count} messages", CHAT, lambda count=count: {"messages": [USER] * count}, "*.messages")
    add(
        f"tokenize: {count} messages",
        TOKENIZE,
        lambda count=count: {"prompt": None, "messages": [USER] * count},
    )
    add(
        f"{count} items",
        RESPONSES,
        lambda count=count: {"input": [{"role": "user", "content": "hi"}] * count},
        "*.input",
    )
PART = {"type": "text", "text": "a"}
INPUT_PART = {"type": "input_text", "text": "a"}
for count in (8_192, 95_000, 200_000):
    add(f"{count} parts", CHAT, lambda count=count: user([PART] * count), "*Message.content")
    add(
        f"responses: {count} parts",
        RESPONSES,
        lambda count=count: {"input": [{"role": "user", "content": [INPUT_PART] * count}]},
        "*Message.content",
    )
add("parts of many messages", CHAT, lambda: {"messages": [{"role": "user", "content": [PART] * 40}] * 2_300})
for count in (1_024, 30_000, 50_000):
    add(f"{count} calls", CHAT, lambda count=count: calls(count), "*.tool_calls")
add("calls of many messages", CHAT, lambda: {"messages": calls(1)["messages"] * 8_000})
add(
    "pairs of calls and outputs",
    RESPONSES,
    lambda: {
        "input": [
            item
            for n in range(8_000)
            for item in (
                {"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": f"c{n}", "output": "r"},
            )
        ]
    },
)
add(
    "calls before their outputs",
    RESPONSES,
    lambda: {
        "input": [
            *(
                {"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"}
                for n in range(8_000)
            ),
            *({"type": "function_call_output", "call_id": f"c{n}", "output": "r"} for n in range(8_000)),
        ]
    },
)
add("truncation of a long conversation", RESPONSES, lambda: {
    "truncation": "auto",
    "input": [{"role": "user", "content": "hello world " * 4}] * 16_000,
})  # fmt: skip
for count in (1_024, 20_000):
    add(f"{count} tools", CHAT, lambda count=count: {"tools": [function(n) for n in range(count)]}, "*.tools")
    add(
        f"responses: {count} tools",
        RESPONSES,
        lambda count=count: {
            "tools": [{"type": "function", "name": f"f{n}", "parameters": {}} for n in range(count)]
        },
        "*.tools",
    )
add("descriptions of many tools", CHAT, lambda: {
    "tools": [function(n, description=TEXT * 700) for n in range(1_000)],
})  # fmt: skip
for size in (MB, 5 * MB):
    add(
        f"a description of {size}",
        CHAT,
        lambda size=size: {"tools": [function(description="a " * (size // 2))]},
        "*.description",
    )
add("parameters: wide", CHAT, lambda: {"tools": [function(parameters=wide(4_000))]}, "*.parameters")
add("parameters: very wide", CHAT, lambda: {"tools": [function(parameters=wide(40_000))]}, "*.parameters")
add("parameters: deep", CHAT, lambda: {"tools": [function(parameters=deep(150))]}, "*.parameters")
add("parameters: deeper", CHAT, lambda: {"tools": [function(parameters=deep(400), strict=True)]})
add("parameters: doubling", CHAT, lambda: {"tools": [function(parameters=doubling("allOf"))]})
add(
    "parameters: forced",
    CHAT,
    lambda: {"tools": [function(parameters=wide(3_000))], "tool_choice": "required"},
)
add(
    "deprecated functions",
    CHAT,
    lambda: {"functions": [{"name": f"f{n}"} for n in range(128)]},
    "*.functions",
)
add("output schema", RESPONSES, lambda: {
    "tools": [{"type": "function", "name": "f", "output_schema": wide(4_000), "allowed_callers": ["direct"] * 64}],
}, "*.output_schema", "*.allowed_callers")  # fmt: skip
add(
    "hosted tools",
    RESPONSES,
    lambda: {"tools": [{"type": "web_search", "filters": wide(20_000)}]},
    "HostedTool.*",
)
add("MCP servers", RESPONSES, lambda: {"tools": [{
    "type": "mcp", "server_label": "l" * 256, "server_url": "https://mcp.example/" + "p" * 16_000,
    "server_description": "d" * 1_000_000, "authorization": "a" * 65_536,
    "headers": {f"x-{n}": "v" * 60_000 for n in range(64)}, "allowed_tools": ["n" * 1_000] * 1_024,
    "allowed_callers": ["direct"] * 64,
    "require_approval": {"always": {"tool_names": ["n" * 1_000] * 1_024}, "never": {"tool_names": ["n"] * 1_024}},
}] + [{"type": "mcp", "server_label": f"s{n}", "server_url": "https://mcp.example"} for n in range(900)]},
   "MCPTool.*", "MCPToolFilter.*")  # fmt: skip
add("tools of MCP servers", RESPONSES, lambda: {"tools": [
    {"type": "mcp", "server_label": f"s{n}", "server_url": "https://mcp.example"} for n in range(4)
], "input": [{
    "type": "mcp_list_tools", "id": f"l{n}", "server_label": f"s{n}", "error": "e" * 1_000_000 if n == 0 else None,
    "tools": [{
        "name": f"n{m}", "description": "d" * 1_000, "input_schema": wide(4_000) if m == n == 0 else {},
        "annotations": wide(4_000) if m == n == 0 else None,
    } for m in range(1_024)],
} for n in range(4)]}, "MCPListTools.*", "MCPListToolsTool.*")  # fmt: skip
add("calls of MCP servers", RESPONSES, lambda: {"input": [{
    "type": "mcp_call", "id": f"c{n}", "server_label": "s", "name": "n", "arguments": "{}", "output": "o" * 100,
    "error": {"type": "mcp_protocol_error", "code": 2**53, "message": "m"}, "status": "failed",
} for n in range(16_000)] + [{
    "type": "mcp_call", "id": "i" * 16_384, "server_label": "l" * 256, "name": "n" * 1_024,
    "arguments": "a" * 1_000_000, "output": "o" * 2_000_000, "approval_request_id": "r" * 16_384,
    "error": {"type": kind, "code": 2**53, "message": "m" * 1_000_000},
} for kind in ("mcp_protocol_error", "http_error")]},
   "MCPToolCall.*", "MCPProtocolError.*", "MCPToolExecutionError.*", "HTTPError.*")  # fmt: skip
add("approvals of MCP calls", RESPONSES, lambda: {"input": [item for n in range(8_000) for item in (
    {"type": "mcp_approval_request", "id": f"r{n}", "server_label": "s", "name": "n", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": f"r{n}", "approve": False, "reason": "r" * 100},
)] + [
    {"type": "mcp_approval_request", "id": "r" * 16_384, "server_label": "l" * 256, "name": "n" * 1_024,
     "arguments": "a" * 1_000_000},
    {"type": "mcp_approval_response", "id": "i" * 16_384, "approval_request_id": "r" * 16_384, "approve": False,
     "reason": "r" * 1_000_000},
]}, "MCPApprovalRequest.*", "MCPApprovalResponse.*")  # fmt: skip
add("choice of an MCP server", RESPONSES, lambda: {
    "tools": [{"type": "mcp", "server_label": "l" * 256, "server_url": "https://mcp.example"}],
    "tool_choice": {"type": "mcp", "server_label": "l" * 256, "name": "n" * 1_024},
}, "ToolChoiceMCP.*")  # fmt: skip
add("hosted items", RESPONSES, lambda: {
    "input": [{"type": "web_search_call", "id": "w", "action": {"a": 1}}] * 16_000,
}, "HostedItem.*")  # fmt: skip
add("shell calls", RESPONSES, lambda: {
    "input": [{
        "type": "shell_call", "call_id": f"c{n}", "caller": {"type": "direct"}, "environment": {
            "type": "local", "skills": [{"name": "s", "description": "d" * 1_000, "path": "/s"}] * 200,
        },
        "action": {"commands": ["true"] * 8_192, "timeout_ms": 2**53, "max_output_length": 2**53},
    } for n in range(16)] + [{
        "type": "shell_call", "call_id": "c", "action": {"commands": ["c" * 1_000_000]},
        "environment": {"type": "container_reference", "container_id": "c" * 16_384},
    }],
}, "FunctionShellCallItemParam.*", "FunctionShellActionParam.*", "LocalEnvironmentParam.*", "LocalSkillParam.*",
   "ContainerReferenceParam.*")  # fmt: skip
add("shell outputs", RESPONSES, lambda: {
    "input": [{"type": "shell_call_output", "call_id": "c", "output": [
        {"stdout": "o" * 100, "stderr": "e" * 100, "outcome": {"type": "exit", "exit_code": 2**53}},
    ] * 8_192}],
}, "FunctionShellCallOutput*")  # fmt: skip
add("patches", RESPONSES, lambda: {
    "input": [{"type": "apply_patch_call", "call_id": "c", "status": "completed", "operation": {
        "type": "update_file", "path": "p" * 16_384, "diff": "+\n" * 4_000_000,
    }}],
}, "ApplyPatch*FileOperationParam.*", "ApplyPatchToolCallItemParam.*")  # fmt: skip
add("output of a patch", RESPONSES, lambda: {
    "input": [{"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "o" * 8_000_000}],
}, "ApplyPatchToolCallOutputItemParam.*")  # fmt: skip
add("local shell", RESPONSES, lambda: {
    "input": [{"type": "local_shell_call", "call_id": "c", "action": {
        "type": "exec", "command": ["c" * 500] * 8_192, "env": {f"V{n}": "v" * 500 for n in range(4_096)},
        "working_directory": "/" * 16_384, "user": "u" * 16_384, "timeout_ms": 2**53,
    }}, {"type": "local_shell_call_output", "id": "c", "output": "o" * 2_000_000}],
}, "LocalShell*Param.*")  # fmt: skip
add("deferred functions", RESPONSES, lambda: {
    "tools": [{"type": "tool_search", "execution": "client"}, *(
        {"type": "function", "name": f"f{n}", "defer_loading": True, "parameters": wide(50)} for n in range(1_023)
    )],
})  # fmt: skip
add("loaded functions", RESPONSES, lambda: {
    "tools": [{"type": "tool_search", "execution": "client"}],
    "input": [
        {"type": "message", "role": "user", "content": "hi"},
        *({"type": "tool_search_call", "call_id": f"s{n}", "arguments": wide(1_000)} for n in range(8)),
        *({"type": "tool_search_output", "call_id": f"s{n}", "tools": [
            {"type": "function", "name": f"f{n}_{m}", "parameters": {}} for m in range(1_024)
        ]} for n in range(8)),
    ],
}, "ToolSearch*ItemParam.*")  # fmt: skip
for name, syntax, definition in (
    ("regex", "regex", "(" * 100_000),
    ("nested quantifiers", "regex", "((a*)*)*b{1,1000}"),
    ("Lark", "lark", "start: " + "(" * 100_000 + '"a"' + ")" * 100_000),
    ("ambiguous Lark", "lark", 'start: e\ne: e e e | e e | "a" | "aa" | ""'),
):
    add(
        f"custom tool: {name}",
        CHAT,
        lambda syntax=syntax, definition=definition: {
            "tools": [
                {
                    "type": "custom",
                    "custom": {
                        "name": "c",
                        "description": "d",
                        "format": {
                            "type": "grammar",
                            "grammar": {"syntax": syntax, "definition": definition},
                        },
                    },
                }
            ],
            "tool_choice": "required",
        },
        "*.definition",
    )
add("allowed tools", CHAT, lambda: {
    "tools": [function()],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [function(n) for n in range(1_024)]},
    },
}, "ChatCompletionAllowedTools.tools")  # fmt: skip
add("responses: allowed tools", RESPONSES, lambda: {
    "tools": [{"type": "function", "name": "f"}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}] * 1_024},
}, "ToolChoiceAllowed.tools")  # fmt: skip

# Long strings of messages

HISTORY = {
    "reasoning": lambda: history(reasoning=LONG["words"]()),
    "reasoning_content": lambda: history(reasoning_content=LONG["beginnings of markers"]()),
    "refusal": lambda: history(content=None, refusal=LONG["words"]()),
    "function_call": lambda: history(content=None, function_call={"name": "f", "arguments": LONG["words"]()}),
}
for name, make in HISTORY.items():
    add(f"earlier {name}", CHAT, make, f"*.{name}", "*.arguments")
add("arguments: JSON", CHAT, lambda: calls(1, json.dumps(wide(80_000))), "*.arguments")
add("arguments: deep", CHAT, lambda: calls(1, '{"a":' * 900 + "1" + "}" * 900), "*.arguments")
add("arguments: deeper", CHAT, lambda: calls(1, "[" * 2 * MB), "*.arguments")
add("arguments: a number", CHAT, lambda: calls(1, '{"a":' + "9" * 2 * MB + "}"), "*.arguments")
add("response_prefix", CHAT, lambda: {"response_prefix": "a b " * 250_000}, "*.response_prefix")
add(
    "prediction",
    CHAT,
    lambda: {"prediction": {"type": "content", "content": LONG["words"]()}},
    "PredictionContent.*",
)
add(
    "image", CHAT, lambda: user([{"type": "image_url", "image_url": {"url": LONG["one word"]()}}]), "*Url.url"
)
add("file", CHAT, lambda: user([{"type": "file", "file": {"file_data": LONG["one word"]()}}]), "*.file_data")
add("audio", CHAT, lambda: user([
    {"type": "input_audio", "input_audio": {"data": LONG["one word"](), "format": "wav"}}
]), "*.data")  # fmt: skip
add("video", CHAT, lambda: user([
    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + LONG["one word"]()}}
]), "*Url.url")  # fmt: skip
add("ids and names", CHAT, lambda: {
    "messages": [
        {**USER, "name": "n" * 1_024},
        {"role": "assistant", "tool_calls": [
            {"id": "i" * 16_384, "type": "custom", "custom": {"name": "n", "input": "x" * MB}}
        ]},
        {"role": "tool", "tool_call_id": "i" * 16_384, "content": [PART]},
    ],
}, "*.id", "*.tool_call_id", "*.input")  # fmt: skip
add("input images and files", RESPONSES, lambda: {
    "input": [{"role": "user", "content": [
        {"type": "input_file", "file_data": "a" * MB, "file_url": "u" * MB, "filename": "n"},
        {"type": "input_image", "image_url": "a" * MB},
    ]}],
}, "Input*.file_url", "Input*.file_data", "Input*.image_url")  # fmt: skip
add("instructions", RESPONSES, lambda: {"instructions": LONG["words"]()}, "*.instructions")
add("input tokens: instructions", INPUT_TOKENS, lambda: {"instructions": LONG["spaces"]()}, "*.instructions")
add("reasoning items", RESPONSES, lambda: {
    "input": [
        {"type": "reasoning", "id": "r" * 16_384, "summary": [{"type": "summary_text", "text": "s"}] * 8_192,
         "content": [{"type": "reasoning_text", "text": "t"}] * 8_192, "encrypted_content": "e" * MB},
        {"role": "user", "content": "hi"},
    ],
}, "ReasoningItemParam.*", "*.encrypted_content")  # fmt: skip
add(
    "many reasoning items",
    RESPONSES,
    lambda: {
        "input": [
            *(
                [
                    {
                        "type": "reasoning",
                        "content": [{"type": "reasoning_text", "text": "t" * 500}],
                        "summary": [],
                    }
                ]
                * 15_000
            ),
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "hi"},
        ]
    },
)
add("annotations and logprobs", RESPONSES, lambda: {
    "input": [{"type": "message", "role": "assistant", "content": [
        {"type": "output_text", "text": "a", "annotations": [{"a": 1}] * 8_192, "logprobs": [{"token": "a"}] * 65_536}
    ]}, {"role": "user", "content": "hi"}],
}, "OutputTextContentParam.*")  # fmt: skip
add("outputs of parts", RESPONSES, lambda: {
    "input": [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "x" * MB},
        {"type": "function_call_output", "call_id": "c", "output": [INPUT_PART] * 8_192},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x" * MB},
        {"type": "custom_tool_call_output", "call_id": "d", "output": [INPUT_PART] * 8_192},
    ],
}, "*Output*.output", "CustomToolCall*.*", "FunctionToolCall.*")  # fmt: skip
add("compaction", RESPONSES, lambda: {
    "input": [{"type": "compaction", "encrypted_content": "e" * 5 * MB}],
}, "CompactionSummaryItemParam.*")  # fmt: skip
add("references", RESPONSES, lambda: {"input": [{"id": "i" * 600}] * 16_000}, "ItemReferenceParam.*")
add("callers", RESPONSES, lambda: {
    "input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}",
               "caller": {"type": "program", "caller_id": "c" * 16_384}}],
}, "*.caller_id")  # fmt: skip
add("lists of hints", RESPONSES, lambda: {
    "include": ["reasoning.encrypted_content"] * 64,
    "context_management": [{"type": "compaction"}] * 64,
}, "*.include", "*.context_management")  # fmt: skip
add("modalities", CHAT, lambda: {"modalities": ["text"] * 16, "user": "u" * 4_096}, "*.modalities", "*.user",
    "ResponseModalities")  # fmt: skip
add("prompt of a template", RESPONSES, lambda: {
    "prompt": {"id": "p", "variables": {f"v{n}": "x" * 8_000 for n in range(1_024)}},
}, "Prompt.*", "ResponsePromptVariables*")  # fmt: skip
for size in (100_000, 1_000_000):
    add(f"a variable of {size:,} characters in a hundred places", RESPONSES, lambda size=size: {
        "prompt": {"id": "repeated", "variables": {"text": "x " * (size // 2), "word": "hi"}},
    }, "Prompt.*", "ResponsePromptVariables*")  # fmt: skip
for count in (4_000, 16_000):
    add(f"compacting {count:,} messages before an answer", RESPONSES, lambda count=count: {
        "input": [{"role": "user", "content": "x" * (5 * MB // count)}] * count,
        "context_management": [{"type": "compaction", "compact_threshold": 1_000}],
    }, "*.context_management", "*.compact_threshold")  # fmt: skip
    add(f"compacting {count:,} messages by a trigger", RESPONSES, lambda count=count: {
        "input": [{"role": "user", "content": "x" * (5 * MB // count)}] * count + [{"type": "compaction_trigger"}],
    }, "CompactionTriggerItemParam.*")  # fmt: skip
add("many triggers", RESPONSES, lambda: {"input": [{"type": "compaction_trigger"}] * 16_000},
    "CompactionTriggerItemParam.*")  # fmt: skip
add("metadata", CHAT, lambda: {"metadata": {"k" * 64 + str(n): "v" * 512 for n in range(10_000)}}, "*.metadata",
    "Metadata")  # fmt: skip
add("keys", CHAT, lambda: {"prompt_cache_key": "k" * 4_096, "cache_salt": "s" * 4_096,
    "extra_key": "k" * 4_096}, "*.prompt_cache_key", "*.extra_key",
    "*.cache_salt")  # fmt: skip

# What is compiled

SCHEMAS = {
    "deep": lambda: deep(150),
    "wide": lambda: wide(4_000),
    "large": lambda: {"enum": ["x" * 300_000]},
    "many values": lambda: {"enum": [f"value {n}" for n in range(50_000)]},
    "merging": lambda: {"allOf": [{"anyOf": [{"properties": {f"p{n}": {"type": kind}}} for kind in ("integer", "null")]}
                                  for n in range(30)]},
    "doubling": lambda: doubling("anyOf"),
    "recursive": lambda: {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "itself": lambda: {"$ref": "#"},
    "long strings": lambda: {"type": "string", "maxLength": 10**12},
    "long lists": lambda: {"type": "array", "items": {"type": "object"}, "minItems": 10**6},
    "quantifiers": lambda: {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
    "patterns": lambda: {"type": "object", "patternProperties": {f"^p{n}(a*)*$": {} for n in range(1_000)}},
    "a long pattern": lambda: {"type": "string", "pattern": "(a|b)" * 200_000},
}  # fmt: skip
for name, schema in SCHEMAS.items():
    add(
        f"schema: {name}",
        CHAT,
        lambda schema=schema: {
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema()}}
        },
        "JSONSchemaFormat.*",
    )
    add(
        f"JSON object by a schema: {name}",
        CHAT,
        lambda schema=schema: {"response_format": {"type": "json_object", "schema": schema()}},
        "ResponseFormatJsonObject.schema",
    )
for name in ("deep", "wide", "doubling"):
    schema = SCHEMAS[name]
    add(
        f"text format: {name}",
        RESPONSES,
        lambda schema=schema: {"text": {"format": {"type": "json_schema", "name": "s", "schema": schema()}}},
        "TextResponseFormatJsonSchema.*",
    )
REGEXES = {
    "of a megabyte": lambda: "(a|b)" * 200_000,
    "of 64 KB": lambda: "(a|b)" * 13_000,
    "nested quantifiers": lambda: "((a{1,50}){1,50}){1,50}",
    "exponential": lambda: "(a|b)*a(a|b){200}",
    "of brackets": lambda: "(" * 60_000,
    "of classes": lambda: "\\p{L}{1,500}" * 1_000,
}
for name, regex in REGEXES.items():
    add(f"regex {name}", CHAT, lambda regex=regex: {"structured_outputs": {"regex": regex()}}, "*.regex")
add("guided regex", COMPLETIONS, lambda: {"guided_regex": "(a|b)" * 13_000}, "*.guided_regex")
add("regex of SGLang", CHAT, lambda: {"regex": "(a|b)" * 13_000}, "*.regex")
GRAMMARS = {
    "of brackets": lambda: "start: " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "of many rules": lambda: (
        "\n".join(f'r{n}: "a" r{n + 1}' for n in range(12_000)) + '\nstart: r0\nr12000: "b"'
    ),
    "ambiguous": lambda: 'start: e\ne: e e e | e e | "a" | "aa" | ""',
    "left and right": lambda: 'start: start start | "a"',
    "repeating": lambda: 'start: ("a"{1,1000}){1,1000}',
}
for name, grammar in GRAMMARS.items():
    add(
        f"grammar {name}",
        CHAT,
        lambda grammar=grammar: {"structured_outputs": {"grammar": grammar()}},
        "*.grammar",
    )
add(
    "guided grammar", COMPLETIONS, lambda: {"guided_grammar": GRAMMARS["of many rules"]()}, "*.guided_grammar"
)
GBNF = 'root ::= ("a" | "b"){1,1000}{1,1000}\n' + "\n".join(f'r{n} ::= "a" r{n + 1}' for n in range(10_000))
for path in (CHAT, COMPLETIONS):
    add(f"GBNF: {path}", path, lambda: {"grammar": GBNF}, "*.grammar")
    add(f"EBNF: {path}", path, lambda: {"ebnf": "root ::= " + "(" * 100_000}, "*.ebnf")
    add(f"JSON schema: {path}", path, lambda: {"json_schema": json.dumps(wide(15_000))}, "*.json_schema")
    add(f"structural tag: {path}", path, lambda: {
        "structural_tag": {"structures": [{"begin": "<a>", "schema": wide(10), "end": "</a>"}] * 2_000, "triggers": []},
    }, "*.structural_tag")  # fmt: skip
    add(f"structural tags: {path}", path, lambda: {"structural_tag": {
        "structures": [{"begin": f"<{n}>" + "x" * 2_000, "schema": deep(30), "end": "e" * 2_000} for n in range(128)],
        "triggers": ["<"],
    }}, "*.structural_tag")  # fmt: skip
    add(f"guided JSON: {path}", path, lambda: {"guided_json": json.dumps(deep(150))}, "*.guided_json",
        "StructuredOutputs.json")  # fmt: skip
    add(f"guided choice: {path}", path, lambda: {"guided_choice": [f"c{n}" + "x" * 1_000 for n in range(4_096)]},
        "*.guided_choice", "*.choice")  # fmt: skip
add("responses: JSON schema", RESPONSES, lambda: {"json_schema": wide(4_000)}, "*.json_schema")
add("responses: grammar", RESPONSES, lambda: {"grammar": GBNF}, "*.grammar")

# Lists and maps of sampling

IDS = list(range(1_000))
for path in (CHAT, COMPLETIONS, RESPONSES):
    add(f"stop: {path}", path, lambda: {"stop": ["a" * 4_095 + str(n) for n in range(4)]}, "*.stop",
        "StopConfiguration")  # fmt: skip
    add(f"a stop string of a megabyte: {path}", path, lambda: {"stop": "ab" * (MB // 2)}, "*.stop")
    add(
        f"logit bias: {path}",
        path,
        lambda: {"logit_bias": {str(n): -1 for n in range(65_536)}},
        "*.logit_bias",
    )
    add(f"bias of all: {path}", path, lambda: {"logit_bias": {str(n): n % 100 for n in IDS}}, "*.logit_bias")
    add(f"stop ids: {path}", path, lambda: {"stop_token_ids": [1] * 1_024}, "*.stop_token_ids")
    add(f"allowed ids: {path}", path, lambda: {"allowed_token_ids": [1, 2] * 131_072}, "*.allowed_token_ids")
    add(
        f"bad words: {path}",
        path,
        lambda: {"bad_words": ["w" * 1_000 + str(n) for n in range(1_024)]},
        "*.bad_words",
    )
    add(f"banned strings: {path}", path, lambda: {"banned_strings": ["s" * 250 + str(n) for n in range(128)]},
        "*.banned_strings")  # fmt: skip
    add(f"breakers: {path}", path, lambda: {
        "dry_multiplier": 1, "dry_sequence_breakers": ["b" * 60 + str(n) for n in range(64)],
    }, "*.dry_sequence_breakers")  # fmt: skip
    add(f"samplers: {path}", path, lambda: {"samplers": ["dry", "top_k"] * 8}, "*.samplers")
    add(
        f"logprob ids: {path}",
        path,
        lambda: {"logprob_token_ids": [1] * 128, "logprobs": 1},
        "*.logprob_token_ids",
    )
    add(f"adapters: {path}", path, lambda: {"lora_path": ["p" * 4_096] * 128}, "*.lora_path")
    for name in ("kv_transfer_params", "mm_processor_kwargs", "session_params"):
        add(
            f"{name}: {path}",
            path,
            lambda name=name: {name: {f"k{n}": [n] * 50 for n in range(1_000)}},
            f"*.{name}",
        )
add("penalties over a long prompt", COMPLETIONS, lambda: {
    "prompt": "a b " * 1_000, "repetition_penalty": 1.5, "frequency_penalty": 1, "logprobs": 5, "echo": True,
})  # fmt: skip
add("128 choices", CHAT, lambda: {"n": 128, "logprobs": True, "top_logprobs": 20})
add("input ids", CHAT, lambda: {"input_ids": [1] * MB}, "*.input_ids")

# What templates read

VARIABLES = {
    "long": lambda: {"v": "x" * MB},
    "wide": lambda: {f"v{n}": n for n in range(1_024)},
    "full": lambda: {"v": [{"a": 1}] * 90_000},
    "deep": lambda: {"v": nested(200)},
}
for name, variables in VARIABLES.items():
    add(f"variables: {name}", CHAT, lambda variables=variables: {"chat_template_kwargs": variables()},
        "*.chat_template_kwargs")  # fmt: skip
add("template_vars", CHAT, lambda: {"template_vars": VARIABLES["full"]()}, "*.template_vars")
add(
    "responses: variables",
    RESPONSES,
    lambda: {"chat_template_kwargs": VARIABLES["full"]()},
    "*.chat_template_kwargs",
)
add("documents", CHAT, lambda: {"documents": [{"title": "t", "text": TEXT * 300}] * 1_024}, "*.documents")
add(
    "chat template", CHAT, lambda: {"chat_template": "{% for i in range(99999) %}" * 1_000}, "*.chat_template"
)
add("tokenize: tools and variables", TOKENIZE, lambda: {
    "prompt": None, "messages": [USER], "tools": [function(n, description=TEXT * 100) for n in range(1_000)],
    "chat_template_kwargs": VARIABLES["wide"](),
}, "TokenizeRequest.*")  # fmt: skip

# Prompts as lists

add("65,536 prompts", COMPLETIONS, lambda: {"prompt": ["a"] * 65_536}, "CreateCompletionRequest.prompt")
add("1,200 prompts", COMPLETIONS, lambda: {"prompt": ["a"] * 1_200, "max_tokens": 1})
add("a million token ids", COMPLETIONS, lambda: {"prompt": [1] * MB}, "CreateCompletionRequest.prompt")
add(
    "lists of token ids",
    COMPLETIONS,
    lambda: {"prompt": [[1] * 1_000] * 1_000},
    "CreateCompletionRequest.prompt",
)
add("empty lists", COMPLETIONS, lambda: {"prompt": [[1]] * 90_000})
add("mixed kinds", COMPLETIONS, lambda: {"prompt": ["a", 1] * 400_000})
add("floats as ids", COMPLETIONS, lambda: {"prompt": [1.0] * MB})
add("suffix", COMPLETIONS, lambda: {"suffix": LONG["words"]()}, "*.suffix")
add("a million ids to text", DETOKENIZE, lambda: {"tokens": [5] * MB}, "DetokenizeRequest.tokens")
add("ids that do not exist", DETOKENIZE, lambda: {"tokens": [10**9] * MB}, "DetokenizeRequest.tokens")
add("negative ids", DETOKENIZE, lambda: {"tokens": [5] * 900_000 + [-1]})

# Forms of other servers: refused with a hint, or rewritten with --lenient

OBJECT_CALL = {"type": "function_call", "call_id": "c", "name": "f"}
FORM_BODIES: dict[str, tuple[str, Callable[[], Any]]] = {
    "flat input": (RESPONSES, lambda: {"input": [INPUT_PART] * 8_192}),
    "flat input, too long": (RESPONSES, lambda: {"input": [INPUT_PART] * 95_000}),
    "flat input of a megabyte": (
        RESPONSES,
        lambda: {"input": [{"type": "input_text", "text": "a " * 4 * MB}]},
    ),
    "nested tools": (RESPONSES, lambda: {"tools": [function(n, parameters=wide(40)) for n in range(1_000)]}),
    "null contents": (CHAT, lambda: {"messages": [{"role": "user", "content": None}] * 16_384}),
    "reasoning only": (CHAT, lambda: {"messages": [USER, {"role": "assistant", "reasoning": "a"}] * 8_192}),
    "object arguments: many": (CHAT, lambda: calls(1_024, {"a": "b" * 5_000})),
    "object arguments: wide": (CHAT, lambda: calls(1, {f"k{n}": n for n in range(280_000)})),
    "object arguments: deep": (CHAT, lambda: calls(1, nested(900))),
    "object arguments: items": (
        RESPONSES,
        lambda: {"input": [{**OBJECT_CALL, "arguments": {"a": 1}}] * 16_000},
    ),
    "structural tag": (
        CHAT,
        lambda: {
            "response_format": {
                "type": "structural_tag",
                "structures": [{"begin": "<a>", "schema": wide(500), "end": "</a>"}] * 128,
                "triggers": ["<"],
            }
        },
    ),
    "64 stops": (CHAT, lambda: {"stop": ["a" * 4_095 + chr(33 + n) for n in range(64)]}),
    "empty stops": (CHAT, lambda: {"stop": [""] * 1_400_000}),
    "stops beside a long text": (CHAT, lambda: {**user("a " * 4 * MB), "stop": ["", "zzz"]}),
    "echo": (CHAT, lambda: {**user("a " * 4 * MB), "echo": True}),
    "audio URL": (
        CHAT,
        lambda: user([{"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64," + "A" * 9 * MB}}]),
    ),
    "audio URLs": (
        CHAT,
        lambda: user([{"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}}] * 8_192),
    ),
    "generation config": (CHAT, lambda: {"generation_config": {f"k{n}": n for n in range(200_000)}}),
    "generation config as text": (CHAT, lambda: {"generation_config": "[" * 9 * MB}),
    "generation config of lists": (
        CHAT,
        lambda: {"generation_config": '{"stop_strings":[' + "[]," * 3 * MB + "1]}"},
    ),
    "generation config as a wide text": (
        CHAT,
        lambda: {"generation_config": json.dumps({"stop_strings": ["a"] * 1_400_000})},
    ),
}
for name, (path, body) in FORM_BODIES.items():
    add(f"form: {name}", path, body)
raw("form: object arguments: deeper", CHAT, lambda: (
    json.dumps({**base(CHAT), **calls(1, "@")}).replace('"@"', '{"a":' * 3_000 + "1" + "}" * 3_000).encode()
))  # fmt: skip

# Bodies

raw("three million lists", CHAT, lambda: b'{"x":[' + b"[]," * 3 * MB + b"1]}")
raw("a list in a list", CHAT, lambda: b"[" * 9 * MB)
raw("an unknown field", CHAT, lambda: {**base(CHAT), "x": LONG["words"]()})
raw("a million unknown fields", CHAT, lambda: {**base(CHAT), **{f"x{n}": 1 for n in range(800_000)}})
raw("unknown fields", CHAT, lambda: {**base(CHAT), **{f"x{n}": 1 for n in range(250_000)}})
raw("one key again and again", CHAT, lambda: b"{" + b'"model":"m",' * 290_000 + b'"model":"pocket"}')
raw("a number of megabytes", CHAT, lambda: b'{"model":"pocket","n":' + b"9" * 5 * MB + b"}")
raw("a fraction of megabytes", CHAT, lambda: b'{"model":"pocket","temperature":0.' + b"9" * 5 * MB + b"}")
raw("a string without an end", CHAT, lambda: b'{"model":"' + b"a" * 9 * MB)
raw("backslashes", CHAT, lambda: b'{"model":"' + b"\\" * 9 * MB)
raw("no UTF-8", CHAT, lambda: b'{"model":"' + b"\xff" * 9 * MB + b'"}')
raw("white space", CHAT, lambda: b" " * 9 * MB)
raw("nothing", CHAT, b"")
raw("a model of megabytes", CHAT, lambda: {**base(CHAT), "model": "m" * 9 * MB}, fields=("*.model",))
raw("too large", CHAT, lambda: b" " * 11 * MB)
raw("another encoding", CHAT, lambda: b"x" * MB, headers={"content-encoding": "gzip"})
raw("another type", CHAT, lambda: b"x" * MB, headers={"content-type": "text/" + "x" * 4_000})

# Paths, headers and queries

raw("a long path", "/" + "a" * 40_000, None, method="GET")
raw("a deep path", "/v1" + "/a" * 20_000, None, method="GET")
raw("a model in the path", "/v1/models/" + "m/" * 15_000, None, method="GET")
raw("percent signs", "/v1/models/" + "%25" * 10_000, None, method="GET")
raw("a long query", "/v1/models?" + "a=b&" * 10_000, None, method="GET")
raw("a list in a query", "/v1/responses/r?" + "include[]=x&" * 4_000, None, method="GET")
raw("a long key", "/v1/models", None, method="GET", headers={"authorization": "Bearer " + "k" * 40_000})
raw("a long header", "/v1/models", None, method="GET", headers={"x-a": "a" * 60_000})
raw("many headers", "/v1/models", None, method="GET", headers={f"x-{n}": "a" for n in range(2_000)})
raw("a long request id", CHAT, lambda: base(CHAT), headers={"x-request-id": "r" * 40_000})
raw("another method", CHAT, lambda: b"x" * MB, method="DELETE")

FORM_ROWS = [row for row in ROWS if row.name.startswith("form: ")]
"""Rows of requests that only a server with `--lenient` may accept."""
