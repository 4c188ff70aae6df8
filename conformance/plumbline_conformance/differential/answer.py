"""Reduce an answer of any API, whole or streamed, to the parts that can be compared between two servers."""

from __future__ import annotations

from typing import Any

import msgspec

from plumbline_conformance.differential.probes import Probe
from plumbline_conformance.transcript.answer_fold import Answer as FoldedAnswer
from plumbline_conformance.transcript.answer_fold import Fault, Surface, fold_stream, fold_whole, objects_in
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["ComparedAnswer", "answer_of"]

_UNREADABLE: frozenset[Fault] = frozenset({"envelope", "choice", "text"})


class ComparedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The compared parts of one answer."""

    status: int
    error: dict[str, str] | None = None
    """For a refusal: the type of each member of the error object, and the values of `type`, `code` and `param`."""
    text: str | None = None
    finish: list[str] = msgspec.field(default_factory=list)
    usage: dict[str, int] | None = None
    logprobs: list[tuple[str, float]] | None = None
    """(token, logprob) of each token of the answer."""
    grammar: list[str] = msgspec.field(default_factory=list)
    """The kinds of a stream's events in order, without repetitions."""


def answer_of(probe: Probe, exchange: Exchange) -> ComparedAnswer | None:
    """Return the answer; None if it is missing or a compared member is malformed."""
    if exchange.error is not None or exchange.status == 0:
        return None
    if exchange.status != 200:
        return ComparedAnswer(status=exchange.status, error=_error(exchange.json))
    try:
        folded = _fold(probe, exchange)
        if folded.faults & _UNREADABLE:
            return None
        return ComparedAnswer(
            status=200,
            text=_text(probe.surface, folded),
            finish=[str(reason) for reason in folded.finish_reasons],
            usage=_counts(folded.usage or None),
            logprobs=[entry for part in folded.logprobs for entry in _entries(part)]
            if folded.logprobs
            else None,
            grammar=_grammar(exchange) if probe.stream else [],
        )
    except (LookupError, TypeError, AttributeError, ValueError):
        return None


def _fold(probe: Probe, exchange: Exchange) -> FoldedAnswer:
    if not probe.stream:
        return fold_whole(probe.surface, exchange.json)
    values = objects_in(exchange.chunks)
    # The last event of a Responses stream repeats the whole response.
    return (
        fold_whole("responses", values[-1]["response"])
        if probe.surface == "responses"
        else fold_stream(probe.surface, values)
    )


def _text(surface: Surface, folded: FoldedAnswer) -> str:
    """Join the text of all choices; for a response, its reasoning as well."""
    if surface == "responses":
        return "".join(choice.reasoning + choice.content for choice in folded.choices)
    return "".join(choice.content for choice in folded.choices)


def _error(value: Any) -> dict[str, str] | None:
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return None
    types = {f"{key} is": type(member).__name__ for key, member in sorted(error.items())}
    words = {key: str(error[key]) for key in ("type", "code", "param") if error.get(key) is not None}
    return types | words


def _entries(logprobs: Any) -> list[tuple[str, float]]:
    """Read the logprobs of either API; the first token of an echoed prompt has no logprob."""
    if "content" in logprobs:
        return [(entry["token"], float(entry["logprob"])) for entry in logprobs["content"] or []]
    pairs = zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    return [(token, float(value)) for token, value in pairs if value is not None]


def _counts(usage: Any) -> dict[str, int] | None:
    """Return the counts that do not depend on the prompt cache."""
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
    filled = sorted(name for name, member in delta.items() if member)
    finish = choice.get("finish_reason")
    return "+".join([*filled, *([f"finish {finish}"] if finish else [])]) or "empty"
