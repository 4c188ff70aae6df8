"""Check each keyword of JSON Schema by itself, in formats and in strict tools.

A server that reads types and ignores patterns or bounds answers most schemas rightly by chance. So each question asks
for a value that its keyword does not allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.checks.answers import called, choice, finished, parsed
from plumbline_conformance.checks.common import accepted
from plumbline_conformance.checks.responses.shared_laws import constrained_text, create_response
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.suite.schema_validation import fits
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Schema = dict[str, Any]
Steps = Generator[Request, Exchange, None]
Row = tuple[str, Schema, Schema]
"""The value that the question asks for, its schema, and further definitions."""

COLOUR = {"colour": {"type": "string", "enum": ["violet", "maroon"]}}
PAIR: Schema = {
    "type": "object",
    "properties": {
        "left": {"type": "object", "properties": {"up": {"type": "boolean"}}, "required": ["up"]},
        "right": {"type": "boolean"},
    },
    "required": ["left", "right"],
}
PAIR["additionalProperties"] = PAIR["properties"]["left"]["additionalProperties"] = False
KEYWORDS: dict[str, Row] = {
    "pattern": ("hello", {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"}, {}),
    "minLength": ("a", {"type": "string", "minLength": 6, "maxLength": 8}, {}),
    "maxLength": ("a long sentence about the sea", {"type": "string", "maxLength": 4}, {}),
    "bounds": ("1000", {"type": "integer", "minimum": 7, "maximum": 9}, {}),
    "exclusive": ("-5", {"type": "integer", "exclusiveMinimum": 40, "exclusiveMaximum": 42}, {}),
    "multipleOf": ("7", {"type": "integer", "multipleOf": 25, "minimum": 25, "maximum": 75}, {}),
    "format": ("tomorrow", {"type": "string", "format": "date"}, {}),
    "$ref": ("green", {"$ref": "#/$defs/colour"}, COLOUR),
    "anyOf": ("green", {"anyOf": [{"const": "violet"}, {"type": "integer", "enum": [7]}]}, {}),
    "const": ("green", {"const": "violet"}, {}),
    "enum": ("green", {"enum": ["violet", 7, True, None]}, {}),
    "nested": ("green", PAIR, {}),
    "items": (
        "green",
        {"type": "array", "items": {"$ref": "#/$defs/colour"}, "minItems": 2, "maxItems": 3},
        COLOUR,
    ),
}
"""By the keyword that is looked at. Each document has few tokens, and one shape for every model."""
CALLED = ("pattern", "bounds", "$ref", "enum", "items")
"""Those that strict tools have too."""
DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])")
MOST = 96
"""The token limit."""


def schema_of(name: str) -> Schema:
    """Return the schema of an object with one member, `value`."""
    _, value, definitions = KEYWORDS[name]
    whole: Schema = {"type": "object", "properties": {"value": value}, "required": ["value"]}
    whole["additionalProperties"] = False
    return {**whole, "$defs": definitions} if definitions else whole


def _question(name: str) -> str:
    return f"Answer in JSON. The value is: {KEYWORDS[name][0]}"


@scenario("chat/json-keywords", "A strict schema for each keyword, which the answer asked for would break")
def formats(target: Target) -> Steps:
    for name in KEYWORDS:
        definition = {"name": "answer", "strict": True, "schema": schema_of(name)}
        asked = {"messages": user(_question(name)), "max_tokens": MOST, "temperature": 0}
        body = chat(target, **asked, response_format={"type": "json_schema", "json_schema": definition})
        yield Request(name=name, path="/chat/completions", json=body)


@scenario(
    "chat/tool-keywords",
    "A strict tool for each of some keywords, which the call asked for would break",
    needs=("tools",),
)
def calls(target: Target) -> Steps:
    for name in CALLED:
        function = {"name": "set_value", "strict": True, "parameters": schema_of(name)}
        choice = {"type": "function", "function": {"name": "set_value"}}
        asked = {"messages": user(_question(name)), "max_tokens": MOST, "temperature": 0}
        body = chat(target, **asked, tools=[{"type": "function", "function": function}], tool_choice=choice)
        yield Request(name=name, path="/chat/completions", json=body)


@scenario(
    "responses/json-keywords",
    "A strict schema for each of some keywords, which the answer asked for would break",
    needs=("responses",),
)
def responses(target: Target) -> Steps:
    for name in CALLED:
        output = {"type": "json_schema", "name": "answer", "strict": True, "schema": schema_of(name)}
        body = create_response(target, _question(name), text={"format": output}, max_output_tokens=MOST)
        yield Request(name=name, path="/responses", json=body)


def _content(exchange: Exchange) -> str:
    return finished(choice(exchange)).content


def _arguments(exchange: Exchange) -> str:
    return called(exchange, forced=True)[0].arguments


def _valid(read: Callable[[Exchange], str]) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        """Judge the answers to the keywords that the server takes: it may refuse one by name (SO-03)."""
        reasons: list[Exception] = []
        for exchange in seen.exchanges:
            try:
                text = read(accepted(exchange))
            except (Inconclusive, Rejected) as reason:
                reasons.append(reason)
                continue
            if not allows(exchange.name, parsed(text)):
                wanted = f"a value that {exchange.name} allows, or a refusal of the schema"
                yield Problem(
                    expected=wanted, actual=as_json(text)[:200], exchange=exchange.name, pointer="content"
                )
        if len(reasons) == len(seen.exchanges):
            raise reasons[0] if reasons else Inconclusive("no request was sent")

    return judge


def allows(name: str, document: Any) -> bool:
    """Return whether a document is valid under the schema of a keyword, including its `format`."""
    if not fits(schema_of(name), document):
        return False
    return name != "format" or DATE.fullmatch(document["value"]) is not None


check("chat/json-keywords/valid", "Enforce each keyword of a strict schema, or refuse it", "SO-01")(
    _valid(_content)
)
check("chat/tool-keywords/valid", "Enforce each keyword of a strict tool, or refuse it", "TOOL-01")(
    _valid(_arguments)
)
check("responses/json-keywords/valid", "Enforce each keyword of a strict schema, or refuse it", "SO-01")(
    _valid(constrained_text)
)
