"""Check the fields and values that no other scenario sends: hints, other spellings of a text, and rare features.

`conformance/own_server/asked.py --empty` lists what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import accepted, answered, at, usage_count
from plumbline_conformance.checks.messages.fold import prompt_tokens
from plumbline_conformance.checks.messages.texts import message
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import (
    Broken,
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Fields = dict[str, Any]
Rows = dict[str, Fields]
Steps = Generator[Request, Exchange, None]
BASE = "base"
SLACK = 4
"""Tokens that a template may add around a part; fewer than its text has."""
TEXT = "Which of the four seasons do you like best, and why is it that one? Say it in a single word."
PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
MARK = {"mode": "explicit"}
CACHED = {"type": "ephemeral"}


def _part(text: str, kind: str = "text", **fields: Any) -> Fields:
    return {"type": kind, "text": text, **fields}


def _said(*turns: Fields) -> Fields:
    return {"messages": [*user(TEXT), *turns, *user("And now?")]}


def _values(name: str, *values: Any) -> Rows:
    return {f"{name} {value}": {name: value} for value in values}


CHAT_HINTS: Rows = {
    "user": {"user": "u-1"},
    "safety_identifier": {"safety_identifier": "u-1"},
    "prompt_cache_key": {"prompt_cache_key": "k-1"},
    **_values("prompt_cache_retention", "in_memory", "24h"),
    "prompt_cache_options": {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}},
    **_values("service_tier", "auto", "flex", "priority"),
    "response_format text": {"response_format": {"type": "text"}},
    "user parts": {"messages": [{"role": "user", "content": [_part(TEXT)]}]},
    "a marked part": {"messages": [{"role": "user", "content": [_part(TEXT, prompt_cache_breakpoint=MARK)]}]},
    "no padding": {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
}
"""Fields that change nothing that the model sees."""
CUSTOM = {"id": "call_1", "type": "custom", "custom": {"name": "write", "input": "2024"}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": [_part("written")]}
CHAT_RARE: Rows = {
    **_values("verbosity", "low", "medium", "high"),
    **_values("reasoning_effort", "minimal", "medium", "xhigh", "max"),
    "system parts": {"messages": [{"role": "system", "content": [_part("Be kind.")]}, *user(TEXT)]},
    "developer parts": {"messages": [{"role": "developer", "content": [_part("Be kind.")]}, *user(TEXT)]},
    "names": {"messages": [{"role": "user", "name": "Ada", "content": TEXT}]},
    "a refusal": _said({"role": "assistant", "content": None, "refusal": "I cannot."}),
    "a refusal part": _said({"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}),
    "a custom call": _said({"role": "assistant", "content": None, "tool_calls": [CUSTOM]}, RESULT),
    "a call beside an empty text": _said(
        {"role": "assistant", "content": "", "tool_calls": tools.PARALLEL[:1]}, tools.PARALLEL_RESULTS[0]
    ),
    "two results": _said(
        {"role": "assistant", "content": None, "tool_calls": tools.PARALLEL}, *tools.PARALLEL_RESULTS
    ),
    "a name of 64 characters": {"tools": [tools.long_named]},
    "a negative seed": {"seed": -1},
    "a name of an answer": _said({"role": "assistant", "name": "Bo", "content": "Spring."}),
    "an image": {
        "messages": [
            {
                "role": "user",
                "content": [
                    _part("Look."),
                    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
                ],
            }
        ]
    },
    "sound": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}],
            }
        ]
    },
    "a file": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "file",
                        "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,SGk="},
                    }
                ],
            }
        ]
    },
    "moderation": {"moderation": {"model": "omni-moderation-latest"}},
    "prediction parts": {"prediction": {"type": "content", "content": [_part("Spring.")]}},
    "a description of a schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "description": "A colour.", "schema": {"enum": ["violet"]}},
        }
    },
}
RESPONSE_HINTS: Rows = {
    "user": {"user": "u-1"},
    "safety_identifier": {"safety_identifier": "u-1"},
    **_values("prompt_cache_retention", "in_memory", "24h"),
    "prompt_cache_options": {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}},
    **_values("service_tier", "auto", "default", "flex", "priority"),
    "text format": {"text": {"format": {"type": "text"}}},
    "no padding": {"stream": True, "stream_options": {"include_obfuscation": False}},
    "parts": {"input": [{"role": "user", "content": [_part(TEXT, "input_text")]}]},
}
RESPONSE_RARE: Rows = {
    "truncation": {"truncation": "auto"},
    **{f"verbosity {value}": {"text": {"verbosity": value}} for value in ("low", "medium", "high")},
    **{
        f"effort {value}": {"reasoning": {"effort": value}}
        for value in ("none", "minimal", "medium", "high", "xhigh", "max")
    },
    **{f"summary {value}": {"reasoning": {"summary": value}} for value in ("auto", "concise", "detailed")},
    "sealed thinking": {"include": ["reasoning.encrypted_content"]},
    "a prompt of the service": {"prompt": {"id": "pmpt_0f3a", "version": "1", "variables": {"a": "b"}}},
    "context management": {"context_management": [{"type": "compaction", "compact_threshold": 100_000}]},
    **{
        f"a tool {kind}": {"tools": [{"type": kind, **more}]}
        for kind, more in (
            ("web_search", {}),
            ("file_search", {"vector_store_ids": ["vs_0f3a"]}),
            ("code_interpreter", {"container": {"type": "auto"}}),
            ("image_generation", {}),
        )
    },
    "a choice of a hosted tool": {
        "tools": [{"type": "web_search"}],
        "tool_choice": {"type": "web_search_preview"},
    },
    "a choice of allowed tools": {
        "tools": [tools.flat(tools.weather)],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "get_weather"}],
        },
    },
    "an image": {
        "input": [
            {
                "role": "user",
                "content": [_part("Look.", "input_text"), {"type": "input_image", "image_url": PIXEL}],
            }
        ]
    },
    "a file": {
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGk="}
                ],
            }
        ]
    },
    "a refusal": {
        "input": [
            *user(TEXT),
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]},
            *user("And now?"),
        ]
    },
}
WEATHER: Fields = {"name": "get_weather", "input_schema": tools.weather["function"]["parameters"]}
MESSAGE_HINTS: Rows = {
    "user_id": {"metadata": {"user_id": "u-1"}},
    **_values("service_tier", "auto", "standard_only"),
    "a cached part": {"messages": [{"role": "user", "content": [_part(TEXT, cache_control=CACHED)]}]},
    "a cached part, an hour": {
        "messages": [{"role": "user", "content": [_part(TEXT, cache_control={**CACHED, "ttl": "1h"})]}]
    },
    "no citations": {"messages": [{"role": "user", "content": [_part(TEXT, citations=None)]}]},
    "thinking off": {"thinking": {"type": "disabled"}},
    "cache_control": {"cache_control": CACHED},
}
MESSAGE_RARE: Rows = {
    "a cached system": {"system": [_part("Be kind.", cache_control=CACHED)]},
    **{f"effort {value}": {"output_config": {"effort": value}} for value in ("low", "medium", "high", "max")},
    "thinking as needed": {"thinking": {"type": "adaptive"}},
    "a strict tool": {"tools": [{**WEATHER, "type": "custom", "strict": True}]},
    "a cached tool": {"tools": [{**WEATHER, "cache_control": CACHED}]},
    "a result of blocks": {
        "tools": [WEATHER],
        "messages": [
            *user(TEXT),
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [_part("21 degrees"), _part("and rain")],
                    }
                ],
            },
        ],
    },
    "examples of a tool": {"tools": [{**WEATHER, "input_examples": [{"city": "Paris"}]}]},
    "a document": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": "Hi"},
                    },
                    _part("What does it say?"),
                ],
            }
        ]
    },
    "an image of an address": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:9/a.png"}},
                    _part("Look."),
                ],
            }
        ]
    },
    "thinking that is hidden": {
        "messages": [
            *user(TEXT),
            {
                "role": "assistant",
                "content": [{"type": "redacted_thinking", "data": "AAAA"}, _part("Spring.")],
            },
            *user("And now?"),
        ]
    },
    "edits of the context": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    "MCP servers": {"mcp_servers": [{"type": "url", "url": "https://127.0.0.1:9/", "name": "a"}]},
    "a container": {"container": "container_0f3a"},
}
COMPLETION_HINTS: Rows = {
    "user": {"user": "u-1"},
    "no padding": {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
}
COMPLETION_RARE: Rows = {"suffix": {"suffix": " end."}}


def fields(
    api: str,
    path: str,
    base: Callable[[Target], Fields],
    rows: tuple[Rows, Rows],
    count: Callable[[Exchange], int],
    rule: str,
    needs: tuple[str, ...] = (),
) -> None:
    """Register the scenario `API/fields`.

    Args:
        api: the first part of the id.
        path: the path of the requests.
        base: returns the request without these fields.
        rows: hints, by which the prompt stays the same, and rare fields.
        count: returns the tokens of the prompt of an answer.
        rule: the rule about what the model sees.
        needs: required capabilities.
    """
    slug = f"{api}/fields"
    hints, rare = rows

    def steps(target: Target) -> Steps:
        for name, found in {BASE: {}, **hints, **rare}.items():
            yield Request(name=name, path=path, json={**base(target), **found})

    scenario(slug, "Each field that no other scenario sends", needs=needs)(steps)

    @check(f"{slug}/handled", "Answer each field, or refuse it", "HTTP-09")
    def handled(seen: Transcript) -> Iterator[Problem]:
        """Accept any refusal of a client: a server may lack the feature."""
        accepted(at(seen, BASE))
        for exchange in seen.exchanges[1:]:
            if answered(exchange).status < 400 or exchange.status >= 500:
                yield from _failure(exchange)

    @check(f"{slug}/same-prompt", "Show the model the same prompt beside a hint", rule, milder=True)
    def same_prompt(seen: Transcript) -> Iterator[Problem]:
        wanted = count(accepted(at(seen, BASE)))
        for name in hints:
            exchange = at(seen, name)
            try:
                found = count(accepted(exchange))
            except (Broken, Inconclusive, Rejected):
                continue
            if abs(found - wanted) > SLACK:
                shown = f"about {wanted} tokens, as without it"
                yield Problem(expected=shown, actual=str(found), pointer="usage", exchange=name)


def _failure(exchange: Exchange) -> Iterator[Problem]:
    try:
        accepted(exchange)
    except Broken as failure:
        yield failure.problem
    except (Inconclusive, Rejected):
        return


def _usage_of(key: str) -> Callable[[Exchange], int]:
    def count(exchange: Exchange) -> int:
        return usage_count(exchange, key)

    return count


def _chat(target: Target) -> Fields:
    return chat(target, messages=user(TEXT))


def _completion(target: Target) -> Fields:
    return {"model": target.model, "prompt": TEXT, "max_tokens": 1}


def _response(target: Target) -> Fields:
    return create_response(target, TEXT, max_output_tokens=16)


def _message(target: Target) -> Fields:
    return message(target, messages=user(TEXT), max_tokens=4)


fields("chat", "/chat/completions", _chat, (CHAT_HINTS, CHAT_RARE), _usage_of("prompt_tokens"), "CHAT-13")
fields(
    "completions",
    "/completions",
    _completion,
    (COMPLETION_HINTS, COMPLETION_RARE),
    _usage_of("prompt_tokens"),
    "CMP-02",
    needs=("completions",),
)
fields(
    "responses",
    "/responses",
    _response,
    (RESPONSE_HINTS, RESPONSE_RARE),
    _usage_of("input_tokens"),
    "R-13",
    needs=("responses",),
)
fields(
    "messages",
    "/messages",
    _message,
    (MESSAGE_HINTS, MESSAGE_RARE),
    prompt_tokens,
    "MSG-02",
    needs=("messages",),
)
