"""Check reasoning, structured output, logprobs and limits on the Responses API."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.answers import THINKING_MARKS, parsed, token_texts
from plumbline_conformance.checks.chat.logprobs import (
    as_many,
    probable,
    ranked,
    sampled_in,
    unconstrained,
)
from plumbline_conformance.checks.chat.structured_output import PLACE
from plumbline_conformance.checks.common import accepted, at, follow_up_accepted, required, whole_shapes
from plumbline_conformance.checks.laws import both, either, stream, whole
from plumbline_conformance.checks.request_reader import (
    request_fields,
    requested_limit,
    requested_schema,
    requested_top_logprobs,
)
from plumbline_conformance.checks.responses.shared_laws import (
    constrained_text,
    create_response,
    events,
    items,
    pair,
    response,
)
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.suite.schema_validation import fits
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript


def _with_reasoning(target: Target) -> dict[str, object]:
    return create_response(target, "Hi", reasoning={"effort": "low"}, max_output_tokens=256)


pair("responses/reasoning", "An answer with reasoning", _with_reasoning, needs=("reasoning",))


def _reasoning_items(exchange: Exchange) -> list[dict[str, Any]]:
    found = items(exchange, "reasoning")
    if not found:
        raise Inconclusive("the response has no reasoning item")
    return found


@either("responses/reasoning/first", "Put reasoning before the message", "RS-12")
def _first(exchange: Exchange) -> Iterator[Problem]:
    _reasoning_items(exchange)
    kinds = [item.get("type") for item in items(exchange)]
    if kinds[0] != "reasoning":
        yield Problem(expected="reasoning first", actual=as_json(kinds), pointer="output")


@stream("responses/reasoning/events", "Stream raw reasoning as a part with deltas and done events", "RS-12")
def _part_events(exchange: Exchange) -> Iterator[Problem]:
    names = {item.get("id") for item in _reasoning_items(exchange) if item.get("content")}
    for name in names:
        of_item = [event for event in events(exchange) if event.get("item_id") == name]
        order = list(dict.fromkeys(str(event.get("type")).removeprefix("response.") for event in of_item))
        raw = [kind for kind in order if "summary" not in kind]
        stem = ["reasoning_text.delta", "reasoning_text.done"]
        if raw != ["content_part.added", *stem, "content_part.done"]:
            yield Problem(
                expected="a part with reasoning_text in it", actual=", ".join(raw), pointer=str(name)
            )


@either("responses/reasoning/not-in-text", "Keep reasoning out of the text", "ST-19")
def _not_in_text(exchange: Exchange) -> Iterator[Problem]:
    reasoning = "".join(_texts(item) for item in items(exchange, "reasoning"))
    content = "".join(_texts(item) for item in items(exchange, "message"))
    leaked = [mark for mark in THINKING_MARKS if mark in content + reasoning]
    if not leaked:
        _reasoning_items(exchange)
    if leaked or (len(reasoning) > 20 and reasoning in content):
        yield Problem(expected="no reasoning", actual=as_json(content)[:200], pointer="output_text")


def _texts(item: dict[str, Any]) -> str:
    parts = item.get("content")
    found = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "".join(text for text in found if isinstance(text, str))


@whole("responses/reasoning/counted", "Count the tokens of reasoning", "ST-19", "R-10")
def _counted(exchange: Exchange) -> Iterator[Problem]:
    _reasoning_items(exchange)
    usage = response(exchange).get("usage")
    details = usage.get("output_tokens_details") if isinstance(usage, dict) else None
    count = details.get("reasoning_tokens") if isinstance(details, dict) else None
    total = usage.get("output_tokens") if isinstance(usage, dict) else None
    if not isinstance(count, int) or not isinstance(total, int) or not 1 <= count <= total:
        # more reasoning tokens than output tokens. ST-19: no count.
        rule = "R-10" if isinstance(count, int) and isinstance(total, int) and count > total else "ST-19"
        where = "usage.output_tokens_details"
        yield Problem(expected=f"1 to {total}", actual=as_json(count), pointer=where, rule=rule)


@scenario(
    "responses/reasoning-round", "Reasoning items, sent back in four ways", needs=("responses", "reasoning")
)
def reasoning_round(target: Target) -> Generator[Request, Exchange, None]:
    first = yield Request(name="first", path="/responses", json=_with_reasoning(target))
    output = first.json.get("output") if isinstance(first.json, dict) else None
    made = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    question = {"role": "user", "content": "Hi"}
    bare: dict[str, Any] = {"type": "reasoning", "summary": []}
    corrupt = {**bare, "id": "rs_other", "encrypted_content": "no such thing"}
    sent_back = {
        "own": made,
        "bare": [bare],
        "null_content": [{**bare, "encrypted_content": None}],
        "corrupt": [corrupt],
    }
    for name, between in sent_back.items():
        given = [question, *between, {"role": "user", "content": "Thanks"}]
        body = {**_with_reasoning(target), "input": given}
        yield Request(name=name, path="/responses", json=body)


whole_shapes("responses/reasoning-round", "Response", "first", "own")


@check("responses/reasoning-round/own", "Accept the server's own reasoning items", "ST-16")
def round_returned(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, "first", "own")


@check("responses/reasoning-round/bare", "Accept reasoning items without id and content", "ST-16")
def round_bare(seen: Transcript) -> Iterator[Problem]:
    for name in ("bare", "null_content"):
        yield from follow_up_accepted(seen, "first", name)


@check("responses/reasoning-round/corrupt", "Refuse or ignore invalid encrypted content", "ST-16")
def round_corrupt(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "first"))
    found = at(seen, "corrupt")
    if found.status not in (400, 404, 422):
        required(lambda: accepted(found))
    yield from ()


def _schema(target: Target) -> dict[str, object]:
    output_format = {"type": "json_schema", "name": "place", "strict": True, "schema": PLACE}
    return create_response(target, "Name a place, as JSON.", text={"format": output_format})


pair("responses/json-schema", "An answer under a strict schema", _schema)


@both(
    "responses/json-schema/valid",
    ("Write text that validates", "SO-01"),
    ("Stream text that validates", "SO-09"),
)
def document_of(exchange: Exchange) -> Iterator[Problem]:
    """Check that the text is one JSON document that validates (SO-01, SO-09)."""
    schema = requested_schema(exchange)
    text = constrained_text(exchange)
    if not fits(schema, parsed(text)):
        yield Problem(
            expected="one document that validates", actual=as_json(text)[:200], pointer="output_text"
        )


@both(
    "responses/json-schema/echo",
    ("Echo the format in the response", "SO-07"),
    ("Echo the format in the response of the stream", "SO-07"),
)
def _format_echo(exchange: Exchange) -> Iterator[Problem]:
    wanted = request_fields(exchange).get("text", {}).get("format", {}).get("name")
    text = response(exchange).get("text")
    form = text.get("format") if isinstance(text, dict) else None
    if not isinstance(form, dict) or (form.get("type"), form.get("name")) != ("json_schema", wanted):
        shown = as_json(form)[:200]
        yield Problem(expected=f"the json_schema `{wanted}`", actual=shown, pointer="text.format")


def _logprobs(target: Target) -> dict[str, object]:
    include = ["message.output_text.logprobs"]
    return create_response(target, "Hi", include=include, top_logprobs=2, max_output_tokens=16)


pair("responses/logprobs", "An answer with the logprobs of its text", _logprobs)


def _entries(exchange: Exchange) -> list[dict[str, Any]]:
    parts = [part for item in items(exchange, "message") for part in item.get("content") or []]
    found = [entry for part in parts if isinstance(part, dict) for entry in part.get("logprobs") or []]
    return [
        entry for entry in found if isinstance(entry, dict) and isinstance(entry.get("logprob"), float | int)
    ]


def _some_entries(exchange: Exchange) -> list[dict[str, Any]]:
    found = _entries(exchange)
    if not found:
        raise Inconclusive("there are no entries; another check reports this")
    return found


@either("responses/logprobs/given", "Send logprobs of the text if `include` has them", "LP-06")
def _given(exchange: Exchange) -> Iterator[Problem]:
    if any(_texts(item) for item in items(exchange, "message")) and not _entries(exchange):
        yield Problem(expected="entries", actual="none", pointer="output_text.logprobs")


@both(
    "responses/logprobs/join",
    ("Give entries whose bytes join to the text", "LP-03"),
    ("End the stream with entries whose bytes join to the text", "LP-03"),
)
def _joined(exchange: Exchange) -> Iterator[Problem]:
    found = _some_entries(exchange)
    if not all(isinstance(entry.get("bytes"), list) for entry in found):
        raise Inconclusive("there are no bytes to join")
    yield from token_texts(found)
    text = "".join(_texts(item) for item in items(exchange, "message")).rstrip("\ufffd")
    parts = [bytes(byte % 256 for byte in entry["bytes"] if isinstance(byte, int)) for entry in found]
    cut = response(exchange).get("status") == "incomplete"
    joined = [b"".join(some).decode("utf-8", "replace").rstrip("\ufffd") for some in (parts, parts[:-1])]
    if text not in (joined[:1] if cut else joined):
        yield Problem(expected=as_json(text), actual=as_json(joined[0]), pointer="output_text.logprobs")


def listed_entries(exchange: Exchange) -> list[dict[str, Any]]:
    """Return the entries of the whole text that have alternatives."""
    return [one for one in _some_entries(exchange) if isinstance(one.get("top_logprobs"), list)]


@both(
    "responses/logprobs/ranked",
    ("Give the alternatives best first, each once", "LP-02"),
    ("Stream the alternatives best first, each once", "LP-02"),
)
def _ranked(exchange: Exchange) -> Iterator[Problem]:
    for found in (listed_entries(exchange), _streamed_entries(exchange)):
        yield from ranked(found, requested_top_logprobs(exchange))


def _streamed_entries(exchange: Exchange) -> list[dict[str, Any]]:
    """Return the entries of the deltas of a stream that have alternatives."""
    return [
        entry
        for event in events(exchange)
        if event.get("type") == "response.output_text.delta"
        for entry in event.get("logprobs") or []
        if isinstance(entry, dict)
        and isinstance(entry.get("logprob"), float | int)
        and isinstance(entry.get("top_logprobs"), list)
    ]


@both(
    "responses/logprobs/as-many",
    ("Give as many alternatives as `top_logprobs` requests", "LP-02"),
    ("Stream as many alternatives as `top_logprobs` requests", "LP-02"),
)
def _as_many(exchange: Exchange) -> Iterator[Problem]:
    for found in (listed_entries(exchange), _streamed_entries(exchange)):
        yield from as_many(
            found, requested_top_logprobs(exchange) if found else 0, free=unconstrained(exchange)
        )


@both(
    "responses/logprobs/sampled",
    ("Give the drawn token the same value in the list of the best", "LP-04"),
    ("Stream the drawn token with the same value in the list of the best", "LP-04"),
)
def _sampled(exchange: Exchange) -> Iterator[Problem]:
    yield from sampled_in([one for one in listed_entries(exchange) if "token" in one])


@both(
    "responses/logprobs/probable",
    ("Give probabilities that add up to 1 at most", "LP-02"),
    ("Stream probabilities that add up to 1 at most", "LP-02"),
)
def _probable(exchange: Exchange) -> Iterator[Problem]:
    yield from probable(
        [one for one in listed_entries(exchange) if isinstance(one.get("logprob"), int | float)]
    )


@stream("responses/logprobs/deltas", "Send as many entries in deltas as in done events", "LP-07")
def _deltas(exchange: Exchange) -> Iterator[Problem]:
    at_the_end = [entry.get("token") for entry in _some_entries(exchange)]
    found: dict[str, list[Any]] = {"delta": [], "done": []}
    for event in events(exchange):
        stem, _, verb = str(event.get("type")).rpartition(".")
        if stem == "response.output_text" and verb in found:
            entries = event.get("logprobs") or []
            found[verb] += [entry.get("token") for entry in entries if isinstance(entry, dict)]
    if found["delta"] != found["done"]:
        wanted, shown = (
            f"{len(one)} entries: {as_json(one)}"[:200] for one in (found["done"], found["delta"])
        )
        yield Problem(expected=wanted, actual=shown, pointer="output_text.delta, logprobs")
    elif not found["delta"]:
        where, wanted = "output_text.delta, logprobs", as_json(at_the_end)[:200]
        yield Problem(expected=wanted, actual="no entries", pointer=where)


def _cut(target: Target) -> dict[str, object]:
    return create_response(
        target, "Hi", max_output_tokens=16, metadata={"run": "1"}, instructions="Count to 1000."
    )


pair("responses/limits", "An answer with a limit, metadata and instructions", _cut)


@either(
    "responses/limits/incomplete",
    "Report `incomplete` with the reason if the limit was reached",
    "R-05",
    "R-03",
)
def _limited(exchange: Exchange) -> Iterator[Problem]:
    limit = requested_limit(exchange)
    found = response(exchange)
    usage = found.get("usage")
    tokens = usage.get("output_tokens") if isinstance(usage, dict) else None
    if isinstance(tokens, int) and tokens > limit:
        most, where = f"at most {limit} tokens", "usage.output_tokens"
        yield Problem(expected=most, actual=str(tokens), pointer=where, rule="R-05")
    details = found.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    state = found.get("status")
    wanted = {"incomplete": "max_output_tokens", "completed": None}
    if state in wanted and reason not in (wanted[state], "content_filter" if state == "incomplete" else None):
        # an incomplete response without the reason. R-03: a completed one with a reason.
        rule, where = "R-05" if state == "incomplete" else "R-03", "incomplete_details.reason"
        yield Problem(expected=as_json(wanted[state]), actual=as_json(reason), pointer=where, rule=rule)
    if "completed_at" in found and (state == "completed") != (found["completed_at"] is not None):
        shown = f"{found.get('completed_at')} while {state}"
        yield Problem(expected="a time when completed", actual=shown, pointer="completed_at", rule="R-03")


@either("responses/limits/last-item", "Mark only the item that the limit cut as incomplete", "R-05", "R-07")
def _last_item(exchange: Exchange) -> Iterator[Problem]:
    if response(exchange).get("status") != "incomplete" or not items(exchange):
        raise Inconclusive("the answer was not cut")
    states = [item.get("status") for item in items(exchange)]
    last = items(exchange)[-1]
    if last.get("type") == "function_call" and set(states) == {"completed"}:
        raise Inconclusive("the limit came after a complete call")
    if states[-1] != "incomplete" or "incomplete" in states[:-1]:
        wanted, rule = "incomplete at the end", "R-07" if "incomplete" in states[:-1] else "R-05"
        yield Problem(expected=wanted, actual=as_json(states), pointer="output[].status", rule=rule)


@either("responses/limits/echo", "Echo fields of the request", "R-11", "R-16")
def _echo(exchange: Exchange) -> Iterator[Problem]:
    wanted = {
        key: request_fields(exchange)[key] for key in ECHOED if request_fields(exchange).get(key) is not None
    }
    for key, value in wanted.items():
        if response(exchange).get(key) != value:
            shown = as_json(response(exchange).get(key))[:100]
            rule = "R-16" if key == "metadata" else "R-11"
            yield Problem(expected=as_json(value)[:200], actual=shown, pointer=key, rule=rule)


ECHOED = ("max_output_tokens", "metadata", "instructions", "temperature")


@stream("responses/limits/ended", "End text and item before an incomplete response", "RS-15")
def _ended(exchange: Exchange) -> Iterator[Problem]:
    kinds = [event.get("type") for event in events(exchange)]
    if "response.incomplete" not in kinds:
        raise Inconclusive("the answer was not cut")
    for added, done in (
        ("output_item.added", "output_item.done"),
        ("content_part.added", "content_part.done"),
    ):
        counts = [kinds.count(f"response.{kind}") for kind in (added, done)]
        if counts[0] != counts[1]:
            yield Problem(expected=f"{counts[0]} {done}", actual=str(counts[1]), pointer="events")


@whole("responses/limits/no-logprobs", "Give no logprobs of the text unless requested", "LP-06")
def _unasked(exchange: Exchange) -> Iterator[Problem]:
    _without_logprobs(exchange)
    if _entries(exchange):
        yield Problem(expected="[]", actual="entries", pointer="output_text.logprobs")


@stream("responses/limits/stream-no-logprobs", "Stream no logprobs of the text unless requested", "LP-06")
def _unasked_stream(exchange: Exchange) -> Iterator[Problem]:
    _without_logprobs(exchange)
    for number, event in enumerate(events(exchange)):
        if str(event.get("type")).startswith("response.output_text.") and event.get("logprobs"):
            yield Problem(expected="[]", actual="entries", pointer=f"event {number}, logprobs")


def _without_logprobs(exchange: Exchange) -> None:
    include = request_fields(exchange).get("include")
    if isinstance(include, list) and "message.output_text.logprobs" in include:
        raise NotRequested("the request asks for logprobs")
