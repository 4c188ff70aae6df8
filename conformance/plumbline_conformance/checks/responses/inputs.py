"""What the Responses API takes, and that it counts the same as chat completions."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.checks.common import accepted, at, counted, taken, whole_shapes
from plumbline_conformance.checks.responses.shared_laws import NEEDS, create_response
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.model import Problem, Request, Target, check, scenario
from plumbline_conformance.transcript.model import Exchange, Transcript

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


@scenario("responses/inputs", "The forms that an input may have", needs=NEEDS)
def inputs(target: Target) -> Steps:
    """Exchanges: text, the same as a message, every kind of item, the same question to chat."""
    brief = {"max_output_tokens": 16}
    yield Request(path="/responses", json=create_response(target, "Hi", **brief))
    yield Request(
        path="/responses", json=create_response(target, [{"role": "user", "content": "Hi"}], **brief)
    )
    yield Request(path="/responses", json=create_response(target, HISTORY, **brief))
    yield Request(path="/chat/completions", json=chat(target, max_tokens=16, temperature=0))


def _count(seen: Transcript, place: int, key: str = "input_tokens") -> int:
    return counted(at(seen, place), key)


whole_shapes("responses/inputs", "Response", 0, 1, 2)


@check("responses/inputs/text", "Read a text as one message of the user", "R-12")
def inputs_text(seen: Transcript) -> Iterator[Problem]:
    counts = [_count(seen, 0), _count(seen, 1)]
    if counts[0] != counts[1]:
        yield Problem(expected=str(counts[1]), actual=str(counts[0]), pointer="usage.input_tokens")


@check("responses/inputs/items", "Take messages, history, calls and their outputs", "R-13")
def inputs_items(seen: Transcript) -> Iterator[Problem]:
    yield from taken(seen, 2)


@check("responses/inputs/longer", "Count a longer input as more tokens", "R-10")
def inputs_longer(seen: Transcript) -> Iterator[Problem]:
    counts = [_count(seen, 0), _count(seen, 2)]
    if counts[1] <= counts[0]:
        yield Problem(expected=f"more than {counts[0]}", actual=str(counts[1]), pointer="usage.input_tokens")


@check("responses/inputs/chat", "Count the prompt as chat completions do", "R-15")
def inputs_chat(seen: Transcript) -> Iterator[Problem]:
    counts = [_count(seen, 0), _count(seen, 3, "prompt_tokens")]
    if counts[0] != counts[1]:
        yield Problem(expected=str(counts[1]), actual=str(counts[0]), pointer="usage.input_tokens")


QUESTION = "Which of the four seasons do you like best, and why is it that one? Say it in a single word."
SPOKEN = (("user", QUESTION), ("assistant", "Spring, for its light."), ("user", QUESTION))
DRESS = 4 * len(SPOKEN)
"""What templates may put around parts: less than a message has, and than its id would cost."""
VARIANTS = ("bare", "with-ids", "with-phase", "custom-call")
BARE, IDS, PHASE, CUSTOM = range(len(VARIANTS))


def _spoken(form: int) -> list[dict[str, object]]:
    """One conversation: as a client writes it, as a server stores it, and with what few clients send."""
    items: list[dict[str, object]] = []
    for place, (role, text) in enumerate(SPOKEN):
        item: dict[str, object] = {"type": "message", "role": role, "content": text}
        if form == IDS:
            said: dict[str, object] = {"type": "input_text", "text": text}
            if role == "assistant":
                said = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            kept = {"id": f"msg_0f3a0f3a0f3a0f3a{place}", "status": "completed", "content": [said]}
            item |= kept
        if form == PHASE and role == "assistant":
            item["phase"] = "final_answer"
        items.append(item)
    if form == CUSTOM:
        call = {"call_id": "call_1", "name": "write", "input": "2024"}
        items.append({"type": "custom_tool_call", **call})
        items.append({"type": "custom_tool_call_output", "call_id": "call_1", "output": "written"})
    return items


@scenario("responses/item-forms", "A conversation as it is said, as it is stored, and with more", needs=NEEDS)
def item_variants(target: Target) -> Steps:
    for form in range(len(VARIANTS)):
        yield Request(path="/responses", json=create_response(target, _spoken(form), max_output_tokens=16))


@check("responses/item-forms/with-ids", "Take messages that have ids and states", "R-13")
def item_variants_ids(seen: Transcript) -> Iterator[Problem]:
    yield from taken(seen, IDS)


@check("responses/item-forms/same-text", "Read a message with an id and a state as the same message", "R-13")
def item_variants_same(seen: Transcript) -> Iterator[Problem]:
    """A message that is dropped costs nothing, and one whose id is shown to the model costs much more."""
    wanted, found = _count(seen, BARE), _count(seen, IDS)
    if abs(found - wanted) > DRESS:
        shown = f"about {wanted}, as without ids"
        yield Problem(expected=shown, actual=str(found), pointer="usage.input_tokens", exchange=IDS)


@check("responses/item-forms/with-phase", "Take a message that has a phase", "R-13")
def item_variants_phase(seen: Transcript) -> Iterator[Problem]:
    yield from taken(seen, PHASE)


@check("responses/item-forms/custom-call", "Take a custom call and its output", "R-13", milder=True)
def item_variants_custom(seen: Transcript) -> Iterator[Problem]:
    """Servers of good repute have no custom tools, and say so."""
    yield from taken(seen, CUSTOM)


@scenario("responses/count", "The tokens of an input, counted beforehand", needs=("responses", "count"))
def count(target: Target) -> Steps:
    yield Request(path="/responses", json=create_response(target, "Hi there", max_output_tokens=16))
    yield Request(path="/responses/input_tokens", json={"model": target.model, "input": "Hi there"})


whole_shapes("responses/count", "Response", 0)


@check("responses/count/object", "Answer with the object `response.input_tokens`", "ST-14")
def count_object(seen: Transcript) -> Iterator[Problem]:
    found = accepted(at(seen, 1)).json
    kind = found.get("object") if isinstance(found, dict) else None
    if kind != "response.input_tokens" or not isinstance(found.get("input_tokens"), int):
        wanted = "response.input_tokens with a number"
        yield Problem(expected=wanted, actual=repr(found)[:200], pointer="object")


@check("responses/count/same", "Count beforehand what the usage says afterwards", "R-15")
def count_same(seen: Transcript) -> Iterator[Problem]:
    wanted = _count(seen, 0)
    answer = accepted(at(seen, 1)).json
    found = answer.get("input_tokens") if isinstance(answer, dict) else None
    if found != wanted:
        yield Problem(expected=str(wanted), actual=repr(found), pointer="input_tokens")
