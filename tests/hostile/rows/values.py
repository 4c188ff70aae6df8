"""Rows of lists and maps of sampling, variables of templates, and prompts as lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .table import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    LONG,
    MB,
    RESPONSES,
    TEXT,
    TOKENIZE,
    USER,
    add,
    function,
    nested,
)

__all__: list[str] = []

# Lists and maps of sampling

IDS = list(range(1_000))
add("a long number, for many choices", CHAT, lambda: {"n": 64, "max_completion_tokens": 20, "response_format": {
    "type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 10**4_000}},
}})  # fmt: skip
for path in (CHAT, COMPLETIONS):
    add(
        f"bad words, for many choices: {path}",
        path,
        lambda: {"n": 64, "bad_words": ["w" * 1_000 + str(n) for n in range(60)]},
    )
    add(f"breakers, for many choices: {path}", path, lambda: {
        "n": 64, "dry_multiplier": 1, "dry_sequence_breakers": ["b" * 60 + str(n) for n in range(64)],
    })  # fmt: skip
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
        f"allowed ids, spelled otherwise: {path}",
        path,
        lambda: {"allowed_tokens": [1, 2] * 131_072},
        "*.allowed_tokens",
    )
    add(
        f"a regex, spelled otherwise: {path}",
        path,
        lambda: {"regex_pattern": "(a|b)?" * 10_922},
        "*.regex_pattern",
    )
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
    add(
        f"processors of logits: {path}",
        path,
        lambda: {
            "logits_processors": [
                {"qualname": "x", "args": [TEXT] * 200, "kwargs": {f"k{n}": [n] * 50 for n in range(1_000)}}
            ]
            * 8
        },
        "*.logits_processors",
        "*.args",
        "*.kwargs",
    )
    add(
        f"pickled processor: {path}",
        path,
        lambda: {"custom_logit_processor": '{"callable": "' + "80" * 400_000 + '"}'},
        "*.custom_logit_processor",
    )
    for name in ("kv_transfer_params", "mm_processor_kwargs", "session_params", "custom_params"):
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

VARIABLES: dict[str, Callable[[], Any]] = {
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
