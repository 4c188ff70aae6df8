"""Check the default of `tool_choice`: with tools it is `auto`, so both requests have the same prompt (TOOL-03)."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import at, usage_count
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.scenario import Problem, Request, Target, check, scenario
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
TITLE = "A tool without and with the default of tool_choice"
SHOWN = "Show the model the tools of a request without `tool_choice`, as with `auto`"


@scenario("chat/tool-default", TITLE, needs=("tools",))
def chat_default(target: Target) -> Steps:
    body = chat(target, tools=[tools.weather])
    yield Request(name="default", path="/chat/completions", json=body)
    yield Request(name="auto", path="/chat/completions", json={**body, "tool_choice": "auto"})


@scenario("responses/tool-default", TITLE, needs=("responses", "tools"))
def responses_default(target: Target) -> Steps:
    body = create_response(target, "Hi", tools=[tools.flat(tools.weather)], max_output_tokens=16)
    yield Request(name="default", path="/responses", json=body)
    yield Request(name="auto", path="/responses", json={**body, "tool_choice": "auto"})


@check("chat/tool-default/shown", SHOWN, "TOOL-03", request="default")
def chat_default_shown(seen: Transcript) -> Iterator[Problem]:
    yield from _same_prompt(seen, "prompt_tokens")


@check("responses/tool-default/shown", SHOWN, "TOOL-03", request="default")
def responses_default_shown(seen: Transcript) -> Iterator[Problem]:
    yield from _same_prompt(seen, "input_tokens")


def _same_prompt(seen: Transcript, key: str) -> Iterator[Problem]:
    found, wanted = usage_count(at(seen, "default"), key), usage_count(at(seen, "auto"), key)
    if found != wanted:
        yield Problem(expected=f"{wanted}, as with `auto`", actual=str(found), pointer=f"usage.{key}")
