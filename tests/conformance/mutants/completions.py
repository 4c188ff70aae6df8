"""Mutants of legacy completions."""

from __future__ import annotations

from typing import Any

from mutants.basic import counted, no_done, put
from mutants.mutations import Mutant, Mutation, body, chunk, chunks, events, status, without
from plumbline_conformance.checks.laws import STREAM, WHOLE

__all__ = ["COMPLETIONS"]


def valueless(answer: Any) -> None:
    """Take away the logprob of every token."""
    found = answer["choices"][0]["logprobs"]
    found["token_logprobs"] = [None for _ in found["token_logprobs"]]


def cumulative(found: list[Any]) -> None:
    text = ""
    for choice in (choice for data in found for choice in data["choices"]):
        text += choice["text"]
        choice["text"] = text


def lists(*path: Any) -> Mutation:
    return body(put("choices", 0, "logprobs", *path), WHOLE)


def streamed_token(token: str) -> Mutation:
    return chunk(0, put("choices", 0, "logprobs", "tokens", 0, token), STREAM)


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
    (
        "stop",
        "another prompt in the stream",
        chunk(-1, counted("prompt_tokens", 99), STREAM),
        "same-prompt",
    ),
    ("logprobs", "no object", body(without("object"), WHOLE), "shape"),
    ("logprobs", "no logprobs", body(put("choices", 0, "logprobs", None), WHOLE), "given"),
    (
        "logprobs",
        "a list that is shorter",
        body(without("choices", 0, "logprobs", "text_offset", 0), WHOLE),
        "given",
    ),
    ("logprobs", "offsets that go back", lists("text_offset", 1, 9), "offsets"),
    ("logprobs", "offsets beyond the text", lists("text_offset", -1, 99), "offsets"),
    ("logprobs", "alternatives without the drawn one", lists("top_logprobs", 0, {"x": -1.5}), "sampled"),
    ("logprobs", "tokens without a value", body(valueless, WHOLE), "sampled"),
    ("logprobs", "other tokens", lists("tokens", 0, "x"), "join stream-tokens"),
    ("logprobs", "another text", body(put("choices", 0, "text", "other"), WHOLE), "join stream-tokens"),
    ("logprobs", "each chunk with all of the text", chunks(cumulative, STREAM), "stream-tokens"),
    ("logprobs", "no [DONE]", events(no_done, STREAM), "stream-wire"),
    ("logprobs", "no streamed object", chunk(1, without("object"), STREAM), "stream-shape"),
    (
        "logprobs",
        "other tokens, streamed",
        streamed_token("?"),
        "stream-tokens",
    ),
    ("logprobs", "offsets from 0 in every chunk", chunks(restarted, STREAM), "stream-offsets"),
    ("logprobs", "token ids as text", body(counted("prompt_tokens", 9), "token_ids"), "token-ids"),
    ("limits", "0 read as no limit", body(put("choices", 0, "text", "One two three four"), "none"), "none"),
    ("limits", "no echo of a prompt alone", body(put("choices", 0, "text", ""), "none"), "none"),
    ("limits", "a hundred tokens", body(counted("completion_tokens", 100), "default"), "default"),
    ("limits", "`length` before the limit", body(counted("completion_tokens", 12), "default"), "default"),
    ("id-lists", "one list alone", status(400, "two_lists"), "taken"),
    ("id-lists", "lists taken for one prompt", body(one_for_all, "two_lists"), "indexes sound"),
    ("id-lists", "ids counted as text", body(counted("prompt_tokens", 17), "two_lists"), "counted"),
    ("stop", "no object", body(without("object"), "plain"), "shape sound"),
    ("stop", "the stop string", body(put("choices", 0, "text", "Grüße"), WHOLE), "prefix"),
    (
        "stop",
        "half of the stop string, streamed",
        chunk(0, put("choices", 0, "text", "Grüß"), STREAM),
        "stream-prefix",
    ),
    ("stop", "no streamed object", chunk(0, without("object"), STREAM), "stream-shape"),
    ("stop", "usage in the first chunk", chunks(early_usage, STREAM), "stream-usage"),
    ("stop", "two finishes", chunk(0, put("choices", 0, "finish_reason", "stop"), STREAM), "stream-finish"),
]
COMPLETIONS: list[Mutant] = [
    (f"completions/{scenario}", name, mutation, tuple(tripped.split()))
    for scenario, name, mutation, tripped in ROWS
]
