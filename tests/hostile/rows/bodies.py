"""Rows of forms of other servers, bodies, paths, headers and queries."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .table import (
    CHAT,
    INPUT_PART,
    LONG,
    MB,
    RESPONSES,
    USER,
    add,
    base,
    calls,
    function,
    nested,
    raw,
    user,
    wide,
)

__all__: list[str] = []

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
