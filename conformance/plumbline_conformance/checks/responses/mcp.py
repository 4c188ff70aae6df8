"""Check the items and events of an MCP server that the judged server calls (TOOL-17, TOOL-21).

The judge runs the MCP server (`check --mcp HOST:PORT`). What its tools return depends on their arguments alone, so the
checks know it without having seen a call.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import accepted, at, follow_up_accepted
from plumbline_conformance.checks.laws import STREAM, WHOLE, both, either, stream
from plumbline_conformance.checks.request_reader import request_fields
from plumbline_conformance.checks.responses.shared_laws import create_response, events, items, pair, response
from plumbline_conformance.checks.responses.tools import calls_of
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    about,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Json = dict[str, Any]
Steps = Generator[Request, Exchange, None]
LIST, CALL, ASKED = "mcp_list_tools", "mcp_call", "mcp_approval_request"
NEEDS = ("mcp",)
QUESTION = f"Use {tools.MCP_LABEL}__get_time with city Paris."
TWICE = f"{QUESTION} Use {tools.MCP_LABEL}__get_time with city Rome."
FAILING = f"Use {tools.MCP_LABEL}__fail with reason rain."
_MOST = 256
_LIFE = (
    *(f"{LIST}.{verb}" for verb in ("in_progress", "completed", "failed")),
    *(f"{CALL}.{verb}" for verb in ("in_progress", "completed", "failed")),
    "mcp_call_arguments.done",
)
"""The events of a list and of a call, without deltas."""


def _request(target: Target, question: object, tool: str, **fields: Any) -> dict[str, object]:
    """Return a request that forces a call of a tool of the MCP server; `server_url` and such go to the tool."""
    own = {name: fields.pop(name) for name in ("server_url", "require_approval") if name in fields}
    given = {"tool_choice": "required", "max_output_tokens": _MOST, **fields}
    return create_response(target, question, tools=[tools.mcp(target, tool, **own)], **given)


def _server_of(exchange: Exchange) -> Json:
    """Return the judge's MCP server in the tools of a request.

    Raises:
        NotRequested: there is none, because laws apply to the requests of any client.
    """
    for tool in objects_in(request_fields(exchange).get("tools")):
        if tool.get("type") == "mcp" and tool.get("authorization") == tools.MCP_SECRET:
            return tool
    raise NotRequested("the request has no MCP server of the judge")


def _called_at_once(exchange: Exchange) -> list[Json]:
    """Return the MCP calls of an answer, if its request required a call and asked for no approval.

    Raises:
        NotRequested: it did not.
    """
    given = request_fields(exchange)
    server = _server_of(exchange)
    if given.get("tool_choice") != "required" or len(objects_in(given.get("tools"))) != 1:
        raise NotRequested("the request forces no call of the MCP server")
    if server.get("require_approval") != "never":
        raise NotRequested("the request does not allow a call without approval")
    return calls_of(exchange, CALL, forced=True)


def _offered(exchange: Exchange) -> list[Json]:
    """Return the tools that the request allows, as an item lists them."""
    allowed = _server_of(exchange).get("allowed_tools")
    return [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["inputSchema"]}
        for tool in tools.MCP_TOOLS
        if isinstance(allowed, list) and tool["name"] in allowed
    ]


pair(
    "responses/mcp",
    "A tool of an MCP server that the server calls",
    lambda target: _request(target, QUESTION, "get_time"),
    needs=NEEDS,
)


@both(
    "responses/mcp/listed",
    ("List the allowed tools of an MCP server before their calls", "TOOL-21"),
    ("Stream the list of the allowed tools before their calls", "TOOL-21"),
)
def _listed(exchange: Exchange) -> Iterator[Problem]:
    offered = _offered(exchange)
    kinds = [item.get("type") for item in items(exchange)]
    lists = items(exchange, LIST)
    if len(lists) != 1 or (CALL in kinds and kinds.index(LIST) > kinds.index(CALL)):
        yield Problem(expected=f"one {LIST}, before calls", actual=as_json(kinds)[:200], pointer="output")
        return
    if lists[0].get("server_label") != tools.MCP_LABEL or lists[0].get("error") is not None:
        shown = as_json((lists[0].get("server_label"), lists[0].get("error")))[:200]
        yield Problem(expected=f"the tools of {tools.MCP_LABEL}", actual=shown, pointer="output[].error")
    found = [{name: tool.get(name) for name in offered[0]} for tool in objects_in(lists[0].get("tools"))]
    if found != offered:
        shown, wanted = as_json(found)[:200], as_json(offered)[:200]
        yield Problem(expected=wanted, actual=shown, pointer="output[].tools")


@both(
    "responses/mcp/called",
    ("Call a tool of an MCP server, with its output in the item", "TOOL-21"),
    ("Stream a call of a tool of an MCP server, with its output in the item", "TOOL-21"),
)
def _called(exchange: Exchange) -> Iterator[Problem]:
    allowed = [tool["name"] for tool in _offered(exchange)]
    for call in _called_at_once(exchange):
        text, failed = tools.mcp_result(str(call.get("name")), _arguments(call))
        wanted = {"server_label": tools.MCP_LABEL, "output": None if failed else text}
        if call.get("status") is not None:  # The contract lets a server leave it out.
            wanted["status"] = "failed" if failed else "completed"
        found = {name: call.get(name) for name in wanted}
        if found != wanted or call.get("name") not in allowed or (call.get("error") is None) == failed:
            shown = as_json({**found, "name": call.get("name"), "error": call.get("error")})[:200]
            yield Problem(
                expected=f"a call of {', '.join(allowed)}: {as_json(wanted)}",
                actual=shown,
                pointer="output[]",
            )


def _arguments(call: Json) -> Json:
    """Return the arguments of a call; inconclusive if they are no object, which no tool can take."""
    try:
        found = json.loads(str(call.get("arguments")))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Inconclusive("the arguments of the call are no object")
    return found


@either("responses/mcp/answered", "Go on after the call, until the model answers", "TOOL-21")
def _answered(exchange: Exchange) -> Iterator[Problem]:
    _called_at_once(exchange)
    kinds = [item.get("type") for item in items(exchange)]
    if kinds[-1] != "message":
        yield Problem(expected="a message after the call", actual=as_json(kinds)[:200], pointer="output")


@either("responses/mcp/credentials", "Send back no credentials of an MCP server", "TOOL-21")
def _credentials(exchange: Exchange) -> Iterator[Problem]:
    _server_of(exchange)
    if tools.MCP_SECRET.encode() in accepted(exchange).body:
        yield Problem(expected="no credentials", actual="the authorization of the request", pointer="body")


@stream("responses/mcp/events", "Send the events of lists and calls in order", "TOOL-21")
def _in_order(exchange: Exchange) -> Iterator[Problem]:
    _server_of(exchange)
    yield from _events_of_items(exchange)


def _events_of_items(exchange: Exchange) -> Iterator[Problem]:
    """Compare the events of each list and call with those that its end asks for."""
    for place, item in enumerate(items(exchange)):
        kind = item.get("type")
        if kind not in (LIST, CALL):
            continue
        end = "completed" if item.get("error") is None else "failed"
        middle = ["mcp_call_arguments.done"] * (kind == CALL)
        wanted = [f"{kind}.in_progress", *middle, f"{kind}.{end}"]
        names = [str(event.get("type")).removeprefix("response.") for event in _of_item(exchange, item)]
        found = [name for name in names if name in _LIFE]
        if found != wanted or names[:1] != ["output_item.added"] or names[-1:] != ["output_item.done"]:
            yield Problem(
                expected=f"output_item.added, {', '.join(wanted)}, output_item.done",
                actual=", ".join(dict.fromkeys(names))[:300],
                pointer=f"the events of output[{place}]",
            )


def _of_item(exchange: Exchange, item: Json) -> list[Json]:
    """Return the events of a stream that name an item."""
    name = item.get("id")
    return [
        event
        for event in events(exchange)
        if event.get("item_id") == name
        or (isinstance(event.get("item"), dict) and event["item"].get("id") == name)
    ]


@stream("responses/mcp/arguments", "Make deltas of arguments join to the arguments of the call", "TOOL-21")
def _joined(exchange: Exchange) -> Iterator[Problem]:
    _called_at_once(exchange)
    for call in items(exchange, CALL):
        texts = {
            verb: "".join(
                str(event.get(field))
                for event in _of_item(exchange, call)
                if event.get("type") == f"response.mcp_call_arguments.{verb}"
            )
            for verb, field in (("delta", "delta"), ("done", "arguments"))
        }
        if not texts["delta"]:
            del texts["delta"]  # No source requires deltas of a call that the server makes itself.
        if set(texts.values()) != {call.get("arguments")}:
            shown = as_json(texts)[:200]
            yield Problem(expected=as_json(call.get("arguments")), actual=shown, pointer="arguments")


@scenario("responses/mcp-approval", "A call that the client approves, and one that it declines", needs=NEEDS)
def approval(target: Target) -> Steps:
    body = _request(target, QUESTION, "get_time", require_approval="always")
    first = yield Request(name="asked", path="/responses", json=body)
    found = first.json.get("output") if isinstance(first.json, dict) else None
    asked = [item for item in objects_in(found) if item.get("type") == ASKED]
    for name, approve in (("approved", True), ("declined", False)):
        answers = [
            {"type": "mcp_approval_response", "approval_request_id": item.get("id"), "approve": approve}
            for item in asked
        ]
        if answers:
            given = [*user(QUESTION), *objects_in(found), *answers]
            yield Request(name=name, path="/responses", json={**body, "input": given, "tool_choice": "auto"})


def _asked_for(seen: Transcript) -> list[Json]:
    return calls_of(accepted(at(seen, "asked")), ASKED, forced=True)


@check("responses/mcp-approval/asked", "Ask before a call that needs approval, and make none", "TOOL-21")
def approval_asked(seen: Transcript) -> Iterator[Problem]:
    for item in _asked_for(seen):
        found = (item.get("server_label"), item.get("name"), bool(_arguments(item)))
        if found != (tools.MCP_LABEL, "get_time", True):
            yield Problem(
                expected=f"a call of get_time of {tools.MCP_LABEL}",
                actual=as_json(found)[:200],
                pointer="output[]",
                exchange="asked",
            )
    if items(at(seen, "asked"), CALL):
        yield Problem(expected="no call", actual="one", pointer="output", exchange="asked")


@check("responses/mcp-approval/approved", "Make the call that the client approves", "TOOL-21")
def approval_given(seen: Transcript) -> Iterator[Problem]:
    asked = _asked_for(seen)
    yield from follow_up_accepted(seen, "asked", "approved")
    made = {call.get("approval_request_id"): call for call in items(at(seen, "approved"), CALL)}
    for item in asked:
        if item.get("name") != "get_time":
            raise Inconclusive("another tool is asked for; another check reports this")
        text, failed = tools.mcp_result(str(item.get("name")), _arguments(item))
        call = made.get(item.get("id"), {})
        output = None if failed else text  # The tool fails if the model names no city.
        found = {name: call.get(name) for name in ("arguments", "output")}
        if not call or found != {"arguments": item.get("arguments"), "output": output}:
            wanted = f"the call {as_json(item.get('id'))} with the output {as_json(output)}"
            yield Problem(
                expected=wanted[:200], actual=as_json(found)[:200], pointer="output[]", exchange="approved"
            )


@check("responses/mcp-approval/declined", "Do not make the call that the client declines", "TOOL-21")
def approval_denied(seen: Transcript) -> Iterator[Problem]:
    _asked_for(seen)
    yield from follow_up_accepted(seen, "asked", "declined")
    # Whatever approval a call names: every call needs one, and the context has none.
    for call in items(at(seen, "declined"), CALL):
        shown = as_json(call.get("output"))[:200]
        yield Problem(expected="no call", actual=shown, pointer="output", exchange="declined")


@check("responses/mcp-approval/listed-once", "List no tools that the context lists", "TOOL-21")
def listed_once(seen: Transcript) -> Iterator[Problem]:
    if not items(accepted(at(seen, "asked")), LIST):
        raise Inconclusive("the first answer lists no tools; another check reports this")
    again = accepted(at(seen, "approved"))
    if items(again, LIST):
        wanted, shown = f"no further {LIST}", "one more"
        yield Problem(expected=wanted, actual=shown, pointer="output", exchange="approved")


@scenario("responses/mcp-failure", "A call that fails, and an MCP server that is not there", needs=NEEDS)
def failure(target: Target) -> Steps:
    failing = _request(target, FAILING, "fail")
    yield Request(name=WHOLE, path="/responses", json=failing)
    yield Request(name=STREAM, path="/responses", json={**failing, "stream": True})
    url = f"http://{target.mcp or 'HOST:PORT'}/not-there"
    lost = _request(target, "Hi", "get_time", server_url=url, tool_choice="auto")
    yield Request(name="lost", path="/responses", json=lost)
    yield Request(name="lost_stream", path="/responses", json={**lost, "stream": True})


@check("responses/mcp-failure/item", "Report a call that failed as an item with an error", "TOOL-21")
def failure_item(seen: Transcript) -> Iterator[Problem]:
    for name in (WHOLE, STREAM):
        exchange = accepted(at(seen, name))
        for call in calls_of(exchange, CALL, forced=True):
            error = call.get("error")
            kind = error.get("type") if isinstance(error, dict) else error
            found = (kind, call.get("output"), response(exchange).get("status"))
            if found != ("mcp_tool_execution_error", None, "completed"):
                wanted = "mcp_tool_execution_error, no output, and a completed response"
                yield Problem(expected=wanted, actual=as_json(found)[:200], pointer="output[]", exchange=name)


@check("responses/mcp-failure/events", "Send the events of a call and a list that failed", "TOOL-21")
def failure_events(seen: Transcript) -> Iterator[Problem]:
    for name in (STREAM, "lost_stream"):
        exchange = accepted(at(seen, name))
        yield from about(exchange, _events_of_items(exchange))


@check("responses/mcp-failure/lost", "Answer without an MCP server that cannot be reached", "TOOL-21")
def failure_lost(seen: Transcript) -> Iterator[Problem]:
    """Check both forms; a server that refuses such a request, as OpenAI's service does, is not judged."""
    for name in ("lost", "lost_stream"):
        exchange = accepted(at(seen, name))
        if response(exchange).get("status") == "incomplete":
            raise Inconclusive("the token limit cut the answer")
        lists = items(exchange, LIST)
        errors = [bool(one.get("error")) and one.get("tools") == [] for one in lists]
        if errors != [True] or not items(exchange, "message"):
            kinds = [item.get("type") for item in items(exchange)]
            yield Problem(
                expected=f"a {LIST} with an error, and a message",
                actual=f"{as_json(kinds)}, errors {as_json([one.get('error') for one in lists])}"[:200],
                pointer="output",
                exchange=name,
            )


pair(
    "responses/mcp-limit",
    "One call of the server, though the question needs two",
    lambda target: _request(target, TWICE, "get_time", max_tool_calls=1),
    needs=NEEDS,
)


@either("responses/mcp-limit/counted", "Make no more calls than `max_tool_calls`", "TOOL-17")
def _limited(exchange: Exchange) -> Iterator[Problem]:
    most = request_fields(exchange).get("max_tool_calls")
    if not isinstance(most, int):
        raise NotRequested("the request does not limit calls of the server")
    made = len(items(exchange, CALL))
    if made > most:
        yield Problem(expected=f"at most {most}", actual=str(made), pointer="output")
