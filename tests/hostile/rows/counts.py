"""Rows of many messages, parts, calls and tools."""

from __future__ import annotations

from .table import (
    CHAT,
    INPUT_PART,
    MB,
    PART,
    RESPONSES,
    TEXT,
    TOKENIZE,
    USER,
    add,
    calls,
    deep,
    doubling,
    function,
    user,
    wide,
)

__all__: list[str] = []

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
