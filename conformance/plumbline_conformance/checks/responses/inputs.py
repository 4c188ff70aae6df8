"""Check inputs of the Responses API, and that it counts tokens as chat completions do."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.checks.common import (
    accepted,
    at,
    follow_up_accepted,
    longer_prompt,
    usage_count,
    whole_shapes,
)
from plumbline_conformance.checks.responses.shared_laws import NEEDS, create_response
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.scenario import Problem, Request, Target, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
HISTORY: list[dict[str, object]] = [
    {"role": "user", "content": "Hi"},
    {"type": "message", "role": "assistant", "content": "Hello."},
    {"role": "assistant", "content": [{"type": "output_text", "text": "Hello.", "annotations": []}]},
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
    {"role": "system", "content": "Be kind."},
    {"type": "function_call", "call_id": "call_1", "name": "ping", "arguments": "{}", "status": "completed"},
    {"type": "function_call_output", "call_id": "call_1", "output": "pong"},
    {"role": "user", "content": [{"type": "input_text", "text": "Thanks"}]},
]


@scenario("responses/inputs", "The formats of an input", needs=NEEDS)
def inputs(target: Target) -> Steps:
    """Ask one question as a text, as a message and of chat completions, and send every type of item."""
    given = {"text": "Hi", "message": [{"role": "user", "content": "Hi"}], "items": HISTORY}
    for name, value in given.items():
        body = create_response(target, value, max_output_tokens=16)
        yield Request(name=name, path="/responses", json=body)
    yield Request(name="chat", path="/chat/completions", json=chat(target, max_tokens=16, temperature=0))


def _count(seen: Transcript, name: str, key: str = "input_tokens") -> int:
    return usage_count(at(seen, name), key)


whole_shapes("responses/inputs", "Response", "text", "message", "items")


@check("responses/inputs/text", "Treat a text as one user message", "R-12", request="text")
def inputs_text(seen: Transcript) -> Iterator[Problem]:
    found, wanted = _count(seen, "text"), _count(seen, "message")
    if found != wanted:
        yield Problem(expected=str(wanted), actual=str(found), pointer="usage.input_tokens")


@check("responses/inputs/items", "Accept messages, history, calls and their outputs", "R-13")
def inputs_items(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, "text", "items")


@check("responses/inputs/longer", "Count a longer input as more tokens", "R-10")
def inputs_longer(seen: Transcript) -> Iterator[Problem]:
    yield from longer_prompt(seen, "text", "items")


@check("responses/inputs/chat", "Count the prompt as chat completions do", "R-15", request="text")
def inputs_chat(seen: Transcript) -> Iterator[Problem]:
    found, wanted = _count(seen, "text"), _count(seen, "chat", "prompt_tokens")
    if found != wanted:
        yield Problem(expected=str(wanted), actual=str(found), pointer="usage.input_tokens")


QUESTION = "Which of the four seasons do you like best, and why is it that one? Say it in a single word."
TURNS = (("user", QUESTION), ("assistant", "Spring, for its light."), ("user", QUESTION))
TEMPLATE_TOKENS = 4 * len(TURNS)
"""Tokens that templates may add around parts; fewer than a message has, or its id would add."""
VARIANTS = BARE, IDS, PHASE, CUSTOM = ("bare", "with_ids", "with_phase", "custom_call")


def _conversation(variant: str) -> list[dict[str, object]]:
    """Return a conversation as a client writes it, as a server stores it, or with rare items."""
    items: list[dict[str, object]] = []
    for place, (role, text) in enumerate(TURNS):
        item: dict[str, object] = {"type": "message", "role": role, "content": text}
        if variant == IDS:
            part: dict[str, object] = {"type": "input_text", "text": text}
            if role == "assistant":
                part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            item |= {"id": f"msg_0f3a0f3a0f3a0f3a{place}", "status": "completed", "content": [part]}
        if variant == PHASE and role == "assistant":
            item["phase"] = "final_answer"
        items.append(item)
    if variant == CUSTOM:
        call = {"call_id": "call_1", "name": "write", "input": "2024"}
        items.append({"type": "custom_tool_call", **call})
        items.append({"type": "custom_tool_call_output", "call_id": "call_1", "output": "written"})
    return items


@scenario(
    "responses/item-forms",
    "A conversation as written by clients, as stored, and with rare items",
    needs=NEEDS,
)
def item_variants(target: Target) -> Steps:
    for variant in VARIANTS:
        body = create_response(target, _conversation(variant), max_output_tokens=16)
        yield Request(name=variant, path="/responses", json=body)


@check("responses/item-forms/with-ids", "Accept messages with ids and states", "R-13")
def item_variants_ids(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, BARE, IDS)


@check("responses/item-forms/same-text", "Treat a message with an id and a state like one without", "R-13")
def item_variants_same(seen: Transcript) -> Iterator[Problem]:
    """Detect by the token count that a server drops the message, or shows its id to the model."""
    wanted, found = _count(seen, BARE), _count(seen, IDS)
    if abs(found - wanted) > TEMPLATE_TOKENS:
        shown = f"about {wanted}, as without ids"
        yield Problem(expected=shown, actual=str(found), pointer="usage.input_tokens", exchange=IDS)


@check("responses/item-forms/with-phase", "Accept a message with a phase", "R-13")
def item_variants_phase(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, BARE, PHASE)


@check("responses/item-forms/custom-call", "Accept a custom call and its output", "R-13", milder=True)
def item_variants_custom(seen: Transcript) -> Iterator[Problem]:
    """Report only a warning, because several servers refuse custom tools."""
    yield from follow_up_accepted(seen, BARE, CUSTOM)


@scenario(
    "responses/count", "The token count of an input, before and in a response", needs=("responses", "count")
)
def count(target: Target) -> Steps:
    body = create_response(target, "Hi there", max_output_tokens=16)
    yield Request(name="response", path="/responses", json=body)
    counted = {"model": target.model, "input": "Hi there"}
    yield Request(name="count", path="/responses/input_tokens", json=counted)


whole_shapes("responses/count", "Response", "response")


@check("responses/count/object", "Answer with the object `response.input_tokens`", "ST-14", request="count")
def count_object(seen: Transcript) -> Iterator[Problem]:
    found = accepted(at(seen, "count")).json
    kind = found.get("object") if isinstance(found, dict) else None
    if kind != "response.input_tokens" or not isinstance(found.get("input_tokens"), int):
        wanted = "response.input_tokens with a number"
        yield Problem(expected=wanted, actual=as_json(found)[:200], pointer="object")


@check("responses/count/same", "Count the same tokens as the usage of the response", "R-15", request="count")
def count_same(seen: Transcript) -> Iterator[Problem]:
    wanted = _count(seen, "response")
    answer = accepted(at(seen, "count")).json
    found = answer.get("input_tokens") if isinstance(answer, dict) else None
    if found != wanted:
        yield Problem(expected=str(wanted), actual=as_json(found), pointer="input_tokens")
