"""Rows of long texts and long strings of messages."""

from __future__ import annotations

import base64
import json

from .table import (
    CHAT,
    COMPACT,
    COMPLETIONS,
    CONVERSATION_ITEMS,
    CONVERSATIONS,
    INPUT_PART,
    INPUT_TOKENS,
    LONG,
    MB,
    PART,
    RESPONSES,
    TEXT_FIELDS,
    TOKENIZE,
    USER,
    add,
    calls,
    history,
    user,
    wide,
)

__all__: list[str] = []

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
add("file of text", CHAT, lambda: user([
    {"type": "file", "file": {
        "file_data": base64.b64encode(LONG["words"]().encode()).decode(), "filename": "n" * 1_024,
    }}
]), "*.file_data", "*.filename")  # fmt: skip
add("file in percents", CHAT, lambda: user([
    {"type": "file", "file": {"file_data": "data:text/plain," + "%61" * (MB // 3)}}
]), "*.file_data")  # fmt: skip
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
BEGUN = '<tool_call>\n{"name": "get", "arguments": {"city": "'
add("a message to continue, for many choices", CHAT, lambda: {
    "messages": [USER, {"role": "assistant", "content": BEGUN + "`" * 3_000}],
    "continue_final_message": True, "add_generation_prompt": False, "n": 64,
    "tools": [{"type": "function", "function": {"name": "get", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}}}],
}, "*.messages")  # fmt: skip
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
