"""Check messages of text: their form, stop sequences, continued messages, prompts and counts."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.answers import WITHHELD
from plumbline_conformance.checks.common import accepted, at, valid_body
from plumbline_conformance.checks.laws import STREAM, WHOLE, both, stream, whole
from plumbline_conformance.checks.messages import shared_laws as laws
from plumbline_conformance.checks.messages.fold import content_of, message_of, prompt_tokens, text_of
from plumbline_conformance.checks.request_reader import request_fields
from plumbline_conformance.checks.sameness import same, whole_and_streamed
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    Unsteady,
    about,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
PATH, COUNT = "/messages", "/messages/count_tokens"
BEGUN = "The first three colours of the rainbow are red, orange and"
SYSTEM = "You are a helpful assistant who answers in one short sentence."


def message(target: Target, **fields: object) -> dict[str, Any]:
    """Return a valid short request of Messages, with these fields added or replaced."""
    asked = {"messages": user("Hi"), "max_tokens": 16, "temperature": 0}
    return {"model": target.model, **asked, **fields}


@scenario("messages/text", "A message, whole and streamed", needs=("messages",))
def text(target: Target) -> Steps:
    yield from whole_and_streamed(PATH, message(target), content_of, content_of)


@check("messages/text/same-as-whole", "Stream the content of the whole message", "MSG-01")
def same_content(seen: Transcript) -> Iterator[Problem]:
    yield from same(seen, lambda one: content_of(accepted(one)), lambda one: content_of(accepted(one)))


whole("messages/text/shape", "Answer as the contract requires", "MSG-01")(laws.shape)
stream("messages/text/folded", "Stream events that fold to a message", "MSG-01")(laws.folded)
stream("messages/text/wire", "Name each event by its type, without [DONE]", "MSG-07")(laws.wire)
stream("messages/text/event-shapes", "Send events as the contract requires", "MSG-07")(laws.event_shapes)
stream("messages/text/lifecycle", "Begin with an empty message, and end with its reason", "MSG-07")(
    laws.lifecycle
)
stream("messages/text/blocks", "Stream one block after the other", "MSG-08")(laws.blocks)
both(
    "messages/text/usage",
    ("Count the tokens of the prompt and the answer", "MSG-10"),
    ("Count the tokens of a stream", "MSG-10"),
)(laws.usage)
both(
    "messages/text/ending",
    ("Report why the answer ended", "MSG-09"),
    ("Report why the stream ended", "MSG-09"),
)(laws.ending)


@both(
    "messages/text/request-id",
    ("Name the request in a header", "MSG-11"),
    ("Name the request of a stream in a header", "MSG-11"),
)
def request_id(exchange: Exchange) -> Iterator[Problem]:
    """Check the header `request-id` (MSG-11)."""
    if not exchange.header("request-id"):
        yield Problem(expected="a header request-id", actual="none", pointer="headers")


@check("messages/text/ids", "Give each message an id of its own", "MSG-01")
def ids(seen: Transcript) -> Iterator[Problem]:
    first, second = (message_of(accepted(at(seen, name))).get("id") for name in (WHOLE, STREAM))
    if first is None or second is None:
        raise Inconclusive("a message has no id; another check reports this")
    if first == second:
        yield Problem(
            expected=f"another id than {WHOLE}", actual=as_json(second)[:200], pointer="id", exchange=STREAM
        )


@check("messages/text/same-prompt", "Count the same prompt in a stream", "MSG-10")
def streamed_prompt(seen: Transcript) -> Iterator[Problem]:
    """Compare the counts of a prompt that is sent without and with streaming."""
    wanted, found = (prompt_tokens(accepted(at(seen, name))) for name in (WHOLE, STREAM))
    if min(wanted, found) < 1:
        raise Inconclusive("an answer counts no prompt; another check reports this")
    if found != wanted:
        expected = f"{wanted}, as without streaming"
        yield Problem(expected=expected, actual=str(found), pointer="usage", exchange=STREAM)


@scenario(
    "messages/stop", "A message, and the same with a stop sequence from its middle", needs=("messages",)
)
def stop(target: Target) -> Steps:
    plain = yield Request(name="plain", path=PATH, json=message(target))
    if word := _sequence_of(plain):
        for name, fields in ((WHOLE, {}), (STREAM, {"stream": True})):
            body = message(target, stop_sequences=["\u2603never", word], **fields)
            yield Request(name=name, path=PATH, json=body)


def _sequence_of(exchange: Exchange) -> str:
    """Return a few characters from the middle of an answer."""
    try:
        found = text_of(exchange).strip()
    except Inconclusive:
        return ""
    return "" if "\ufffd" in found else found[3:6].strip()


@both(
    "messages/stop/absent",
    ("End before the stop sequence", "MSG-09"),
    ("End a stream before the stop sequence", "MSG-09"),
)
def absent(exchange: Exchange) -> Iterator[Problem]:
    """Check that the text has none of the stop sequences (MSG-09)."""
    wanted = request_fields(exchange).get("stop_sequences")
    if not isinstance(wanted, list) or not wanted:
        raise NotRequested("the request has no stop sequence")
    found = text_of(exchange)
    for word in wanted:
        if isinstance(word, str) and word and word in found:
            yield Problem(expected=f"no {as_json(word)}", actual=as_json(found)[:200], pointer="content")


@check("messages/stop/reported", "Name the stop sequence that ended the answer", "MSG-09")
def reported(seen: Transcript) -> Iterator[Problem]:
    """Look at answers that are the first one up to the sequence: equal requests may have different answers."""
    plain = accepted(at(seen, "plain"))
    word, looked_at = _sequence_of(plain), 0
    for name in (WHOLE, STREAM):
        exchange = accepted(at(seen, name))
        if text_of(exchange) != text_of(plain).partition(word)[0]:
            continue
        looked_at += 1
        found = message_of(exchange)
        ended = (found.get("stop_reason"), found.get("stop_sequence"))
        if ended[0] in WITHHELD:
            raise Inconclusive("the model refused to go on")
        if ended != ("stop_sequence", word):
            wanted = f"stop_sequence and {as_json(word)}"
            problem = Problem(expected=wanted, actual=as_json(ended)[:200], pointer="stop_reason")
            yield from about(exchange, [problem])
    if not looked_at:
        raise Unsteady("the answers differ from the first one")


@scenario("messages/continued", "A message that the assistant has begun", needs=("messages",))
def continued(target: Target) -> Steps:
    asked = user("Name four colours.")
    begun = [*asked, {"role": "assistant", "content": BEGUN}]
    yield Request(name="plain", path=PATH, json=message(target, messages=asked))
    yield Request(name=WHOLE, path=PATH, json=message(target, messages=begun))


@check("messages/continued/new", "Answer with what is new", "MSG-03", request=WHOLE)
def new(seen: Transcript) -> Iterator[Problem]:
    found = text_of(accepted(at(seen, WHOLE)))
    if found.lstrip().startswith(BEGUN):
        yield Problem(
            expected="the text after what was begun", actual=as_json(found)[:200], pointer="content"
        )


@check("messages/continued/read", "Let the model see what the assistant has begun", "MSG-03", request=WHOLE)
def read(seen: Transcript) -> Iterator[Problem]:
    yield from _longer(seen, "plain", WHOLE)


def _longer(seen: Transcript, shorter: str, name: str) -> Iterator[Problem]:
    fewer, more = (prompt_tokens(accepted(at(seen, one))) for one in (shorter, name))
    if more <= fewer:
        yield Problem(
            expected=f"a prompt of more than {fewer}", actual=str(more), pointer="usage", exchange=name
        )


@scenario("messages/inputs", "One prompt in several forms", needs=("messages",))
def inputs(target: Target) -> Steps:
    part = {"type": "text", "text": "Hi"}
    yield Request(name="plain", path=PATH, json=message(target))
    block = [{"role": "user", "content": [part]}]
    yield Request(name="block", path=PATH, json=message(target, messages=block))
    yield Request(name="neighbours", path=PATH, json=message(target, messages=user("Hi") * 2))
    yield Request(
        name="blocks", path=PATH, json=message(target, messages=[{**block[0], "content": [part] * 2}])
    )
    for name, count in (("brief_system", 1), ("system", 20)):
        text = " ".join(["Be kind."] * count)
        yield Request(name=name, path=PATH, json=message(target, system=text))


@check("messages/inputs/ids", "Give each of several messages an id of its own", "MSG-01")
def ids_of_several(seen: Transcript) -> Iterator[Problem]:
    """Compare the ids of all answers that have one."""
    met: set[str] = set()
    for exchange in seen.exchanges:
        name = message_of(accepted(exchange)).get("id")
        if isinstance(name, str) and name in met:
            yield Problem(expected="another id", actual=name[:200], pointer="id", exchange=exchange.name)
        met.add(str(name))


@check("messages/inputs/block", "Read a string as one block of text", "MSG-02")
def one_block(seen: Transcript) -> Iterator[Problem]:
    yield from _equal(seen, "plain", "block")


@check("messages/inputs/turn", "Read neighbouring messages of one role as one turn", "MSG-02")
def one_turn(seen: Transcript) -> Iterator[Problem]:
    yield from _equal(seen, "blocks", "neighbours")


@check("messages/inputs/system", "Let the model see the system prompt", "MSG-02")
def system(seen: Transcript) -> Iterator[Problem]:
    """Compare two lengths, because a system prompt may replace a longer one that the template has."""
    yield from _longer(seen, "brief_system", "system")


@scenario("messages/system-turns", "A short and a long message of the role `system`", needs=("messages",))
def system_turns(target: Target) -> Steps:
    for name, count in (("short", 1), ("long", 20)):
        turns = [
            *user("Hi"),
            {"role": "system", "content": " ".join(["Be kind."] * count)},
            *user("And now?"),
        ]
        yield Request(name=name, path=PATH, json=message(target, messages=turns))


@check(
    "messages/system-turns/read", "Let the model see a system message between others", "MSG-02", milder=True
)
def system_turns_read(seen: Transcript) -> Iterator[Problem]:
    """Accept a refusal: the role is new, and most templates have a system prompt at the beginning only."""
    yield from _longer(seen, "short", "long")


def _equal(seen: Transcript, first: str, name: str) -> Iterator[Problem]:
    wanted, found = (prompt_tokens(accepted(at(seen, one))) for one in (first, name))
    if wanted != found:
        shown = f"{found} tokens"
        yield Problem(expected=f"{wanted} tokens, as {first}", actual=shown, pointer="usage", exchange=name)


@scenario("messages/count", "The tokens of a message, counted before it", needs=("messages",))
def count(target: Target) -> Steps:
    asked = message(target, system=SYSTEM)
    yield Request(name=WHOLE, path=PATH, json=asked)
    counted = {name: asked[name] for name in ("model", "messages", "system")}
    yield Request(name="counted", path=COUNT, json=counted)


def near(found: int, wanted: int) -> bool:
    """Return whether a count is right: Anthropic's is an estimate, which may differ by a small amount (MSG-12)."""
    return abs(found - wanted) <= max(4, wanted // 20)


@check("messages/count/same", "Count the tokens that the message has", "MSG-12", request="counted")
def same_count(seen: Transcript) -> Iterator[Problem]:
    counted = accepted(at(seen, "counted"))
    problems = list(valid_body(counted, "MessageTokensCount"))
    yield from problems
    wanted = prompt_tokens(accepted(at(seen, WHOLE)))
    if not problems and not near(counted.json["input_tokens"], wanted):
        shown = as_json(counted.json["input_tokens"])
        yield Problem(expected=f"about {wanted}, as the message", actual=shown, pointer="input_tokens")
