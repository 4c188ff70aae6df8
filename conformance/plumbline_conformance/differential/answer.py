"""An answer reduced to what two servers can be compared by, whatever API it came from and however it was sent."""

from __future__ import annotations

from typing import Any

import msgspec

from plumbline_conformance.differential.probes import Probe
from plumbline_conformance.transcript.model import Exchange

__all__ = ["Answer", "answer_of"]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared."""

    status: int
    error: dict[str, str] | None = None
    """Of a refusal: the type of each member of the error object, and the words of `type`, `code` and `param`."""
    text: str | None = None
    finish: list[str] = msgspec.field(default_factory=list)
    usage: dict[str, int] | None = None
    logprobs: list[tuple[str, float]] | None = None
    """(token, logprob) of each token of the answer."""
    grammar: list[str] = msgspec.field(default_factory=list)
    """The kinds of a stream's events in order; a kind that repeats stands once."""


def answer_of(probe: Probe, exchange: Exchange) -> Answer | None:
    """The answer, or None where none came or it has another shape than the contract says."""
    if exchange.error is not None or exchange.status == 0:
        return None
    if exchange.status != 200:
        return Answer(status=exchange.status, error=_error(exchange.json))
    try:
        values = [v for v in exchange.chunks if isinstance(v, dict)] if probe.stream else [exchange.json]
        read = _responses if probe.surface == "responses" else _choices
        found = read(values, probe.stream)
    except (LookupError, TypeError, AttributeError, ValueError):
        return None
    return msgspec.structs.replace(found, grammar=_grammar(exchange) if probe.stream else [])


def _error(value: Any) -> dict[str, str] | None:
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return None
    said = {f"{key} is": type(member).__name__ for key, member in sorted(error.items())}
    words = {key: str(error[key]) for key in ("type", "code", "param") if error.get(key) is not None}
    return said | words


def _choices(values: list[Any], stream: bool) -> Answer:
    text: list[str] = []
    finish: list[str] = []
    usage: Any = None
    logprobs: list[tuple[str, float]] | None = None
    for value in values:
        usage = value.get("usage") or usage
        for choice in value["choices"]:
            said = choice.get("delta" if stream else "message")
            text.append((choice.get("text") if said is None else said.get("content")) or "")
            if choice.get("finish_reason") is not None:
                finish.append(choice["finish_reason"])
            entries = _entries(choice.get("logprobs"))
            if entries is not None:
                logprobs = [*(logprobs or []), *entries]
    return Answer(status=200, text="".join(text), finish=finish, usage=_counts(usage), logprobs=logprobs)


def _entries(logprobs: Any) -> list[tuple[str, float]] | None:
    """Of either API; the first token of an echoed prompt has no logprob."""
    if logprobs is None:
        return None
    if "content" in logprobs:
        return [(entry["token"], float(entry["logprob"])) for entry in logprobs["content"] or []]
    pairs = zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    return [(token, float(value)) for token, value in pairs if value is not None]


def _responses(values: list[Any], stream: bool) -> Answer:
    response = values[-1]["response"] if stream else values[0]
    parts = [part for item in response["output"] for part in item.get("content") or []]
    details = response.get("incomplete_details") or {}
    return Answer(
        status=200,
        text="".join(part.get("text") or "" for part in parts),
        finish=[str(response["status"]), *map(str, details.values())],
        usage=_counts(response.get("usage")),
    )


def _counts(usage: Any) -> dict[str, int] | None:
    """The counts that do not depend on what was cached."""
    names = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens")
    return None if usage is None else {name: int(usage[name]) for name in names if name in usage}


def _grammar(exchange: Exchange) -> list[str]:
    kinds: list[str] = []
    for event in exchange.events:
        kind = "[DONE]" if event.data == "[DONE]" else _kind(event.json)
        if event.name is not None:
            kind = f"{event.name}: {kind}"
        if kinds[-1:] != [kind]:
            kinds.append(kind)
    return kinds


def _kind(value: Any) -> str:
    if not isinstance(value, dict):
        return "no object"
    if "type" in value:
        return str(value["type"])
    if not value.get("choices"):
        return "usage" if value.get("usage") else "no choices"
    choice = value["choices"][0]
    delta = choice.get("delta") or {"text": choice.get("text")}
    said = sorted(name for name, member in delta.items() if member)
    finish = choice.get("finish_reason")
    return "+".join([*said, *([f"finish {finish}"] if finish else [])]) or "empty"
