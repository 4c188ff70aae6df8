"""Check schemas and functions with values of every type, and the results of functions."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answers import parsed
from plumbline_conformance.checks.common import longer_prompt
from plumbline_conformance.checks.laws import both
from plumbline_conformance.checks.request_reader import requested_tools
from plumbline_conformance.checks.responses.output_options import document_of
from plumbline_conformance.checks.responses.shared_laws import create_response, pair
from plumbline_conformance.checks.responses.tools import calls_of
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.scenario import Problem, Request, Target, check, scenario
from plumbline_conformance.suite.schema_validation import fits
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
set_values = tools.flat(tools.function("set_values", tools.TYPED))


def _nested(target: Target, **fields: object) -> dict[str, object]:
    output_format = {"type": "json_schema", "name": "nested", "strict": True, "schema": tools.NESTED}
    given = {"max_output_tokens": 256, **fields}
    return create_response(target, "Greet, as JSON.", text={"format": output_format}, **given)


pair(
    "responses/json-nested",
    "A schema with objects in objects, and text of several bytes a character",
    _nested,
)
both(
    "responses/json-nested/valid",
    ("Write text that validates, with nested objects", "SO-01"),
    ("Stream text that validates, with nested objects", "SO-09"),
)(document_of)


def _beside_tools(target: Target) -> dict[str, object]:
    return _nested(target, tools=[tools.flat(tools.weather)])


pair(
    "responses/json-tools",
    "A schema beside a function that need not be called",
    _beside_tools,
    needs=("tools",),
)
both(
    "responses/json-tools/valid",
    ("Write text that validates beside functions", "SO-01"),
    ("Stream text that validates beside functions", "SO-09"),
)(document_of)


def _typed(target: Target) -> dict[str, object]:
    named = {"type": "function", "name": "set_values"}
    given = {"max_output_tokens": 256, "tools": [set_values], "tool_choice": named}
    return create_response(target, tools.SET_TYPED, **given)


pair("responses/tool-typed", "A function with parameters of every type", _typed, needs=("tools",))


@both(
    "responses/tool-typed/arguments",
    ("Write numbers, booleans, arrays and objects as arguments", "TOOL-01"),
    ("Stream numbers, booleans, arrays and objects as arguments", "TOOL-01"),
    milder=True,
)
def _arguments(exchange: Exchange) -> Iterator[Problem]:
    """Check the types of a function that is not strict: a SHOULD, because only strict arguments must fit the schema."""
    offered = requested_tools(exchange)
    for call in calls_of(exchange, forced=True):
        wanted, arguments = offered.get(str(call.get("name")), {}).get("parameters"), call.get("arguments")
        value = parsed(arguments) if isinstance(arguments, str) else None
        if wanted == tools.TYPED and not fits(tools.TYPES, value):
            shown = as_json(arguments)[:200]
            yield Problem(
                expected="arguments of the function's types", actual=shown, pointer="item.arguments"
            )


_LONG_CITY = "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch"


@scenario("responses/tool-result", "A call with a short and with a long result", needs=("responses", "tools"))
def results(target: Target) -> Steps:
    """Send a call with each result, and a call with longer arguments and the short one."""
    sent = {name: ("Paris", result) for name, result in tools.RESULTS.items()}
    sent["call"] = _LONG_CITY, tools.RESULTS["short"]
    for name, (city, result) in sent.items():
        call = {
            "type": "function_call",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": json.dumps({"city": city}),
        }
        output = {"type": "function_call_output", "call_id": "call_1", "output": result}
        body = create_response(
            target,
            [*user("The weather?"), call, output],
            tools=[tools.flat(tools.weather)],
            max_output_tokens=16,
        )
        yield Request(name=name, path="/responses", json=body)


@check("responses/tool-result/read", "Show the output of a function to the model", "TOOL-10")
def results_read(seen: Transcript) -> Iterator[Problem]:
    """Detect a server that drops outputs: a longer one then costs no further tokens of the input."""
    yield from longer_prompt(seen, "short", "long")


# A SHOULD: the templates of some models show results without their calls.
@check("responses/tool-result/call", "Show an earlier call to the model", "TOOL-10", milder=True)
def call_read(seen: Transcript) -> Iterator[Problem]:
    """Detect a server that drops calls: longer arguments then cost no further tokens of the input."""
    yield from longer_prompt(seen, "short", "call")
