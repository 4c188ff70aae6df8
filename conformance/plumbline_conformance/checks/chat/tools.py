"""Check tools on chat completions that the model may call."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answers import called, choice, deltas, finished, parsed
from plumbline_conformance.checks.chat.shared_laws import SHAPE, pair, shape
from plumbline_conformance.checks.common import accepted, at, follow_up_accepted, whole_shapes
from plumbline_conformance.checks.laws import STREAM, WHOLE, both, stream, whole
from plumbline_conformance.checks.request_reader import request_fields, requested_tools
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["chat_with_tools", "fragments", "numbered", "objects", "reasons"]

LIMIT = 128


def chat_with_tools(
    target: Target, question: str, *offered: dict[str, Any], **fields: object
) -> dict[str, object]:
    """Return a request with tools."""
    given = {"tools": list(offered), "max_tokens": LIMIT, "temperature": 0, "seed": 1, **fields}
    return chat(target, messages=user(question), **given)


def _one(target: Target) -> dict[str, object]:
    return chat_with_tools(target, "Use get_weather with city Paris.", tools.weather)


pair("chat/tool", "A tool that may be called", _one, needs=("tools",))


@both(
    "chat/tool/arguments",
    ("Write arguments as a string that is one JSON object", "TOOL-01"),
    ("Stream fragments that join to one JSON object", "CS-12"),
)
def objects(exchange: Exchange) -> Iterator[Problem]:
    """Check that arguments are one JSON object, except for custom tools (TOOL-01, CS-12, TOOL-19)."""
    for number, call in enumerate(called(exchange)):
        if not call.custom and not isinstance(parsed(call.arguments), dict):
            where = f"tool_calls[{number}].function.arguments"
            yield Problem(expected="one JSON object", actual=as_json(call.arguments)[:200], pointer=where)


@both(
    "chat/tool/known-name",
    ("Call only tools of the request", "TOOL-02"),
    ("Call only tools of the request, streamed", "TOOL-02"),
)
def _known_names(exchange: Exchange) -> Iterator[Problem]:
    names = set(requested_tools(exchange))
    for number, call in enumerate(called(exchange)):
        if call.name not in names:
            where = f"tool_calls[{number}].function.name"
            yield Problem(expected=" or ".join(sorted(names)), actual=as_json(call.name), pointer=where)


@both(
    "chat/tool/finish",
    ("Finish with `tool_calls` if there are calls, and only then", "CHAT-05"),
    ("Finish the stream with `tool_calls` if there are calls, and only then", "CS-13"),
)
def reasons(exchange: Exchange) -> Iterator[Problem]:
    """Check the finish reason (CHAT-05, CS-13). A forced call may end with `stop`, as with OpenAI's service."""
    found = finished(choice(exchange))
    free = request_fields(exchange).get("tool_choice") in (None, "auto")
    wanted = {"tool_calls"} | (set() if free else {"stop"}) if found.calls else {"stop", "content_filter"}
    if found.finish_reason not in wanted:
        shown = " or ".join(sorted(wanted))
        yield Problem(expected=shown, actual=as_json(found.finish_reason), pointer="choices[0].finish_reason")


@both(
    "chat/tool/no-markup",
    ("Keep the markup of calls out of the content", "TOOL-18"),
    ("Keep the markup of calls out of the streamed content", "TOOL-18"),
)
def no_markup(exchange: Exchange) -> Iterator[Problem]:
    content = choice(exchange).content
    for left in tools.left_in_text(content, requested_tools(exchange)):
        yield Problem(expected="a call", actual=as_json(left)[:200], pointer="content")
        return
    called(exchange)
    for mark in tools.MARKUP:
        if mark in content:
            yield Problem(expected=f"no {mark}", actual=as_json(content)[:200], pointer="content")


@stream("chat/tool/id-once", "Give id and name in the first delta of a call, and never again", "CS-10")
def _head_once(exchange: Exchange) -> Iterator[Problem]:
    """Check what clients join over the deltas of a call: a repeated id or name becomes another one."""
    yield from _in_first(exchange, ("id", "name"))


@stream("chat/tool/type-once", "Give the type in the first delta of a call, and never again", "CS-21")
def _type_once(exchange: Exchange) -> Iterator[Problem]:
    yield from _in_first(exchange, ("type",))


@stream("chat/tool/bare", "Leave id, name and type out of later deltas of a call", "CS-10", milder=True)
def _later_bare(exchange: Exchange) -> Iterator[Problem]:
    """Check that later deltas have no empty texts: some clients take each name as that of a new call (CS-10)."""
    called(exchange)
    met: set[tuple[str, str]] = set()
    for where, piece in fragments(exchange):
        function = piece.get("function") or piece.get("custom") or {}
        empty = [key for key in ("id", "type", "name") if {**function, **piece}.get(key) == ""]
        call = where.rpartition("choices[")[2].partition("]")[0], as_json(piece.get("index"))
        is_first = call not in met
        met.add(call)
        if empty and not is_first:
            yield Problem(expected=f"no {' or '.join(empty)}", actual=as_json(piece)[:200], pointer=where)


def _in_first(exchange: Exchange, head: tuple[str, ...]) -> Iterator[Problem]:
    called(exchange)
    met: set[str] = set()
    for where, piece in fragments(exchange):
        function = piece.get("function") or piece.get("custom") or {}
        given = [key for key, value in (*piece.items(), *function.items()) if key in head and value]
        place = f"{where.rpartition('choices[')[2].partition(']')[0]}, {as_json(piece.get('index'))}"
        shown = as_json(piece)[:200]
        if place not in met and sorted(given) != sorted(head):
            yield Problem(expected=" and ".join(head), actual=shown, pointer=where)
        if place in met and given:
            yield Problem(expected=f"no {' or '.join(given)}", actual=shown, pointer=where)
        met.add(place)


def fragments(exchange: Exchange) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return every fragment of a call, with its place."""
    for number, one, delta in deltas(exchange):
        pieces = delta.get("tool_calls")
        for place, piece in enumerate(pieces if isinstance(pieces, list) else []):
            if isinstance(piece, dict):
                yield f"event {number}, choices[{one.get('index')}].delta.tool_calls[{place}]", piece


@stream("chat/tool/index", "Number calls from 0, in the order of their appearance", "CS-11")
def numbered(exchange: Exchange) -> Iterator[Problem]:
    """Check that calls are numbered from 0 and finished one after the other (CS-11)."""
    called(exchange)
    found = [piece.get("index") for where, piece in fragments(exchange) if "choices[0]" in where]
    order = list(dict.fromkeys(map(repr, found)))
    if order != [str(number) for number in range(len(order))]:
        yield Problem(expected="0, 1, 2, …", actual=", ".join(order), pointer="tool_calls[].index")
    # Compare numbers, because as text 10 is before 2.
    numbers = [index for index in found if isinstance(index, int)]
    if numbers != sorted(numbers):
        yield Problem(
            expected="one call after the other", actual=as_json(found)[:200], pointer="tool_calls[].index"
        )


@whole("chat/tool/ids", "Give every call an id of 1 to 64 characters", "TOOL-09")
def _ids(exchange: Exchange) -> Iterator[Problem]:
    found = _ids_of(exchange)
    for number, name in enumerate(found):
        if not isinstance(name, str) or not 1 <= len(name) <= 64:
            where = f"tool_calls[{number}].id"
            yield Problem(expected="1 to 64 characters", actual=as_json(name)[:100], pointer=where)
    if len(set(map(repr, found))) != len(found):
        yield Problem(expected="ids that differ", actual=as_json(found)[:200], pointer="tool_calls[].id")


@check("chat/tool/new-ids", "Give the calls of each answer new ids", "TOOL-09", milder=True)
def tool_new_ids(seen: Transcript) -> Iterator[Problem]:
    """Check that ids do not repeat across answers: a client that keeps a conversation mixes such calls up."""
    called(accepted(at(seen, STREAM)))
    first = {as_json(name) for name in _ids_of(accepted(at(seen, WHOLE)))}
    again = first & {as_json(piece["id"]) for _, piece in fragments(at(seen, STREAM)) if piece.get("id")}
    if again:
        wanted, where = "ids that no earlier answer has", "tool_calls[].id"
        yield Problem(expected=wanted, actual=", ".join(sorted(again)), pointer=where, exchange=STREAM)


def _ids_of(exchange: Exchange) -> list[Any]:
    called(exchange)
    return [call.get("id") for call in exchange.json["choices"][0]["message"]["tool_calls"]]


@stream("chat/tool/stream-ids", "Give every streamed call an id of 1 to 64 characters", "TOOL-09")
def _streamed_lengths(exchange: Exchange) -> Iterator[Problem]:
    called(exchange)
    for where, piece in fragments(exchange):
        name = piece.get("id")
        if name is not None and not (isinstance(name, str) and len(name) <= 64):
            yield Problem(expected="1 to 64 characters", actual=as_json(name)[:100], pointer=f"{where}.id")


def _two(target: Target) -> dict[str, object]:
    return chat_with_tools(target, tools.PLACES, tools.weather, tools.time, parallel_tool_calls=True)


pair("chat/tools", "Two tools that are both needed", _two, needs=("tools",))


def _several(name: str) -> Callable[[Transcript], None]:
    def before(seen: Transcript) -> None:
        if len(called(accepted(at(seen, name)))) < 2:
            raise Inconclusive("the model made one call only")

    return before


whole("chat/tools/ids", "Give every call of an answer a unique id", "TOOL-09", before=_several(WHOLE))(_ids)


@stream("chat/tools/stream-ids", "Give every streamed call a unique id", "TOOL-09", before=_several(STREAM))
def _stream_ids(exchange: Exchange) -> Iterator[Problem]:
    found = [piece["id"] for _, piece in fragments(exchange) if piece.get("id")]
    if len(set(map(repr, found))) != len(found):
        yield Problem(expected="ids that differ", actual=as_json(found)[:200], pointer="tool_calls[].id")


stream(
    "chat/tools/index",
    "Number calls 0, 1, 2, and finish one before the next",
    "CS-11",
    before=_several(STREAM),
)(numbered)
stream(
    "chat/tools/arguments",
    "Keep the arguments of several calls apart",
    "CS-12",
    before=_several(STREAM),
)(objects)


def _empty(target: Target) -> dict[str, object]:
    return chat_with_tools(target, "Use ping with nothing.", tools.ping)


pair("chat/tool-empty", "A tool without parameters", _empty, needs=("tools",))


both(
    "chat/tool-empty/arguments",
    ("Write the arguments of a tool without parameters as {}", "TOOL-19"),
    ("Stream the arguments of such a tool as {}", "TOOL-19"),
)(objects)


@scenario(
    "chat/tool-round", "A call, its result as text and as parts, and the answers to both", needs=("tools",)
)
def tool_round(target: Target) -> Generator[Request, Exchange, None]:
    """Send the server's call back unchanged, or a made-up call if it made no call."""
    first = yield Request(name="call", path="/chat/completions", json=_one(target))
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [_MADE_UP]}
    try:
        found = first.json["choices"][0]["message"]
        if found["tool_calls"] and all(isinstance(call["id"], str) for call in found["tool_calls"]):
            message = found
    except (LookupError, TypeError):
        pass
    results = {"result": "21 degrees", "result_in_parts": [{"type": "text", "text": "21 degrees"}]}
    for name, content in results.items():
        answers = [
            {"role": "tool", "tool_call_id": call["id"], "content": content} for call in message["tool_calls"]
        ]
        messages = [*user("Use get_weather with city Paris."), message, *answers]
        body = {**_one(target), "messages": messages}
        yield Request(name=name, path="/chat/completions", json=body)


_MADE_UP = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
}


whole_shapes(
    "chat/tool-round",
    "CreateChatCompletionResponse",
    "call",
    "result",
    "result_in_parts",
    rules=SHAPE,
    law=shape,
)


@check("chat/tool-round/answered", "Accept the server's own call with its result", "TOOL-10")
def round_answered(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, "call", "result")


@check("chat/tool-round/parts", "Accept the result of a tool as content parts", "TOOL-10")
def round_parts(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, "call", "result_in_parts")
