"""Check fields of a response whose effect an answer shows: echoed parameters, a document that the limit cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answers import is_stream, parsed
from plumbline_conformance.checks.chat.structured_output import PLACE
from plumbline_conformance.checks.common import accepted, at
from plumbline_conformance.checks.laws import either
from plumbline_conformance.checks.request_reader import request_fields, requested_schema
from plumbline_conformance.checks.responses.shared_laws import create_response, events, items, pair, response
from plumbline_conformance.suite.field_rules import members_of
from plumbline_conformance.suite.model import Inconclusive, Problem, Target, check
from plumbline_conformance.suite.schema_validation import fits
from plumbline_conformance.transcript.model import Exchange, Transcript

LABELS = ("safety_identifier", "prompt_cache_key")
"""Members that only OpenAI's service uses; servers may leave them out of the response."""
FREE = ("service_tier", "reasoning", "previous_response_id")
"""Members that a server answers with the value in effect, or that other scenarios look at."""
DEFAULTS = {
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "truncation": "disabled",
    "background": False,
    "metadata": {},
    "tools": [],
}
"""What a response has for a parameter that the request does not have. Temperature and top_p are left out, because
servers fill in the defaults of the model."""


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


def _echoes(exchange: Exchange) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every response object of the answer, with its place: of a stream, all snapshots."""
    if not is_stream(exchange):
        yield "", response(exchange)
        return
    response(exchange)
    for number, event in enumerate(events(exchange)):
        if isinstance(event.get("response"), dict):
            yield f"event {number}, response.", event["response"]


def _unlike(exchange: Exchange, wanted: dict[str, Any]) -> Iterator[Problem]:
    for where, found in _echoes(exchange):
        for key, value in wanted.items():
            if key in found and not _same(found[key], value):  # The schema requires every member.
                shown = repr(found[key])[:150]
                yield Problem(
                    expected=f"{repr(value)[:150]}, as in the request", actual=shown, pointer=f"{where}{key}"
                )


def _same(found: Any, wanted: Any) -> bool:
    """Compare an echoed value; an object or a tool may have more members than the client sent."""
    match wanted:
        case dict() if wanted:
            return isinstance(found, dict) and all(
                key in found and _same(found[key], value) for key, value in wanted.items()
            )
        case list():
            return (
                isinstance(found, list)
                and len(found) == len(wanted)
                and all(_same(*both) for both in zip(found, wanted, strict=True))
            )
    return bool(found == wanted)


@either("responses/echoes/echoed", "Echo the parameters of the request in every response object", "R-11")
def _echoed(exchange: Exchange) -> Iterator[Problem]:
    given = request_fields(exchange)
    names = [name for name in members_of("R-11", "Response") if name not in (*LABELS, *FREE)]
    # The format of the text and the background have checks of their own.
    wanted = {name: given[name] for name in names if given.get(name) is not None and name != "text"}
    yield from _unlike(exchange, wanted)


@either("responses/echoes/labels", "Echo the labels of the request in the response", "R-19")
def _labelled(exchange: Exchange) -> Iterator[Problem]:
    given = request_fields(exchange)
    wanted = {name: given[name] for name in LABELS if given.get(name) is not None}
    if not any(name in found for _, found in _echoes(exchange) for name in wanted):
        raise Inconclusive("the server keeps no labels")
    yield from _unlike(exchange, wanted)


@either("responses/stream-text/defaults", "Fill in the parameters that the request leaves out", "R-11")
def _defaults(exchange: Exchange) -> Iterator[Problem]:
    given = request_fields(exchange)
    wanted = {key: value for key, value in DEFAULTS.items() if given.get(key) is None}
    if not given.get("tools") and all(found.get("tool_choice") == "none" for _, found in _echoes(exchange)):
        del wanted["tool_choice"]  # TOOL-03 calls it the default without tools.
    yield from _unlike(exchange, wanted)


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
    if fits(requested_schema(exchange), parsed(_text(exchange))):
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
    if response(exchange).get("status") == "incomplete":
        raise Inconclusive("the token limit cut the answer")
    text = _text(exchange)
    if not isinstance(parsed(text), dict):
        yield Problem(expected="one JSON object", actual=repr(text)[:200], pointer="output_text")


def _text(exchange: Exchange) -> str:
    parts = [part for item in items(exchange, "message") for part in item.get("content") or []]
    return "".join(str(part.get("text")) for part in parts if isinstance(part, dict))


def _same_usage(key: str) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        """Compare the prompts of equal requests, which a server renders in the same way."""
        counts = []
        for place in (0, 1):
            usage = response(accepted(at(seen, place))).get("usage")
            counts.append(usage.get(key) if isinstance(usage, dict) else None)
        if not all(isinstance(count, int) for count in counts):
            raise Inconclusive("an answer has no usage; another check reports this")
        if counts[0] != counts[1]:
            shown, where = str(counts[1]), f"usage.{key}"
            yield Problem(
                expected=f"{counts[0]}, as without streaming", actual=shown, pointer=where, exchange=1
            )

    return judge


for _slug in ("responses/limits", "responses/tool"):
    check(f"{_slug}/same-usage", "Count the same prompt tokens in a stream", "RS-16")(
        _same_usage("input_tokens")
    )
