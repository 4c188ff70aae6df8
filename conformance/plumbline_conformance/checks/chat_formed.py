"""Structured output on chat completions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from plumbline_conformance.case import Problem, Target, check
from plumbline_conformance.checks.capabilities import user
from plumbline_conformance.checks.chat_laws import pair
from plumbline_conformance.checks.errors import chat
from plumbline_conformance.checks.reading import choice, finished, parsed, stream_of, whole_of
from plumbline_conformance.schema import fits
from plumbline_conformance.transcript import Exchange, Transcript

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


def _formed(target: Target, question: str, **fields: object) -> dict[str, object]:
    given = {"max_tokens": 128, "temperature": 0, "seed": 1, **fields}
    return chat(target, messages=user(question), **given)


def _schema(target: Target, **fields: object) -> dict[str, object]:
    held = {"name": "place", "strict": True, "schema": PLACE}
    form = {"type": "json_schema", "json_schema": held}
    return _formed(target, "Name a place, as JSON.", response_format=form, **fields)


pair("chat/json-schema", "An answer under a strict schema", _schema)


@check("chat/json-schema/valid", "Write content that validates", "SO-01")
def schema_valid(seen: Transcript) -> Iterator[Problem]:
    yield from document_of(whole_of(seen))


@check("chat/json-schema/stream-valid", "Stream content that validates", "SO-09")
def schema_stream_valid(seen: Transcript) -> Iterator[Problem]:
    yield from document_of(stream_of(seen))


def document_of(exchange: Exchange) -> Iterator[Problem]:
    """The content is one document, and it is a place."""
    found = finished(choice(exchange))
    if not fits(PLACE, parsed(found.content)):
        shown = repr(found.content)[:200]
        yield Problem(expected="one document that validates", actual=shown, pointer="content")


def _object(target: Target) -> dict[str, object]:
    question = "Answer with a short JSON object."
    return _formed(target, question, response_format={"type": "json_object"})


pair("chat/json-object", "An answer that is any object", _object)


@check("chat/json-object/object", "Write content that is one JSON object", "SO-02")
def object_whole(seen: Transcript) -> Iterator[Problem]:
    yield from _an_object(whole_of(seen))


@check("chat/json-object/stream-object", "Stream content that is one JSON object", "SO-09", "SO-02")
def object_stream(seen: Transcript) -> Iterator[Problem]:
    yield from _an_object(stream_of(seen))


def _an_object(exchange: Exchange) -> Iterator[Problem]:
    found = finished(choice(exchange))
    if not isinstance(parsed(found.content), dict):
        yield Problem(expected="one JSON object", actual=repr(found.content)[:200], pointer="content")


def _cut(target: Target) -> dict[str, object]:
    return _schema(target, max_tokens=3)


pair("chat/json-cut", "A document that the token limit cuts", _cut)


@check("chat/json-cut/length", "Never call half a document complete", "SO-05")
def cut_length(seen: Transcript) -> Iterator[Problem]:
    yield from _not_called_whole(whole_of(seen))


@check("chat/json-cut/stream-length", "Never call half a streamed document complete", "SO-05")
def cut_stream_length(seen: Transcript) -> Iterator[Problem]:
    yield from _not_called_whole(stream_of(seen))


def _not_called_whole(exchange: Exchange) -> Iterator[Problem]:
    found = choice(exchange)
    if found.reason != "length" and not fits(PLACE, parsed(found.content)):
        yield Problem(expected="length", actual=repr(found.reason), pointer="choices[0].finish_reason")


def _reasoned(target: Target) -> dict[str, object]:
    return _schema(target, reasoning_effort="low", max_tokens=384)


pair("chat/json-reasoning", "A schema for a model that thinks", _reasoned, needs=("reasoning",))


@check("chat/json-reasoning/valid", "Hold the content to the schema, and not the reasoning", "SO-11")
def reasoned_valid(seen: Transcript) -> Iterator[Problem]:
    yield from document_of(whole_of(seen))


@check("chat/json-reasoning/stream-valid", "Hold streamed content to the schema after reasoning", "SO-11")
def reasoned_stream_valid(seen: Transcript) -> Iterator[Problem]:
    yield from document_of(stream_of(seen))


REGEX = "20[0-9]{2}"


def _regex(target: Target) -> dict[str, object]:
    return _formed(target, "Name a year.", structured_outputs={"regex": REGEX})


pair("chat/regex", "An answer under a regular expression", _regex, needs=("structured",))


@check("chat/regex/matches", "Write content that matches as a whole", "SO-12")
def regex_whole(seen: Transcript) -> Iterator[Problem]:
    yield from _matching(whole_of(seen))


@check("chat/regex/stream-matches", "Stream content that matches as a whole", "SO-12")
def regex_stream(seen: Transcript) -> Iterator[Problem]:
    yield from _matching(stream_of(seen))


def _matching(exchange: Exchange) -> Iterator[Problem]:
    found = finished(choice(exchange))
    if not re.fullmatch(REGEX, found.content):
        yield Problem(expected=REGEX, actual=repr(found.content)[:200], pointer="content")


ONES = ["violet", "maroon"]


def _choice(target: Target) -> dict[str, object]:
    return _formed(target, "Name a colour.", structured_outputs={"choice": ONES})


pair("chat/choice", "An answer that is one of two", _choice, needs=("structured",))


@check("chat/choice/one-of", "Write one of the choices and nothing else", "SO-12")
def choice_whole(seen: Transcript) -> Iterator[Problem]:
    yield from _one_of(whole_of(seen))


@check("chat/choice/stream-one-of", "Stream one of the choices and nothing else", "SO-12")
def choice_stream(seen: Transcript) -> Iterator[Problem]:
    yield from _one_of(stream_of(seen))


def _one_of(exchange: Exchange) -> Iterator[Problem]:
    found = finished(choice(exchange))
    if found.content not in ONES:
        yield Problem(expected=" or ".join(ONES), actual=repr(found.content)[:200], pointer="content")
