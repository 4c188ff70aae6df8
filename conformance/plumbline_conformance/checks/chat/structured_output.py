"""Check structured output on chat completions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from plumbline_conformance.checks.answers import choice, finished, parsed
from plumbline_conformance.checks.chat.shared_laws import pair
from plumbline_conformance.checks.laws import both
from plumbline_conformance.checks.request_reader import request_fields, requested_schema, requested_structure
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import Inconclusive, NotRequested, Problem, Target
from plumbline_conformance.suite.schema_validation import fits
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["PLACE", "document_of"]

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Zürich", "Paris"]},
        "warm": {"type": "boolean"},
        "kind": {"const": "place"},
    },
    "required": ["city", "warm", "kind"],
    "additionalProperties": False,
}
"""A schema whose documents are short for every model, because each value is one of a few."""


def _request(target: Target, question: str, **fields: object) -> dict[str, object]:
    given = {"max_tokens": 128, "temperature": 0, "seed": 1, **fields}
    return chat(target, messages=user(question), **given)


def _schema(target: Target, **fields: object) -> dict[str, object]:
    definition = {"name": "place", "strict": True, "schema": PLACE}
    output_format = {"type": "json_schema", "json_schema": definition}
    return _request(target, "Name a place, as JSON.", response_format=output_format, **fields)


pair("chat/json-schema", "An answer under a strict schema", _schema)


@both(
    "chat/json-schema/valid",
    ("Write content that validates", "SO-01"),
    ("Stream content that validates", "SO-09"),
)
def document_of(exchange: Exchange) -> Iterator[Problem]:
    """Check that the content is one JSON document that validates (SO-01, SO-09, SO-11)."""
    schema = requested_schema(exchange)
    if not fits(schema, parsed(_text(exchange))):
        shown = as_json(choice(exchange).content)[:200]
        yield Problem(expected="one document that validates", actual=shown, pointer="content")


def _text(exchange: Exchange) -> str:
    """Return the constrained text; inconclusive if the answer is a call or a refusal instead."""
    found = finished(choice(exchange))
    if found.finish_reason not in ("stop", None) and not found.content:
        raise Inconclusive(f"the answer is not text: it ended with {found.finish_reason}")
    if not found.content and request_fields(exchange).get("tools"):
        raise Inconclusive("the answer is not text")
    return found.content


def _object(target: Target) -> dict[str, object]:
    question = "Answer with a short JSON object."
    return _request(target, question, response_format={"type": "json_object"})


pair("chat/json-object", "An answer that is any object", _object)


@both(
    "chat/json-object/object",
    ("Write content that is one JSON object", "SO-02"),
    ("Stream content that is one JSON object", "SO-02"),
)
def _one_object(exchange: Exchange) -> Iterator[Problem]:
    content = _text(exchange)
    if not isinstance(parsed(content), dict):
        yield Problem(expected="one JSON object", actual=as_json(content)[:200], pointer="content")


def _cut(target: Target) -> dict[str, object]:
    return _schema(target, max_tokens=3)


pair("chat/json-cut", "A document that the token limit cuts", _cut)


@both(
    "chat/json-cut/length",
    ("Never finish a cut document with `stop`", "SO-05"),
    ("Never finish a cut streamed document with `stop`", "SO-05"),
)
def _cut_document(exchange: Exchange) -> Iterator[Problem]:
    found = choice(exchange)
    if found.refusal:
        raise Inconclusive("the model refused to answer")
    if found.finish_reason in ("stop", None) and not fits(requested_schema(exchange), parsed(found.content)):
        if not found.content and request_fields(exchange).get("tools"):
            raise Inconclusive("the answer is not text")
        yield Problem(
            expected="length", actual=as_json(found.finish_reason), pointer="choices[0].finish_reason"
        )


def _with_reasoning(target: Target) -> dict[str, object]:
    return _schema(target, reasoning_effort="low", max_tokens=384)


pair("chat/json-reasoning", "A schema for a model that reasons", _with_reasoning, needs=("reasoning",))


both(
    "chat/json-reasoning/valid",
    ("Constrain the content to the schema, but not the reasoning", "SO-11"),
    ("Constrain streamed content to the schema after reasoning", "SO-11"),
)(document_of)


def _without_reasoning(target: Target) -> dict[str, object]:
    system: dict[str, object] = {
        "role": "system",
        "content": "You are a helpful assistant. Answer in JSON.",
    }
    messages = [system, *user("Who are you?")]
    fields = {"reasoning_effort": "none", "response_format": {"type": "json_object"}}
    return chat(target, messages=messages, max_tokens=128, temperature=0, seed=1, **fields)


pair("chat/json-reasoning-off", "An object with reasoning off", _without_reasoning, needs=("reasoning",))


both(
    "chat/json-reasoning-off/object",
    ("Write one JSON object if reasoning is off", "SO-02"),
    ("Stream one JSON object if reasoning is off", "SO-02"),
)(_one_object)


@both(
    "chat/json-reasoning-off/none",
    ("Reason nothing before an object if reasoning is off", "ST-19"),
    ("Stream no reasoning before an object if reasoning is off", "ST-19"),
)
def _no_reasoning(exchange: Exchange) -> Iterator[Problem]:
    """Detect a constraint that lets the model think although reasoning is off: the server decides, not the model."""
    if request_fields(exchange).get("reasoning_effort") != "none":
        raise NotRequested("reasoning is not off")
    reasoning = choice(exchange).reasoning
    if reasoning:
        where = "choices[0].message.reasoning_content"
        yield Problem(expected="no reasoning", actual=as_json(reasoning)[:200], pointer=where)
    usage = exchange.json.get("usage") if isinstance(exchange.json, dict) else None
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    counted = details.get("reasoning_tokens") if isinstance(details, dict) else None
    if not reasoning and counted:
        where = "usage.completion_tokens_details.reasoning_tokens"
        yield Problem(expected="0", actual=as_json(counted), pointer=where)


MARKUP = "<think>a</think><tool_call>{}</tool_call>[TOOL_CALLS]<|channel|>"
"""What models write around thinking and calls."""


def _with_markup(target: Target) -> dict[str, object]:
    schema = {
        "type": "object",
        "properties": {"text": {"const": MARKUP}},
        "required": ["text"],
        "additionalProperties": False,
    }
    definition = {"name": "markup", "strict": True, "schema": schema}
    output_format = {"type": "json_schema", "json_schema": definition}
    return _request(target, "Write the text, as JSON.", response_format=output_format)


pair("chat/json-markup", "A document with text like the markup of calls", _with_markup)


both(
    "chat/json-markup/valid",
    ("Leave text like markup in a document", "SO-01"),
    ("Leave text like markup in a streamed document", "SO-09"),
)(document_of)


REGEX = "20[0-9]{2}"


def _regex(target: Target) -> dict[str, object]:
    return _request(target, "Name a year.", structured_outputs={"regex": REGEX})


pair("chat/regex", "An answer under a regular expression", _regex, needs=("structured",))


@both(
    "chat/regex/matches",
    ("Write content that matches as a whole", "SO-12"),
    ("Stream content that matches as a whole", "SO-12"),
)
def _matching(exchange: Exchange) -> Iterator[Problem]:
    """Check only our own regex, because Python may read others differently or take too long."""
    pattern = requested_structure(exchange, "regex")
    found = finished(choice(exchange))
    if pattern != REGEX:
        raise NotRequested("the regular expression is not that of the scenario")
    if not re.fullmatch(REGEX, found.content):
        yield Problem(expected=REGEX, actual=as_json(found.content)[:200], pointer="content")


COLOURS = ["violet", "maroon"]


def _choice(target: Target) -> dict[str, object]:
    return _request(target, "Name a colour.", structured_outputs={"choice": COLOURS})


pair("chat/choice", "An answer that is one of two", _choice, needs=("structured",))


@both(
    "chat/choice/one-of",
    ("Write one of the choices and nothing else", "SO-12"),
    ("Stream one of the choices and nothing else", "SO-12"),
)
def _one_choice(exchange: Exchange) -> Iterator[Problem]:
    choices = requested_structure(exchange, "choice")
    found = finished(choice(exchange))
    if isinstance(choices, list) and found.content not in choices:
        shown = " or ".join(map(str, choices))[:200]
        yield Problem(expected=shown, actual=as_json(found.content)[:200], pointer="content")
