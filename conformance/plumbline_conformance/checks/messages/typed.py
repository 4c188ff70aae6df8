"""Check calls of Messages that a request forces without a reason, and input of every type."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import accepted, at
from plumbline_conformance.checks.laws import STREAM, WHOLE, both
from plumbline_conformance.checks.messages.fold import prompt_tokens
from plumbline_conformance.checks.messages.texts import PATH, message
from plumbline_conformance.checks.messages.tools import TOOLS, choice_kept, input_fits
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.scenario import Problem, Request, Target, check, scenario
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]


@scenario("messages/tool-any", "A call of any tool that a greeting does not ask for", needs=("messages",))
def tool_any(target: Target) -> Steps:
    """Ask for nothing that a tool could do, so that only `tool_choice` leads to a call."""
    body = message(target, tools=TOOLS, max_tokens=128, tool_choice={"type": "any"})
    yield Request(name=WHOLE, path=PATH, json=body)
    yield Request(name=STREAM, path=PATH, json={**body, "stream": True})


both(
    "messages/tool-any/called",
    ("Call a tool if `tool_choice` is `any`", "MSG-04"),
    ("Stream a call if `tool_choice` is `any`", "MSG-04"),
)(choice_kept)


@scenario("messages/tool-typed", "A tool with parameters of every type", needs=("messages",))
def tool_typed(target: Target) -> Steps:
    definition = {"name": "set_values", "description": "Sets values.", "input_schema": tools.TYPES}
    forced = {"tools": [definition], "tool_choice": {"type": "tool", "name": "set_values"}}
    body = message(target, messages=user(tools.SET_TYPED), max_tokens=256, **forced)
    yield Request(name=WHOLE, path=PATH, json=body)
    yield Request(name=STREAM, path=PATH, json={**body, "stream": True})


both(
    "messages/tool-typed/called",
    ("Call the tool that is forced", "MSG-04"),
    ("Stream the call that is forced", "MSG-04"),
)(choice_kept)
both(
    "messages/tool-typed/arguments",
    ("Give a call numbers, booleans, arrays and objects", "MSG-04"),
    ("Stream numbers, booleans, arrays and objects of a call", "MSG-04"),
    milder=True,
)(input_fits)


@scenario("messages/tool-result", "A call with a short and with a long result", needs=("messages",))
def results(target: Target) -> Steps:
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
    for name, result in tools.RESULTS.items():
        answer = {"type": "tool_result", "tool_use_id": "toolu_1", "content": result}
        turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]
        body = message(target, messages=[*user("The weather?"), *turns], tools=TOOLS)
        yield Request(name=name, path=PATH, json=body)


@check("messages/tool-result/read", "Let the model see the result of a call", "MSG-05")
def results_read(seen: Transcript) -> Iterator[Problem]:
    """Detect a server that drops results: a longer one then costs no further tokens of the prompt."""
    short, long = (prompt_tokens(accepted(at(seen, name))) for name in tools.RESULTS)
    if long <= short:
        wanted = f"a prompt of more than {short}"
        yield Problem(expected=wanted, actual=str(long), pointer="usage", exchange="long")


ERRORS = {"good": False, "failed": True}


@scenario("messages/tool-error", "A result of a call, and the same as an error", needs=("messages",))
def errors(target: Target) -> Steps:
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
    for name, failed in ERRORS.items():
        answer = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "No data.", "is_error": failed}
        turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]
        body = message(target, messages=[*user("The weather?"), *turns], tools=TOOLS)
        yield Request(name=name, path=PATH, json=body)


@check("messages/tool-error/marked", "Mark no good result of a call as an error", "MSG-05", milder=True)
def error_marked(seen: Transcript) -> Iterator[Problem]:
    """Detect a server that shows good results as errors: these have a longer prompt than the error then."""
    good, failed = (prompt_tokens(accepted(at(seen, name))) for name in ERRORS)
    if failed < good:
        wanted = f"a prompt of at most {failed} tokens, as with `is_error: true`"
        yield Problem(expected=wanted, actual=str(good), pointer="usage", exchange="good")
