"""Check optional fields: a server supports or refuses them, but does not accept and ignore them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import (
    accepted,
    answered,
    at,
    follow_up_accepted,
    longer_prompt,
    only,
    refused,
    usage_count,
)
from plumbline_conformance.checks.laws import WHOLE, whole
from plumbline_conformance.checks.request_reader import request_fields
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.responses.stored.lifecycle import id_of
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
BRIEF: dict[str, Any] = {"max_output_tokens": 16}
NAME = "get_weather"


@scenario("errors/functions", "A forced call with the deprecated `functions`")
def functions(target: Target) -> Steps:
    function = {"name": NAME, "parameters": tools.schema("city")}
    fields = {"functions": [function], "function_call": {"name": NAME}, "max_tokens": 64}
    yield Request(path="/chat/completions", json=chat(target, messages=user("In Paris?"), **fields))


# HTTP-09 allows to ignore unknown fields, and these two are deprecated.
@check("errors/functions/called", "Call a deprecated function, or refuse it", "TOOL-16", milder=True)
def functions_called(seen: Transcript) -> Iterator[Problem]:
    exchange = answered(only(seen))
    if exchange.status in (400, 422):
        return
    body = accepted(exchange).json
    try:
        message = body["choices"][0]["message"]
        found = message.get("function_call")
    except (LookupError, TypeError, AttributeError):
        raise Inconclusive("there is no choice with a message; other checks report this") from None
    if not isinstance(found, dict) or found.get("name") != NAME:
        wanted = f"a call of {NAME}, or status 400"
        shown = as_json(message)[:200]
        yield Problem(expected=wanted, actual=shown, pointer="choices[0].message.function_call")


RARE: dict[str, dict[str, object]] = {
    "modalities": {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
    "prediction": {"prediction": {"type": "content", "content": "Hello"}},
    "web_search_options": {"web_search_options": {}},
}


@scenario("errors/rare-fields", "Fields of rare features")
def rare(target: Target) -> Steps:
    for name, fields in RARE.items():
        yield Request(name=name, path="/chat/completions", json=chat(target, **fields))


@check("errors/rare-fields/no-crash", "Serve, ignore or refuse fields of rare features", "CHAT-17")
def rare_no_crash(seen: Transcript) -> Iterator[Problem]:
    for name in RARE:
        exchange = answered(at(seen, name))
        if exchange.status >= 500 and exchange.status != 501:
            wanted, shown = "an answer or a refusal", f"status {exchange.status} to {name}"
            yield Problem(expected=wanted, actual=shown, pointer="status", exchange=name)


@scenario("chat/service-tier", "A request with a service tier")
def service_tier(target: Target) -> Steps:
    yield Request(name=WHOLE, path="/chat/completions", json=chat(target, service_tier="default"))


@whole("chat/service-tier/echoed", "Return the service tier of a request that has one", "CHAT-15")
def _echoed(exchange: Exchange) -> Iterator[Problem]:
    if not request_fields(exchange).get("service_tier"):
        raise NotRequested("the request has no service tier")
    found = exchange.json.get("service_tier") if isinstance(exchange.json, dict) else None
    if not isinstance(found, str):
        yield Problem(expected="the tier", actual=as_json(found), pointer="service_tier")


@scenario("errors/unknown-include", "An unknown value of `include`", needs=("responses",))
def unknown_include(target: Target) -> Steps:
    yield Request(path="/responses", json=create_response(target, "Hi", include=["no.such_0f3a"], **BRIEF))


@check("errors/unknown-include/refused", "Refuse an unknown value of `include`", "ST-18")
def unknown_include_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(only(seen), 400, 422)


IRRELEVANT = [
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""Valid values about tools and images, which the request does not have."""


@scenario(
    "responses/known-include", "Valid values of `include` without effect on the answer", needs=("responses",)
)
def known_include(target: Target) -> Steps:
    yield Request(name="plain", path="/responses", json=create_response(target, "Hi", **BRIEF))
    body = create_response(target, "Hi", include=IRRELEVANT, **BRIEF)
    yield Request(name="with_include", path="/responses", json=body)


@check("responses/known-include/taken", "Accept valid values of `include` without effect", "ST-18")
def known_include_taken(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, "plain", "with_include")


@scenario("errors/unknown-item", "A reference to an unknown item", needs=("responses",))
def unknown_item(target: Target) -> Steps:
    items = [{"type": "item_reference", "id": "msg_0f3a0f3a0f3a0f3a"}, *user("Hi")]
    yield Request(path="/responses", json=create_response(target, items, **BRIEF))


@check("errors/unknown-item/refused", "Refuse a reference to an unknown item", "ST-13")
def unknown_item_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(only(seen), 400, 404, 422)


@scenario("responses/instructions", "Short instructions, and long ones", needs=("responses",))
def instructions(target: Target) -> Steps:
    for name, count in (("short", 1), ("long", 20)):
        body = create_response(target, "Hi", instructions=" ".join(["Be kind."] * count), **BRIEF)
        yield Request(name=name, path="/responses", json=body)


@check("responses/instructions/longer", "Show the instructions to the model", "R-14")
def instructions_longer(seen: Transcript) -> Iterator[Problem]:
    """Compare two requests with instructions, because a template may add a system message without them."""
    yield from longer_prompt(seen, "short", "long")


@scenario(
    "responses/instructions-once",
    "A response with long instructions, and a continuation",
    needs=("responses", "stored"),
)
def instructions_once(target: Target) -> Steps:
    text = " ".join(["Be kind."] * 120)
    body = create_response(target, "Hi", instructions=text, store=True, **BRIEF)
    made = yield Request(name="created", path="/responses", json=body)
    if name := id_of(made):
        after = create_response(target, "And you?", previous_response_id=name, **BRIEF)
        yield Request(name="continued", path="/responses", json=after)


@check(
    "responses/instructions-once/not-inherited",
    "Do not inherit the instructions of the previous response",
    "R-14",
    request="continued",
)
def instructions_not_inherited(seen: Transcript) -> Iterator[Problem]:
    """Compare token counts: the instructions are longer than all that the second request adds."""
    before, after = (usage_count(at(seen, name), "input_tokens") for name in ("created", "continued"))
    if after >= before:
        yield Problem(expected=f"less than {before}", actual=str(after), pointer="usage.input_tokens")


@check(
    "responses/instructions-once/unnamed",
    "Answer a continuation without the instructions of the previous response",
    "R-14",
    request="continued",
)
def instructions_unnamed(seen: Transcript) -> Iterator[Problem]:
    """Compare the member that a response repeats; a server may name instructions of its own."""
    before, after = (accepted(at(seen, name)).json for name in ("created", "continued"))
    if not isinstance(before, dict) or not isinstance(after, dict) or not before.get("instructions"):
        raise Inconclusive("the first response does not repeat its instructions; another check reports this")
    if after.get("instructions") == before["instructions"]:
        shown = as_json(after["instructions"])[:150]
        yield Problem(expected="no instructions of the turn before", actual=shown, pointer="instructions")


@scenario(
    "responses/two-parents",
    "A response with both a conversation and a previous response",
    needs=("responses", "stored"),
)
def two_parents(target: Target) -> Steps:
    body = create_response(target, "Hi", store=True, **BRIEF)
    made = yield Request(name="created", path="/responses", json=body)
    if name := id_of(made):
        parents = {"previous_response_id": name, "conversation": "conv_0f3a0f3a"}
        body = create_response(target, "And?", **parents, **BRIEF)
        yield Request(name="two_parents", path="/responses", json=body)


@check("responses/two-parents/refused", "Refuse a conversation together with a previous response", "ST-06")
def two_parents_refused(seen: Transcript) -> Iterator[Problem]:
    """Accept 404 as well, for servers that look up the conversation first."""
    accepted(at(seen, "created"))
    yield from refused(at(seen, "two_parents"), 400, 404, 422)


PHASE = "commentary"


@scenario("responses/phase", "A stored message with a phase", needs=("responses", "stored"))
def phase(target: Target) -> Steps:
    message = {"type": "message", "role": "assistant", "content": "Let me see.", "phase": PHASE}
    items = [*user("Hi"), message, *user("And?")]
    body = create_response(target, items, store=True, **BRIEF)
    made = yield Request(name="created", path="/responses", json=body)
    if name := id_of(made):
        yield Request(name="items", path=f"/responses/{name}/input_items", method="GET")


@check("responses/phase/kept", "Store the phase of a message", "ST-20", request="items")
def phase_kept(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "created"))
    page = accepted(at(seen, "items")).json
    data = page.get("data") if isinstance(page, dict) else None
    listed = [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    found = [item.get("phase") for item in listed if item.get("role") == "assistant"]
    if not found:
        raise Inconclusive("the message is not listed; another check reports this")
    if found != [PHASE]:
        yield Problem(expected=PHASE, actual=as_json(found)[:200], pointer="data[].phase")
