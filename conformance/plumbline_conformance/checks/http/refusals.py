"""Check invalid requests, each with one wrong field.

Each group is a table of requests, sent as one scenario, with four checks: the request is refused, with a valid error
object, with the name of the field, and without internals of the server.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping

import msgspec

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import (
    answered,
    envelope,
    error_of,
    refused,
)
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    Problem,
    Request,
    Target,
    about,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
Row = tuple[str, dict[str, object]]
"""The name of the wrong field, and the fields that make the request invalid."""
Base = Callable[[Target], dict[str, object]]
LEAKS = re.compile(
    r"Traceback \(most recent|\.py\\?\", line \d|/site-packages/|/home/\w+/|panicked at|at 0x[0-9a-f]{8}"
)
"""Traces of internals in a JSON body, where quotes are escaped."""


def refusals(
    slug: str,
    title: str,
    path: str,
    base: Base,
    rows: list[Row],
    rule: str,
    needs: tuple[str, ...] = (),
    named: bool = True,
    field_rules: Mapping[str, str] | None = None,
) -> None:
    """Register a group of invalid requests.

    Args:
        slug: the id of the scenario.
        title: the title of the scenario.
        path: the path of the requests.
        base: returns the valid request.
        rows: the fields that make it invalid.
        rule: the rule broken by a server that accepts them.
        needs: required capabilities.
        named: whether each request has one wrong field, which the error must name.
        field_rules: the rules of single fields, instead of `rule`.
    """
    named_rows = _by_name(rows)
    rules = {rule: None, **dict.fromkeys((field_rules or {}).values())}

    def steps(target: Target) -> Steps:
        for name, (_, fields) in named_rows.items():
            yield Request(name=name, path=path, json={**base(target), **fields})

    scenario(slug, title, needs=needs)(steps)

    def sent(seen: Transcript) -> list[Exchange]:
        return [exchange for exchange in seen.exchanges if exchange.name in named_rows]

    @check(f"{slug}/refused", "Refuse each of them with 400 or 422", *rules)
    def each(seen: Transcript) -> Iterator[Problem]:
        for exchange in sent(seen):
            field, _ = named_rows[exchange.name]
            broken = (field_rules or {}).get(field, rule)
            for problem in refused(exchange, 400, 422):
                yield msgspec.structs.replace(problem, pointer=field, rule=broken)

    @check(f"{slug}/envelope", "Write the error object with all its keys", "ERR-01")
    def envelope_shape(seen: Transcript) -> Iterator[Problem]:
        for exchange in _refused(sent(seen)):
            yield from envelope(exchange)

    @check(f"{slug}/no-leak", "Show no internals of the server", "ERR-13", law=no_leak, of="refusal")
    def leak(seen: Transcript) -> Iterator[Problem]:
        for exchange in _refused(sent(seen), crashed=True):
            field, _ = named_rows[exchange.name]
            for problem in about(exchange, no_leak(exchange)):
                yield msgspec.structs.replace(problem, pointer=field)

    if not named:
        return

    @check(f"{slug}/param", "Name the offending field in `param`", "ERR-05")
    def param(seen: Transcript) -> Iterator[Problem]:
        for exchange in _refused(sent(seen)):
            field, _ = named_rows[exchange.name]
            found = (error_of(exchange) or {}).get("param")
            if not isinstance(found, str) or not (_within(found, field) or _within(field, found)):
                where = exchange.name
                yield Problem(expected=field, actual=as_json(found), pointer="error.param", exchange=where)


def no_leak(exchange: Exchange) -> Iterator[Problem]:
    """Check that a refusal shows no traceback, path or address (ERR-13)."""
    shown = LEAKS.search(answered(exchange).body.decode("utf-8", "replace"))
    if shown:
        yield Problem(expected="no internals", actual=as_json(shown[0]), pointer="body")


def _within(path: str, field: str) -> bool:
    """Return whether a path is the field or below it."""
    return path == field or path.startswith((f"{field}.", f"{field}["))


def _by_name(rows: list[Row]) -> dict[str, Row]:
    """Return the rows by the names of their requests: the wrong field, with a number if several rows have it."""
    counts: Counter[str] = Counter()
    named: dict[str, Row] = {}
    for row in rows:
        field = row[0]
        counts[field] += 1
        named[field if counts[field] == 1 else f"{field}/{counts[field]}"] = row
    return named


def _refused(sent: list[Exchange], *, crashed: bool = False) -> list[Exchange]:
    wanted = (400, 422, 500) if crashed else (400, 422)
    found = [exchange for exchange in sent if answered(exchange).status in wanted]
    if not found:
        raise Inconclusive("nothing was refused; another check reports this")
    return found


def _plain(target: Target) -> dict[str, object]:
    return chat(target)


def _input(target: Target) -> dict[str, object]:
    return create_response(target, "Hi", max_output_tokens=16)


def _prompt(target: Target) -> dict[str, object]:
    return {"model": target.model, "prompt": "Hi", "max_tokens": 1}


HUGE = 10**9
refusals(
    "errors/chat-bounds",
    "Numbers and lists out of range in chat completions",
    "/chat/completions",
    _plain,
    [
        ("frequency_penalty", {"frequency_penalty": -2.5}),
        ("top_p", {"top_p": 1.5}),
        ("n", {"n": 129}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_completion_tokens", {"max_completion_tokens": -1}),
        ("stop", {"stop": ["a", "b", "c", "d", "e"]}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": HUGE}),
        ("logit_bias", {"logit_bias": {"1": 101}}),
    ],
    "ERR-07",
)
refusals(
    "errors/chat-types",
    "Wrong types in chat completions",
    "/chat/completions",
    _plain,
    [
        ("n", {"n": "2"}),
        ("top_p", {"top_p": "1"}),
        ("logprobs", {"logprobs": "yes"}),
        ("stop", {"stop": 5}),
        ("tools", {"tools": {}}),
        ("messages[0]", {"messages": ["Hi"]}),
        ("messages[0].role", {"messages": [{"role": "nobody", "content": "Hi"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
    ],
    "ERR-08",
)
refusals(
    "errors/completions-bounds",
    "Numbers out of range in completions",
    "/completions",
    _prompt,
    [
        ("temperature", {"temperature": -0.1}),
        ("logprobs", {"logprobs": 6}),
        ("best_of", {"best_of": 21}),
        ("n", {"n": 0}),
        ("max_tokens", {"max_tokens": -1}),
    ],
    "ERR-07",
    needs=("completions",),
)
refusals(
    "errors/completions-types",
    "Wrong types in completions",
    "/completions",
    _prompt,
    [("prompt", {"prompt": 5}), ("echo", {"echo": "true"}), ("stream", {"stream": 1})],
    "ERR-08",
    needs=("completions",),
)
refusals(
    "errors/best-of",
    "Invalid combinations with `best_of`",
    "/completions",
    _prompt,
    [("best_of", {"best_of": 2, "stream": True}), ("best_of", {"best_of": 2, "n": 3})],
    "CMP-06",
    needs=("completions",),
)
refusals(
    "errors/responses-bounds",
    "Numbers out of range in responses",
    "/responses",
    _input,
    [
        ("temperature", {"temperature": 2.5}),
        ("top_p", {"top_p": -1}),
        ("top_logprobs", {"top_logprobs": 21}),
        ("metadata", {"metadata": {"key": "x" * 513}}),
    ],
    "ERR-07",
    needs=("responses",),
    field_rules={"metadata": "R-16"},
)
refusals(
    "errors/responses-limit",
    "A limit below the minimum",
    "/responses",
    _input,
    [("max_output_tokens", {"max_output_tokens": 15})],
    "R-17",
    needs=("responses",),
)
refusals(
    "errors/responses-types",
    "Wrong types in responses",
    "/responses",
    _input,
    [
        ("input", {"input": 5}),
        ("stream", {"stream": "true"}),
        ("max_output_tokens", {"max_output_tokens": "16"}),
        ("metadata", {"metadata": []}),
        ("tools", {"tools": "none"}),
        ("instructions", {"instructions": 5}),
    ],
    "ERR-08",
    needs=("responses",),
)
TOOLS = [tools.weather]
refusals(
    "errors/tool-choice",
    "Tool choices without such a tool",
    "/chat/completions",
    _plain,
    [
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "ping"}}}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "ping"}}}),
    ],
    "TOOL-08",
    needs=("tools",),
)
refusals(
    "errors/responses-tool-choice",
    "Tool choices without such a tool, in responses",
    "/responses",
    _input,
    [
        ("tool_choice", {"tool_choice": "required"}),
        (
            "tool_choice",
            {"tools": [tools.flat(tools.weather)], "tool_choice": {"type": "function", "name": "ping"}},
        ),
        ("tool_choice", {"tool_choice": {"type": "function", "name": "ping"}}),
    ],
    "TOOL-08",
    needs=("responses", "tools"),
)
CALLED: list[dict[str, object]] = [
    *user("Hi"),
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "ping", "arguments": "{}"}}],
    },
]
refusals(
    "errors/tool-messages",
    "Answers without calls, and calls without answers",
    "/chat/completions",
    _plain,
    [
        ("messages", {"messages": [*user("Hi"), {"role": "tool", "tool_call_id": "call_2", "content": "x"}]}),
        ("messages", {"messages": [*CALLED, {"role": "tool", "tool_call_id": "call_2", "content": "x"}]}),
        ("messages", {"messages": [*CALLED, *user("And?")]}),
    ],
    "CHAT-14",
    needs=("tools",),
)
ORPHAN = {"type": "function_call_output", "call_id": "call_2", "output": "x"}
ALONE = {"type": "function_call", "call_id": "call_1", "name": "ping", "arguments": "{}"}
refusals(
    "errors/tool-outputs",
    "Outputs without calls, and calls without outputs",
    "/responses",
    _input,
    [
        ("input", {"input": [*user("Hi"), ORPHAN]}),
        ("input", {"input": [*user("Hi"), ALONE, *user("And?")]}),
    ],
    "TOOL-12",
    needs=("responses", "tools"),
)


def _schema_format(schema: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


refusals(
    "errors/bad-schema",
    "Invalid schemas",
    "/chat/completions",
    _plain,
    [
        ("response_format", _schema_format({"type": "nonsense"})),
        ("response_format.json_schema.schema", _schema_format({"type": "object", "properties": "none"})),
        ("response_format.json_schema", _schema_format(5)),
    ],
    "SO-10",
)
refusals(
    "errors/schema-name",
    "Formats without a name, or with a wrong one",
    "/chat/completions",
    _plain,
    [
        ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
        ("response_format", {"response_format": {"type": "json_schema"}}),
        ("response_format", {"response_format": {"type": "nonsense"}}),
    ],
    "SO-04",
)
refusals(
    "errors/bad-regex",
    "An invalid regular expression",
    "/chat/completions",
    _plain,
    [("structured_outputs", {"structured_outputs": {"regex": "(["}})],
    "SO-10",
    needs=("structured",),
)
refusals(
    "errors/top-logprobs",
    "Alternatives without logprobs",
    "/chat/completions",
    _plain,
    [("top_logprobs", {"top_logprobs": 2})],
    "LP-05",
)
refusals(
    "errors/window",
    "A limit beyond every context window",
    "/chat/completions",
    lambda target: chat(target, messages=user("Hi"), stop=["e", "a", "i", "o"]),
    [("max_tokens", {"max_tokens": 10**8})],
    "ERR-09",
    named=False,
)
