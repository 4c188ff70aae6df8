"""What a server may have or lack, as long as it says which: to take a field and forget it is neither."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import accepted, answered, at, counted, last, refused, taken
from plumbline_conformance.checks.laws import whole
from plumbline_conformance.checks.request_reader import request_fields
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.responses.state import named
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.model import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.transcript.model import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
BRIEF: dict[str, Any] = {"max_output_tokens": 16}
NAME = "get_weather"


@scenario("errors/functions", "A function of the old kind that has to be called")
def functions(target: Target) -> Steps:
    held = {"name": NAME, "parameters": tools.schema("city")}
    asked = {"functions": [held], "function_call": {"name": NAME}, "max_tokens": 64}
    yield Request(path="/chat/completions", json=chat(target, messages=user("In Paris?"), **asked))


# HTTP-09 lets a server ignore fields that it does not know, and these two are deprecated.
@check("errors/functions/called", "Call a function of the old kind, or refuse it", "TOOL-16", milder=True)
def functions_called(seen: Transcript) -> Iterator[Problem]:
    exchange = answered(last(seen))
    if exchange.status in (400, 422):
        return
    body = accepted(exchange).json
    try:
        message = body["choices"][0]["message"]
        found = message.get("function_call")
    except (LookupError, TypeError, AttributeError):
        raise Inconclusive("there is no choice with a message; other checks say so") from None
    if not isinstance(found, dict) or found.get("name") != NAME:
        wanted = f"a call of {NAME}, or status 400"
        shown = repr(message)[:200]
        yield Problem(expected=wanted, actual=shown, pointer="choices[0].message.function_call")


RARE: list[dict[str, object]] = [
    {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
    {"prediction": {"type": "content", "content": "Hello"}},
    {"web_search_options": {}},
]


@scenario("errors/rare-fields", "Fields of what few servers have")
def rare(target: Target) -> Steps:
    for fields in RARE:
        yield Request(path="/chat/completions", json=chat(target, **fields))


@check("errors/rare-fields/no-crash", "Serve, ignore or refuse what few servers have", "CHAT-17")
def rare_no_crash(seen: Transcript) -> Iterator[Problem]:
    for place, fields in enumerate(RARE):
        exchange = answered(at(seen, place))
        if exchange.status >= 500 and exchange.status != 501:
            shown = f"status {exchange.status} to {next(iter(fields))}"
            yield Problem(expected="an answer or a refusal", actual=shown, pointer="status")


@scenario("chat/service-tier", "A request that names its tier")
def service_tier(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target, service_tier="default"))


@whole("chat/service-tier/echoed", "Say which tier served a request that names one", "CHAT-15")
def _echoed(exchange: Exchange) -> Iterator[Problem]:
    if not request_fields(exchange).get("service_tier"):
        raise NotRequested("no tier was named")
    found = exchange.json.get("service_tier") if isinstance(exchange.json, dict) else None
    if not isinstance(found, str):
        yield Problem(expected="the tier", actual=repr(found), pointer="service_tier")


@scenario("errors/unknown-include", "Something to include that nobody knows", needs=("responses",))
def unknown_include(target: Target) -> Steps:
    yield Request(path="/responses", json=create_response(target, "Hi", include=["no.such_0f3a"], **BRIEF))


@check("errors/unknown-include/refused", "Refuse to include what is unknown", "ST-18")
def unknown_include_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(last(seen), 400, 422)


IRRELEVANT = [
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""Of tools and of images, neither of which the request has."""


@scenario("responses/known-include", "Things to include of which the answer has none", needs=("responses",))
def known_include(target: Target) -> Steps:
    yield Request(path="/responses", json=create_response(target, "Hi", **BRIEF))
    yield Request(path="/responses", json=create_response(target, "Hi", include=IRRELEVANT, **BRIEF))


@check("responses/known-include/taken", "Take what is known to include and of which there is none", "ST-18")
def known_include_taken(seen: Transcript) -> Iterator[Problem]:
    yield from taken(seen, 1)


@scenario("errors/unknown-item", "A reference to an item that is nowhere", needs=("responses",))
def unknown_item(target: Target) -> Steps:
    items = [{"type": "item_reference", "id": "msg_0f3a0f3a0f3a0f3a"}, *user("Hi")]
    yield Request(path="/responses", json=create_response(target, items, **BRIEF))


@check("errors/unknown-item/refused", "Refuse a reference to an item that is nowhere", "ST-13")
def unknown_item_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(last(seen), 400, 404, 422)


@scenario("responses/instructions", "Short instructions, and long ones", needs=("responses",))
def instructions(target: Target) -> Steps:
    for count in (1, 20):
        said = " ".join(["Be kind."] * count)
        yield Request(path="/responses", json=create_response(target, "Hi", instructions=said, **BRIEF))


@check("responses/instructions/longer", "Show the model its instructions", "R-14")
def instructions_longer(seen: Transcript) -> Iterator[Problem]:
    """Both requests have some, so that a system message of the template's own stands in neither prompt."""
    counts = [counted(at(seen, place), "input_tokens") for place in (0, 1)]
    if counts[1] <= counts[0]:
        yield Problem(expected=f"more than {counts[0]}", actual=str(counts[1]), pointer="usage.input_tokens")


@scenario(
    "responses/instructions-once",
    "A response with long instructions, and one after it",
    needs=("responses", "stored"),
)
def instructions_once(target: Target) -> Steps:
    said = " ".join(["Be kind."] * 120)
    made = yield Request(
        path="/responses", json=create_response(target, "Hi", instructions=said, store=True, **BRIEF)
    )
    if name := named(made):
        after = create_response(target, "And you?", previous_response_id=name, **BRIEF)
        yield Request(path="/responses", json=after)


@check("responses/instructions-once/not-inherited", "Leave out the instructions of what came before", "R-14")
def instructions_not_inherited(seen: Transcript) -> Iterator[Problem]:
    """The instructions are longer than all that is added: a short answer, a short question, a template's words."""
    counts = [counted(at(seen, place), "input_tokens") for place in (0, 1)]
    if counts[1] >= counts[0]:
        yield Problem(expected=f"less than {counts[0]}", actual=str(counts[1]), pointer="usage.input_tokens")


@scenario("responses/two-parents", "A response that is to continue two things", needs=("responses", "stored"))
def two_parents(target: Target) -> Steps:
    made = yield Request(path="/responses", json=create_response(target, "Hi", store=True, **BRIEF))
    if name := named(made):
        parents = {"previous_response_id": name, "conversation": "conv_0f3a0f3a"}
        yield Request(path="/responses", json=create_response(target, "And?", **parents, **BRIEF))


@check("responses/two-parents/refused", "Refuse a conversation beside a previous response", "ST-06")
def two_parents_refused(seen: Transcript) -> Iterator[Problem]:
    """404 is an answer of a server that looks for the conversation first."""
    accepted(at(seen, 0))
    yield from refused(at(seen, 1), 400, 404, 422)


PHASE = "commentary"


@scenario("responses/phase", "A message with a phase, as it is kept", needs=("responses", "stored"))
def phase(target: Target) -> Steps:
    said = {"type": "message", "role": "assistant", "content": "Let me see.", "phase": PHASE}
    items = [*user("Hi"), said, *user("And?")]
    made = yield Request(path="/responses", json=create_response(target, items, store=True, **BRIEF))
    if name := named(made):
        yield Request(path=f"/responses/{name}/input_items", method="GET")


@check("responses/phase/kept", "Keep the phase of a message", "ST-20")
def phase_kept(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, 0))
    page = accepted(at(seen, 1)).json
    data = page.get("data") if isinstance(page, dict) else None
    listed = [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    found = [item.get("phase") for item in listed if item.get("role") == "assistant"]
    if not found:
        raise Inconclusive("the message is not listed; another check looks at lists")
    if found != [PHASE]:
        yield Problem(expected=PHASE, actual=repr(found)[:200], pointer="data[].phase")
