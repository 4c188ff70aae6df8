"""Check fields of a response with a visible effect: echoed parameters, documents and thinking that a limit cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answers import parsed
from plumbline_conformance.checks.chat.logprobs import nearest
from plumbline_conformance.checks.chat.structured_output import PLACE
from plumbline_conformance.checks.common import accepted, at
from plumbline_conformance.checks.laws import STREAM, WHOLE, both, either
from plumbline_conformance.checks.request_reader import request_fields, requested_limit, requested_schema
from plumbline_conformance.checks.responses.echoes import LABELS, unlike
from plumbline_conformance.checks.responses.output_options import listed_entries
from plumbline_conformance.checks.responses.shared_laws import (
    constrained_text,
    create_response,
    pair,
    response,
    snapshots_of,
)
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Target, check
from plumbline_conformance.suite.schema_validation import fits
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript


def _parameters(target: Target) -> dict[str, object]:
    fields = {
        "temperature": 0.5,
        "top_p": 0.75,
        "instructions": "Be brief.",
        "metadata": {"run": "1", "topic": "echo"},
        "tools": [tools.flat(tools.weather)],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "truncation": "disabled",
        "max_output_tokens": 24,
        "safety_identifier": "user-1",
        "prompt_cache_key": "key-1",
    }
    return create_response(target, "Hi", **fields)


pair("responses/echoes", "An answer to a request with many parameters", _parameters)


@either("responses/echoes/labels", "Echo the labels of the request in the response", "R-19")
def _labelled(exchange: Exchange) -> Iterator[Problem]:
    given = request_fields(exchange)
    wanted = {name: given[name] for name in LABELS if given.get(name) is not None}
    found = snapshots_of(exchange)
    if not any(name in one for _, one in found for name in wanted):
        raise Inconclusive("the server keeps no labels")
    yield from unlike(found, wanted, "R-19")


def _cut(target: Target) -> dict[str, object]:
    output_format = {"type": "json_schema", "name": "place", "strict": True, "schema": LONG}
    return create_response(
        target, "Name a place, as JSON.", text={"format": output_format}, max_output_tokens=16
    )


LONG = {
    **PLACE,
    "properties": {f"{name}_of_the_place": value for name, value in PLACE["properties"].items()},
    "required": [f"{name}_of_the_place" for name in PLACE["required"]],
}
"""A schema whose documents have more than 16 tokens, the smallest limit, in the vocabularies of most models."""

pair("responses/json-cut", "A document that the token limit cuts", _cut)


@either("responses/json-cut/incomplete", "Never call a cut document completed", "SO-05")
def _cut_document(exchange: Exchange) -> Iterator[Problem]:
    found = response(exchange)
    if fits(requested_schema(exchange), parsed(constrained_text(exchange, whole=False))):
        raise Inconclusive("the document is shorter than the limit")
    if found.get("status") == "completed":
        yield Problem(expected="incomplete", actual="completed", pointer="status")


def _object(target: Target) -> dict[str, object]:
    return create_response(
        target, "Answer with a short JSON object.", text={"format": {"type": "json_object"}}
    )


pair("responses/json-object", "An answer that is any object", _object)


@either("responses/json-object/object", "Write text that is one JSON object", "SO-02")
def _one_object(exchange: Exchange) -> Iterator[Problem]:
    text = constrained_text(exchange)
    if not isinstance(parsed(text), dict):
        yield Problem(expected="one JSON object", actual=as_json(text)[:200], pointer="output_text")


def _same_usage(key: str) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        """Compare the prompts of equal requests, which a server renders in the same way."""
        counts = []
        for name in (WHOLE, STREAM):
            usage = response(accepted(at(seen, name))).get("usage")
            counts.append(usage.get(key) if isinstance(usage, dict) else None)
        if not all(isinstance(count, int) for count in counts):
            raise Inconclusive("an answer has no usage; another check reports this")
        whole, streamed = counts
        if whole != streamed:
            wanted, where = f"{whole}, as without streaming", f"usage.{key}"
            yield Problem(expected=wanted, actual=str(streamed), pointer=where, exchange=STREAM)

    return judge


for _slug in ("responses/limits", "responses/tool"):
    check(f"{_slug}/same-usage", "Count the same prompt tokens in a stream", "RS-16")(
        _same_usage("input_tokens")
    )


def _thinking_cut(target: Target) -> dict[str, object]:
    return create_response(target, "Hi", max_output_tokens=16, reasoning={"effort": "low"})


pair(
    "responses/reasoning-cut",
    "Reasoning, or the text after it, that the token limit cuts",
    _thinking_cut,
    needs=("reasoning",),
)


def _reached(exchange: Exchange) -> Iterator[Problem]:
    """Check that a cut answer counts all tokens up to its limit, thoughts included (R-05)."""
    found = response(exchange)
    details, usage = found.get("incomplete_details"), found.get("usage")
    if not isinstance(details, dict) or details.get("reason") != "max_output_tokens":
        raise Inconclusive("the limit did not end the answer")
    limit, tokens = requested_limit(exchange), usage.get("output_tokens") if isinstance(usage, dict) else None
    if isinstance(tokens, int) and tokens < limit:
        yield Problem(expected=f"{limit} tokens", actual=str(tokens), pointer="usage.output_tokens")


for _slug in ("responses/limits", "responses/reasoning-cut"):
    both(
        f"{_slug}/reached",
        ("Count every token of an answer that the limit ended", "R-05"),
        ("Count every token of a stream that the limit ended", "R-05"),
        milder=True,
    )(_reached)


@both(
    "responses/logprobs/nearest",
    ("List no alternative that is less likely than a sampled token beside them", "LP-04"),
    ("Stream no alternative that is less likely than a sampled token beside them", "LP-04"),
)
def _nearest(exchange: Exchange) -> Iterator[Problem]:
    yield from nearest([one for one in listed_entries(exchange) if isinstance(one.get("token"), str)])
