"""Rows of the hostile table for Messages."""

from __future__ import annotations

from typing import Any

from .table import COUNT_TOKENS, LONG, MESSAGES, RESPONSES, USER, add, nested, user, wide

__all__: list[str] = []


def _tool(index: int = 0, **more: Any) -> dict[str, Any]:
    return {"name": f"f{index}", "input_schema": {"type": "object"}, **more}


def _calls(count: int, given: dict[str, Any]) -> dict[str, Any]:
    """Return a conversation with one turn of many calls and their results."""
    made = [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": given} for n in range(count)]
    results = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": "r"} for n in range(count)]
    answered = [{"role": "assistant", "content": made}, {"role": "user", "content": results}]
    return {"messages": [USER, *answered]}


def _said(*blocks: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": list(blocks)}, USER]}


BLOCK = {"type": "text", "text": "a"}
for kind, text in LONG.items():
    add(f"messages: {kind}", MESSAGES, lambda text=text: user(text()), "*MessageParam.content")
add("count: words", COUNT_TOKENS, lambda: user(LONG["words"]()), "MessageText", "*.system")
add(
    "messages: many",
    MESSAGES,
    lambda: {"messages": [USER] * 16_384},
    "*MessageRequest.messages",
    "*.messages",
)
add("messages: many blocks", MESSAGES, lambda: user([BLOCK] * 8_192), "TextBlockParam.text")
add(
    "messages: instructions in many blocks",
    MESSAGES,
    lambda: {"system": [BLOCK] * 8_192},
    "*MessageParam.content",
)
add(
    "messages: many citations",
    MESSAGES,
    lambda: user([{**BLOCK, "citations": [{str(n): n for n in range(64)}] * 1_024}]),
    "TextBlockParam.citations",
)
add(
    "messages: many tools with long descriptions",
    MESSAGES,
    lambda: {"tools": [_tool(n, description="x" * 8_000) for n in range(1_024)]},
    "*Request.tools",
    "MessageTool.description",
    "MessageTool.allowed_callers",
)
add(
    "messages: a wide schema",
    MESSAGES,
    lambda: {"tools": [_tool(input_schema=wide(4_096), strict=True)], "tool_choice": {"type": "any"}},
    "MessageTool.input_schema",
)
add(
    "messages: examples of arguments",
    MESSAGES,
    lambda: {"tools": [_tool(n, input_examples=[{"a": "x" * 1_000}] * 64) for n in range(128)]},
    "MessageTool.input_examples",
)
add(
    "messages: a wide format",
    MESSAGES,
    lambda: {"output_config": {"format": {"type": "json_schema", "schema": wide(4_096)}}},
    "MessageJsonFormat.schema",
)
add(
    "messages: a deep format",
    MESSAGES,
    lambda: {"output_config": {"format": {"type": "json_schema", "schema": nested(400)}}},
)
add(
    "messages: many stop sequences",
    MESSAGES,
    lambda: {"stop_sequences": [f"{n:04}" + "x" * 1_020 for n in range(1_024)], "max_tokens": 64},
    "CreateMessageRequest.stop_sequences",
)
add("messages: many calls", MESSAGES, lambda: _calls(8_192, {}), "ToolResultBlockParam.content")
add(
    "messages: wide arguments",
    MESSAGES,
    lambda: _calls(4, {f"k{n}": "x" * 500 for n in range(4_096)}),
    "ToolUseBlockParam.*",
)
add("messages: deep arguments", MESSAGES, lambda: _calls(1, nested(400)))
add(
    "messages: long thinking without a seal",
    MESSAGES,
    lambda: _said({"type": "thinking", "thinking": "x" * 4_000_000, "signature": "pl1." + "A" * 5_000_000}),
    "ThinkingBlockParam.*",
)
add(
    "messages: many seals",
    MESSAGES,
    lambda: _said(*[{"type": "redacted_thinking", "data": "pl1." + "A" * 1_000}] * 8_192),
    "RedactedThinkingBlockParam.data",
)
add(
    "messages: a large picture for a model without eyes",
    MESSAGES,
    lambda: user(
        [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 9_000_000}}]
    ),
    "Base64ImageSource.data",
    "URLImageSource.url",
)
add(
    "messages: a long document",
    MESSAGES,
    lambda: user([{"type": "document", "source": {"data": "x" * 9_000_000}}]),
)
add(
    "messages: edits of the context",
    MESSAGES,
    lambda: {
        "context_management": {
            "edits": [{"type": "clear_thinking_20251015", "keep": {"x": "x" * 100_000}} for _ in range(64)]
        }
    },
    "MessageContextManagement.edits",
    "MessageContextEdit.keep",
)
add(
    "responses: members that are refused",
    RESPONSES,
    lambda: {"image": {str(n): "x" * 100_000 for n in range(64)}},
    "CreateResponse.access_programs",
    "CreateResponse.background_options",
    "CreateResponse.image",
    "CreateResponse.multi_agent",
)
add(
    "messages: members that are refused or have no effect",
    MESSAGES,
    lambda: {"container": {str(n): "x" * 10_000 for n in range(64)}},
    "CreateMessageRequest.container",
    "CreateMessageRequest.thread",
    "CreateMessageRequest.compaction",
    "CreateMessageRequest.fallbacks",
    "CreateMessageRequest.fallback_credit_token",
    "CreateMessageRequest.billing_policy",
    "CreateMessageRequest.access_programs",
    "CreateMessageRequest.background_options",
    "CreateMessageRequest.image",
    "Thinking*.block_binding",
    "CreateMessageRequest.diagnostics",
    "CreateMessageRequest.mcp_servers",
    "CreateMessageRequest.output_format",
    "ToolUseBlockParam.caller",
    "MessageMetadata.user_id",
)
