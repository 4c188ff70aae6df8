"""Check schemas and tools with values of every type: nested, beside tools, and in several choices."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answers import called, choices, finished, parsed
from plumbline_conformance.checks.chat.shared_laws import pair
from plumbline_conformance.checks.chat.structured_output import document_of
from plumbline_conformance.checks.common import accepted, at, longer_prompt
from plumbline_conformance.checks.laws import both
from plumbline_conformance.checks.request_reader import requested_schema, requested_tools
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.schema_validation import fits
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
set_values = tools.function("set_values", tools.TYPED)


def _nested(target: Target, **fields: object) -> dict[str, object]:
    definition = {"name": "nested", "strict": True, "schema": tools.NESTED}
    given = {"max_tokens": 256, "temperature": 0, "seed": 1, **fields}
    output_format = {"type": "json_schema", "json_schema": definition}
    return chat(target, messages=user("Greet, as JSON."), response_format=output_format, **given)


pair("chat/json-nested", "A schema with objects in objects, and text of several bytes a character", _nested)
both(
    "chat/json-nested/valid",
    ("Write content that validates, with nested objects", "SO-01"),
    ("Stream content that validates, with nested objects", "SO-09"),
)(document_of)


def _in_choices(target: Target) -> dict[str, object]:
    return _nested(target, n=2)


pair("chat/json-choices", "A schema for two choices", _in_choices)


@both(
    "chat/json-choices/valid",
    ("Write content that validates in every choice", "SO-01"),
    ("Stream content that validates in every choice", "SO-09"),
)
def _every_choice(exchange: Exchange) -> Iterator[Problem]:
    schema = requested_schema(exchange)
    for place, found in enumerate(choices(exchange)):
        if not fits(schema, parsed(finished(found).content)):
            where, shown = f"choices[{place}].content", as_json(found.content)[:200]
            yield Problem(expected="one document that validates", actual=shown, pointer=where)


def _beside_tools(target: Target) -> dict[str, object]:
    return _nested(target, tools=[tools.weather])


pair("chat/json-tools", "A schema beside a tool that need not be called", _beside_tools, needs=("tools",))
both(
    "chat/json-tools/valid",
    ("Write content that validates beside tools", "SO-01"),
    ("Stream content that validates beside tools", "SO-09"),
)(document_of)


def _typed(target: Target) -> dict[str, object]:
    named = {"type": "function", "function": {"name": "set_values"}}
    given = {"max_tokens": 256, "temperature": 0, "seed": 1, "tool_choice": named}
    return chat(target, messages=user(tools.SET_TYPED), tools=[set_values], **given)


pair("chat/tool-typed", "A tool with parameters of every type", _typed, needs=("tools",))


@both(
    "chat/tool-typed/arguments",
    ("Write numbers, booleans, arrays and objects as arguments", "TOOL-01"),
    ("Stream numbers, booleans, arrays and objects as arguments", "CS-12"),
    milder=True,
)
def _arguments(exchange: Exchange) -> Iterator[Problem]:
    """Check the types of a tool that is not strict: a SHOULD, because only strict arguments must fit the schema."""
    offered = requested_tools(exchange)
    for call in called(exchange, forced=True):
        wanted = offered.get(call.name, {}).get("parameters")
        if wanted == tools.TYPED and not fits(tools.TYPES, parsed(call.arguments)):
            shown = as_json(call.arguments)[:200]
            yield Problem(expected="arguments of the tool's types", actual=shown, pointer="tool_calls[0]")


ATTEMPTS = 4


@scenario("chat/seed-stream", "One seed in four equal streams that sample")
def seed(target: Target) -> Steps:
    """Sample as freely as `chat/seed`, because a server may seed streams in another place."""
    messages = user("Write any words that come to mind.")
    body = chat(target, messages=messages, max_tokens=32, temperature=2, seed=target.seed, stream=True)
    for number in range(1, ATTEMPTS + 1):
        yield Request(name=f"sample/{number}", path="/chat/completions", json=body)


@check("chat/seed-stream/repeated", "Stream the same text again with the same seed", "CHAT-11")
def seed_repeated(seen: Transcript) -> Iterator[Problem]:
    """Accuse a server only if no two of the answers are equal: the seed then has no effect."""
    answers = [accepted(at(seen, f"sample/{number}")) for number in range(1, ATTEMPTS + 1)]
    marks = {
        as_json(one.get("system_fingerprint"))
        for each in answers
        for one in each.chunks
        if isinstance(one, dict)
    }
    if len(marks) > 1:
        raise Inconclusive("the fingerprints differ")
    found = ["".join(one.content for one in choices(each)) for each in answers]
    if len(set(found)) == len(found):
        wanted, shown = "two equal texts of four", as_json(found)[:200]
        yield Problem(expected=wanted, actual=shown, pointer="content", exchange=answers[-1].name)


@scenario("chat/tool-result", "A call with a short and with a long result", needs=("tools",))
def results(target: Target) -> Steps:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    for name, result in tools.RESULTS.items():
        answer = {"role": "assistant", "content": None, "tool_calls": [call]}
        turns = [*user("The weather?"), answer, {"role": "tool", "tool_call_id": "call_1", "content": result}]
        body = chat(target, messages=turns, tools=[tools.weather], temperature=0)
        yield Request(name=name, path="/chat/completions", json=body)


@check("chat/tool-result/read", "Show the result of a tool to the model", "TOOL-10")
def results_read(seen: Transcript) -> Iterator[Problem]:
    """Detect a server that drops results: a longer one then costs no further tokens of the prompt."""
    yield from longer_prompt(seen, "short", "long", "prompt_tokens")
