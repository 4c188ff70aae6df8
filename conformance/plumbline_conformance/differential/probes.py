"""Draw the requests of a differential run from a seed; a seed gives the same requests on every machine.

All of them are greedy, so that sampling causes no differences. Some are invalid on purpose, because two servers should
refuse them in the same way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

__all__ = ["Probe", "probes"]

Surface = Literal["chat", "completions", "responses"]
_PATHS: dict[Surface, str] = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "responses": "/responses",
}
_PROMPTS = (
    "Hi",
    "What is the capital of France?",
    "Count from one to ten.",
    "Write one line of Python that prints the number 7.",
    "Grüße aus Köln! Wie spät ist es?",
    "日本語で答えてください。",
    "🌊🌊🌊 what is this?",
    "  leading and trailing spaces  ",
    "two\n\nparagraphs\n",
    "a" * 400,
    "Explain <b>bold</b> and {{ braces }} and <|im_start|> as text.",
)
_SYSTEMS = (None, None, "Answer in one word.", "You are terse.")
_STOPS: tuple[Any, ...] = (None, None, ".", [" ", "\n"], ["zzzz"])
_INVALID: tuple[tuple[Surface, str, dict[str, Any]], ...] = (
    ("chat", "ERR-07", {"temperature": 3}),
    ("chat", "ERR-07", {"top_p": 2}),
    ("chat", "ERR-07", {"max_tokens": -1}),
    ("chat", "ERR-07", {"n": 0}),
    ("chat", "ERR-07", {"top_logprobs": 99, "logprobs": True}),
    ("chat", "ERR-08", {"max_tokens": "many"}),
    ("chat", "ERR-08", {"messages": "Hi"}),
    ("chat", "ERR-07", {"messages": []}),
    ("chat", "ERR-08", {"stream": "true"}),
    ("chat", "CS-09", {"stream_options": {"include_usage": True}}),
    ("chat", "ERR-06", {"model": "no-such-model-0f3a"}),
    ("completions", "ERR-08", {"prompt": {"a": 1}}),
    ("completions", "ERR-07", {"logprobs": 99}),
    ("completions", "CMP-06", {"n": 2, "best_of": 1}),
    ("responses", "ERR-08", {"input": 7}),
    ("responses", "R-17", {"max_output_tokens": 1}),
    ("responses", "ERR-07", {"temperature": -1}),
)


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One request for both servers; each gets its own model name."""

    name: str
    surface: Surface
    path: str
    body: dict[str, Any]
    """Without `model`, except in the probe of an unknown model."""
    rule: str | None = None
    """The rule that requires a refusal, if the request is invalid."""

    @property
    def stream(self) -> bool:
        """Return whether the request asks for a stream."""
        return self.body.get("stream") is True


def probes(count: int, seed: int = 0) -> list[Probe]:
    """Return `count` random valid requests, then every invalid one."""
    rng = random.Random(seed)
    valid = [_valid(rng, number) for number in range(count)]
    return [*valid, *_invalid()]


def _valid(rng: random.Random, number: int) -> Probe:
    surface: Surface = rng.choice(("chat", "chat", "chat", "completions", "responses"))
    prompt = rng.choice(_PROMPTS)
    limit = rng.choice((1, 4, 16, 32))
    body: dict[str, Any] = {"temperature": 0}
    match surface:
        case "chat":
            system = rng.choice(_SYSTEMS)
            turns = [] if system is None else [{"role": "system", "content": system}]
            body |= {"messages": [*turns, {"role": "user", "content": prompt}], "max_tokens": limit}
            if rng.random() < 0.4:
                body |= {"logprobs": True, "top_logprobs": 2}
        case "completions":
            body |= {"prompt": prompt, "max_tokens": limit}
            if rng.random() < 0.4:
                body |= {"logprobs": 2}
            if rng.random() < 0.2:
                body |= {"echo": True}
        case "responses":
            body |= {"input": prompt, "max_output_tokens": max(16, limit)}
    stop = rng.choice(_STOPS)
    if stop is not None and surface != "responses":
        body["stop"] = stop
    body["stream"] = rng.random() < 0.5
    if body["stream"] and surface != "responses":
        body["stream_options"] = {"include_usage": True}
    kind = "stream" if body["stream"] else "whole"
    return Probe(name=f"{number:03} {surface} {kind}", surface=surface, path=_PATHS[surface], body=body)


def _invalid() -> Iterator[Probe]:
    for surface, rule, fields in _INVALID:
        base: dict[str, Any] = {
            "chat": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
            "completions": {"prompt": "Hi", "max_tokens": 4},
            "responses": {"input": "Hi", "max_output_tokens": 16},
        }[surface]
        name = f"{surface} with {', '.join(f'{key} {value!r}' for key, value in fields.items())}"
        yield Probe(name=name, surface=surface, path=_PATHS[surface], body={**base, **fields}, rule=rule)
