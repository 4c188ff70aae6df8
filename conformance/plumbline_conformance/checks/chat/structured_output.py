"""Structured output on chat completions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from plumbline_conformance.checks.answer_fold import choice, finished, parsed
from plumbline_conformance.checks.chat.shared_laws import pair
from plumbline_conformance.checks.laws import both
from plumbline_conformance.checks.request_reader import request_fields, requested_schema, requested_structure
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.model import Inconclusive, NotRequested, Problem, Target
from plumbline_conformance.suite.schema_validation import fits
from plumbline_conformance.transcript.model import Exchange

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
"""Short whatever the model would like to say: every value is one of a few."""


def _request(target: Target, question: str, **fields: object) -> dict[str, object]:
    given = {"max_tokens": 128, "temperature": 0, "seed": 1, **fields}
    return chat(target, messages=user(question), **given)


def _schema(target: Target, **fields: object) -> dict[str, object]:
    held = {"name": "place", "strict": True, "schema": PLACE}
    form = {"type": "json_schema", "json_schema": held}
    return _request(target, "Name a place, as JSON.", response_format=form, **fields)


pair("chat/json-schema", "An answer under a strict schema", _schema)


@both(
    "chat/json-schema/valid",
    ("Write content that validates", "SO-01"),
    ("Stream content that validates", "SO-09"),
)
def document_of(exchange: Exchange) -> Iterator[Problem]:
    """SO-01, SO-09, SO-11: the content is one document, and the schema has it."""
    schema = requested_schema(exchange)
    if not fits(schema, parsed(_text(exchange))):
        shown = repr(choice(exchange).content)[:200]
        yield Problem(expected="one document that validates", actual=shown, pointer="content")


def _text(exchange: Exchange) -> str:
    """The text that a form was promised for; a call and a refusal are answers of another kind."""
    found = finished(choice(exchange))
    if found.reason not in ("stop", None) and not found.content:
        raise Inconclusive(f"the answer is no text: it ended with {found.reason}")
    if not found.content and request_fields(exchange).get("tools"):
        raise Inconclusive("the answer is no text")
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
def _an_object(exchange: Exchange) -> Iterator[Problem]:
    content = _text(exchange)
    if not isinstance(parsed(content), dict):
        yield Problem(expected="one JSON object", actual=repr(content)[:200], pointer="content")


def _cut(target: Target) -> dict[str, object]:
    return _schema(target, max_tokens=3)


pair("chat/json-cut", "A document that the token limit cuts", _cut)


@both(
    "chat/json-cut/length",
    ("Never call half a document complete", "SO-05"),
    ("Never call half a streamed document complete", "SO-05"),
)
def _not_called_whole(exchange: Exchange) -> Iterator[Problem]:
    found = choice(exchange)
    if found.reason in ("stop", None) and not fits(requested_schema(exchange), parsed(found.content)):
        if not found.content and request_fields(exchange).get("tools"):
            raise Inconclusive("the answer is no text")
        yield Problem(expected="length", actual=repr(found.reason), pointer="choices[0].finish_reason")


def _reasoned(target: Target) -> dict[str, object]:
    return _schema(target, reasoning_effort="low", max_tokens=384)


pair("chat/json-reasoning", "A schema for a model that thinks", _reasoned, needs=("reasoning",))


both(
    "chat/json-reasoning/valid",
    ("Hold the content to the schema, and not the reasoning", "SO-11"),
    ("Hold streamed content to the schema after reasoning", "SO-11"),
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
    """Patterns differ between languages: but for ours, one that Python does not read, or not soon, proves nothing."""
    pattern = requested_structure(exchange, "regex")
    found = finished(choice(exchange))
    if pattern != REGEX:
        raise NotRequested("the pattern is not the suite's own")
    if not re.fullmatch(REGEX, found.content):
        yield Problem(expected=REGEX, actual=repr(found.content)[:200], pointer="content")


ONES = ["violet", "maroon"]


def _choice(target: Target) -> dict[str, object]:
    return _request(target, "Name a colour.", structured_outputs={"choice": ONES})


pair("chat/choice", "An answer that is one of two", _choice, needs=("structured",))


@both(
    "chat/choice/one-of",
    ("Write one of the choices and nothing else", "SO-12"),
    ("Stream one of the choices and nothing else", "SO-12"),
)
def _one_of(exchange: Exchange) -> Iterator[Problem]:
    ones = requested_structure(exchange, "choice")
    found = finished(choice(exchange))
    if isinstance(ones, list) and found.content not in ones:
        shown = " or ".join(map(str, ones))[:200]
        yield Problem(expected=shown, actual=repr(found.content)[:200], pointer="content")
