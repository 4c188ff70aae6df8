"""Mutants of legacy completions."""

from __future__ import annotations

from typing import Any

from mutants.basic import counted, no_done, put
from mutants.mutations import Mutant, Mutation, body, chunk, chunks, events, status, without

__all__ = ["COMPLETIONS"]


def lists(*path: Any) -> Mutation:
    return body(put("choices", 0, "logprobs", *path), 0)


def streamed_token(token: str) -> Mutation:
    return chunk(0, put("choices", 0, "logprobs", "tokens", 0, token), 1)


def restarted(found: list[Any]) -> None:
    """Restart the offsets in every chunk."""
    for data in found:
        logprobs = data["choices"][0]["logprobs"]
        if logprobs is not None:
            logprobs["text_offset"] = list(range(len(logprobs["text_offset"])))


def early_usage(found: list[Any]) -> None:
    found[0]["usage"] = dict(found[-1]["usage"])


def one_for_all(answer: Any) -> None:
    del answer["choices"][1:]


ROWS: list[tuple[str, str, Mutation, str]] = [
    ("logprobs", "no object", body(without("object"), 0), "shape"),
    ("logprobs", "no logprobs", body(put("choices", 0, "logprobs", None), 0), "given"),
    (
        "logprobs",
        "a list that is shorter",
        body(without("choices", 0, "logprobs", "text_offset", 0), 0),
        "given",
    ),
    ("logprobs", "offsets that go back", lists("text_offset", 1, 9), "offsets"),
    ("logprobs", "offsets beyond the text", lists("text_offset", -1, 99), "offsets"),
    ("logprobs", "alternatives without the drawn one", lists("top_logprobs", 0, {"x": -1.5}), "sampled"),
    ("logprobs", "other tokens", lists("tokens", 0, "x"), "join stream-tokens"),
    ("logprobs", "another text", body(put("choices", 0, "text", "other"), 0), "join"),
    ("logprobs", "no [DONE]", events(no_done, 1), "stream-wire"),
    ("logprobs", "no streamed object", chunk(1, without("object"), 1), "stream-shape"),
    (
        "logprobs",
        "other tokens, streamed",
        streamed_token("?"),
        "stream-tokens",
    ),
    ("logprobs", "offsets from 0 in every chunk", chunks(restarted, 1), "stream-offsets"),
    ("logprobs", "token ids as text", body(counted("prompt_tokens", 9), 2), "token-ids"),
    ("limits", "0 read as no limit", body(put("choices", 0, "text", "One two three four"), 0), "none"),
    ("limits", "no echo of a prompt alone", body(put("choices", 0, "text", ""), 0), "none"),
    ("limits", "a hundred tokens", body(counted("completion_tokens", 100), 1), "default"),
    ("limits", "`length` before the limit", body(counted("completion_tokens", 12), 1), "default"),
    ("id-lists", "one list alone", status(400, 1), "taken"),
    ("id-lists", "lists taken for one prompt", body(one_for_all, 1), "indexes sound"),
    ("id-lists", "ids counted as text", body(counted("prompt_tokens", 17), 1), "counted"),
    ("stop", "no object", body(without("object"), 0), "shape sound"),
    ("stop", "the stop string", body(put("choices", 0, "text", "Grüße"), 1), "prefix"),
    (
        "stop",
        "half of the stop string, streamed",
        chunk(0, put("choices", 0, "text", "Grüß"), 2),
        "stream-prefix",
    ),
    ("stop", "no streamed object", chunk(0, without("object"), 2), "stream-shape"),
    ("stop", "usage in the first chunk", chunks(early_usage, 2), "stream-usage"),
    ("stop", "two finishes", chunk(0, put("choices", 0, "finish_reason", "stop"), 2), "stream-finish"),
]
COMPLETIONS: list[Mutant] = [
    (f"completions/{scenario}", name, mutation, tuple(tripped.split()))
    for scenario, name, mutation, tripped in ROWS
]
