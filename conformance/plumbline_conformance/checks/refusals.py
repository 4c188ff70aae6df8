"""Requests that no server may serve: each is wrong in one way, and says which field is wrong.

Every group is one scenario whose requests are rows of a table, and four checks: that each is refused, in the right
form, with the name of the field, without a trace of the server's inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.case import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.checks import tools
from plumbline_conformance.checks.capabilities import user
from plumbline_conformance.checks.common import accepted, answered, at, envelope, error_of, last, refused
from plumbline_conformance.checks.errors import JSON, chat
from plumbline_conformance.checks.responses_laws import asking
from plumbline_conformance.transcript import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
Row = tuple[str, dict[str, object]]
"""The field that is wrong, and what makes the request wrong."""
Base = Callable[[Target], dict[str, object]]
LEAKS = re.compile(
    r"Traceback \(most recent|\.py\", line \d|/site-packages/|/home/\w+/|panicked at|at 0x[0-9a-f]{8}"
)


def refusals(
    slug: str,
    title: str,
    path: str,
    base: Base,
    rows: list[Row],
    *rules: str,
    needs: tuple[str, ...] = (),
    named: bool = True,
) -> None:
    """Register a group of wrong requests; `named` if there is one field to blame in each."""

    def steps(target: Target) -> Steps:
        for _, fields in rows:
            yield Request(path=path, json={**base(target), **fields})

    scenario(slug, title, needs=needs)(steps)

    @check(f"{slug}/refused", "Refuse each of them with 400 or 422", *rules)
    def each(seen: Transcript) -> Iterator[Problem]:
        for (field, _), exchange in zip(rows, seen.exchanges, strict=False):
            for problem in refused(exchange, 400, 422):
                yield Problem(expected=problem.expected, actual=problem.actual, pointer=field)

    @check(f"{slug}/envelope", "Write the error object with all its keys", "ERR-01")
    def form(seen: Transcript) -> Iterator[Problem]:
        for _, exchange in _refused(rows, seen):
            yield from envelope(exchange)

    @check(f"{slug}/no-leak", "Say nothing of the server's inside", "ERR-13")
    def leak(seen: Transcript) -> Iterator[Problem]:
        for field, exchange in _refused(rows, seen):
            shown = LEAKS.search(exchange.body.decode("utf-8", "replace"))
            if shown:
                yield Problem(expected="no trace", actual=repr(shown[0]), pointer=field)

    if not named:
        return

    @check(f"{slug}/param", "Name the offending field in `param`", "ERR-05")
    def param(seen: Transcript) -> Iterator[Problem]:
        for field, exchange in _refused(rows, seen):
            found = (error_of(exchange) or {}).get("param")
            if not isinstance(found, str) or not (_within(found, field) or _within(field, found)):
                yield Problem(expected=field, actual=repr(found), pointer="error.param")


def _within(path: str, field: str) -> bool:
    """Whether a path is the field or below it; to name the whole that holds it is help enough."""
    return path == field or path.startswith((f"{field}.", f"{field}["))


def _refused(rows: list[Row], seen: Transcript) -> list[tuple[str, Exchange]]:
    pairs = zip(rows, seen.exchanges, strict=False)
    found = [(row[0], exchange) for row, exchange in pairs if answered(exchange).status in (400, 422)]
    if not found:
        raise Inconclusive("nothing was refused; another check says so")
    return found


def _plain(target: Target) -> dict[str, object]:
    return chat(target)


def _input(target: Target) -> dict[str, object]:
    return asking(target, "Hi", max_output_tokens=16)


def _prompt(target: Target) -> dict[str, object]:
    return {"model": target.model, "prompt": "Hi", "max_tokens": 1}


HUGE = 10**9
refusals(
    "errors/chat-bounds",
    "Numbers and lists beyond the bounds of chat completions",
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
    "Values of other types in chat completions",
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
    "Numbers beyond the bounds of completions",
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
    "Values of other types in completions",
    "/completions",
    _prompt,
    [("prompt", {"prompt": 5}), ("echo", {"echo": "true"}), ("stream", {"stream": 1})],
    "ERR-08",
    needs=("completions",),
)
refusals(
    "errors/best-of",
    "The best of several in ways that cannot be",
    "/completions",
    _prompt,
    [("best_of", {"best_of": 2, "stream": True}), ("best_of", {"best_of": 2, "n": 3})],
    "CMP-06",
    needs=("completions",),
)
refusals(
    "errors/responses-bounds",
    "Numbers beyond the bounds of responses",
    "/responses",
    _input,
    [
        ("temperature", {"temperature": 2.5}),
        ("top_p", {"top_p": -1}),
        ("top_logprobs", {"top_logprobs": 21}),
        ("metadata", {"metadata": {"key": "x" * 513}}),
    ],
    "ERR-07",
    "R-16",
    needs=("responses",),
)
refusals(
    "errors/responses-limit",
    "A limit below the smallest one",
    "/responses",
    _input,
    [("max_output_tokens", {"max_output_tokens": 15})],
    "R-17",
    needs=("responses",),
)
refusals(
    "errors/responses-types",
    "Values of other types in responses",
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
    "Tool choices that nothing can meet",
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
    "Tool choices that nothing can meet, in responses",
    "/responses",
    _input,
    [
        ("tool_choice", {"tool_choice": "required"}),
        (
            "tool_choice",
            {"tools": [tools.flat(tools.weather)], "tool_choice": {"type": "function", "name": "ping"}},
        ),
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
    "TOOL-12",
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


def _form(schema: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


refusals(
    "errors/bad-schema",
    "Schemas that are none",
    "/chat/completions",
    _plain,
    [
        ("response_format", _form({"type": "nonsense"})),
        ("response_format", _form({"type": "object", "properties": []})),
        ("response_format", _form(5)),
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
    "A regular expression that is none",
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
    "A limit that no window holds",
    "/chat/completions",
    lambda target: chat(target, messages=user("Hi"), stop=["e", "a", "i", "o"]),
    [("max_tokens", {"max_tokens": 10**8})],
    "ERR-09",
    named=False,
)


@scenario("errors/no-model", "A request that names no model")
def no_model(target: Target) -> Steps:
    body = {key: value for key, value in chat(target).items() if key != "model"}
    yield Request(path="/chat/completions", json=body)


@check("errors/no-model/refused", "Refuse a request without a model with 400", "ERR-06")
def no_model_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(last(seen), 400, 422)


@scenario("errors/no-messages", "A request without messages")
def no_messages(target: Target) -> Steps:
    yield Request(path="/chat/completions", json={"model": target.model, "max_tokens": 4})


@check("errors/no-messages/refused", "Refuse what has not got its required field", "ERR-02")
def no_messages_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(last(seen), 400, 422)


@check("errors/no-messages/type", "Call it an `invalid_request_error`", "ERR-03")
def no_messages_type(seen: Transcript) -> Iterator[Problem]:
    if answered(last(seen)).status < 400:
        raise Inconclusive("nothing was refused; another check says so")
    kind = (error_of(last(seen)) or {}).get("type")
    if kind != "invalid_request_error":
        yield Problem(expected="invalid_request_error", actual=repr(kind), pointer="error.type")


@scenario("errors/stream-refused", "A stream that cannot begin")
def stream_refused(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target, stream=True, temperature=9))


@check("errors/stream-refused/status", "Refuse with a status, not within a stream", "HTTP-12")
def stream_refused_status(seen: Transcript) -> Iterator[Problem]:
    yield from refused(last(seen), 400, 422)


@scenario("errors/hostile", "Bodies that no client sends, and a right one after them")
def hostile(target: Target) -> Steps:
    for content in (b"", b"null", b"[]", b'"x"', b'{"model":' * 3000, b"\x00" * 64):
        yield Request(path="/chat/completions", content=content, headers=JSON)
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    yield Request(path="/chat/completions", json=chat(target, messages=deep))
    yield Request(path="/chat/completions", json=chat(target, temperature=10**30))
    yield Request(path="/chat/completions", json=chat(target))


@check("errors/hostile/refused", "Refuse each of them with 400", "HTTP-07", "ERR-08")
def hostile_refused(seen: Transcript) -> Iterator[Problem]:
    at(seen, 8)
    for exchange in seen.exchanges[:8]:
        yield from refused(exchange, 400, 413, 422)


@check("errors/hostile/envelope", "Write the error object with all its keys", "ERR-01")
def hostile_envelope(seen: Transcript) -> Iterator[Problem]:
    at(seen, 8)
    for exchange in seen.exchanges[:8]:
        if answered(exchange).status >= 400:
            yield from envelope(exchange)


@check("errors/hostile/served", "Serve the right request that follows", "HTTP-16")
def hostile_served(seen: Transcript) -> Iterator[Problem]:
    found = answered(at(seen, 8))
    if found.status != 200:
        yield Problem(expected="status 200", actual=f"status {found.status}", pointer="status")


@scenario("chat/unknown-field", "A field that nobody knows")
def unknown_field(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target, plumbline_0f3a={"a": [1, None]}))


@check("chat/unknown-field/no-crash", "Ignore a field that is unknown, or refuse it", "HTTP-09")
def unknown_no_crash(seen: Transcript) -> Iterator[Problem]:
    accepted(last(seen))
    yield from ()


NULLS: list[str] = ["temperature", "top_p", "n", "stop", "stream", "max_completion_tokens", "seed"]
NULLS += ["logit_bias", "presence_penalty", "metadata", "response_format", "stream_options"]


@scenario("chat/nulls", "Nulls for everything that may be null")
def nulls(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target, **dict.fromkeys(NULLS)))


@check("chat/nulls/taken", "Take null for a field left out", "HTTP-10")
def nulls_taken(seen: Transcript) -> Iterator[Problem]:
    found = answered(last(seen))
    if found.status in (400, 422):
        shown = (error_of(found) or {}).get("param")
        yield Problem(expected="an answer", actual=f"status {found.status} for {shown!r}", pointer="status")
        return
    accepted(found)


@scenario("errors/key", "No key, and a wrong one", needs=("key",))
def wrong_key(target: Target) -> Steps:
    for value in ("", "Bearer wrong-key-0f3a"):
        yield Request(path="/chat/completions", json=chat(target), headers={"authorization": value})


@check("errors/key/refused", "Answer a missing or wrong key with 401", "HTTP-06")
def key_refused(seen: Transcript) -> Iterator[Problem]:
    for exchange in seen.exchanges:
        if exchange.status == 0 or exchange.error is not None:
            raise Inconclusive(exchange.error or "there was no answer")
        if exchange.status != 401:
            yield Problem(expected="status 401", actual=f"status {exchange.status}", pointer="status")
