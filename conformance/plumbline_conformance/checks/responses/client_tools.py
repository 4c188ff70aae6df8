"""Check the tools that the client runs: shells, patches of files (TOOL-20), and a search for tools (TOOL-22)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import msgspec

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import accepted, follow_up_accepted, longer_prompt, only
from plumbline_conformance.checks.laws import both, either, stream
from plumbline_conformance.checks.request_reader import request_fields
from plumbline_conformance.checks.responses.shared_laws import create_response, events, items, pair
from plumbline_conformance.checks.responses.tools import calls_of
from plumbline_conformance.suite.scenario import NotRequested, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Json = dict[str, Any]


class _Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the client runs, and what its scenarios send."""

    slug: str
    need: str
    """The capability that its scenarios need."""
    title: str
    tool: Json
    others: tuple[Json, ...] = ()
    """Tools that belong to it."""
    choice: object = "required"
    """What forces a call."""
    rule: str = "TOOL-20"
    question: str
    call: Json
    """The fields of a call that a client makes up if the server made none."""
    output: Callable[[str], Json]
    """The fields of an output with this text."""
    fault: Callable[[Json], str]
    """What keeps a client from running a call; empty if nothing does."""

    @property
    def kind(self) -> str:
        """Return the type of the items with calls."""
        return f"{self.tool['type']}_call"

    @property
    def output_kind(self) -> str:
        """Return the type of the items with outputs."""
        return "tool_search_output" if self.kind == "tool_search_call" else f"{self.kind}_output"

    def request(self, target: Target) -> dict[str, object]:
        """Return a request that forces a call."""
        return create_response(
            target, self.question, tools=[self.tool, *self.others], tool_choice=self.choice
        )


def _commands(call: Json) -> list[Any]:
    action = call.get("action")
    found = action.get("commands", action.get("command")) if isinstance(action, dict) else None
    return found if isinstance(found, list) else []


def _no_commands(call: Json) -> str:
    found = _commands(call)
    return (
        ""
        if found and all(isinstance(one, str) and one for one in found)
        else f"the commands {as_json(found)}"
    )


def _no_path(call: Json) -> str:
    operation = call.get("operation")
    path = operation.get("path") if isinstance(operation, dict) else None
    return "" if isinstance(path, str) and path else f"the path {as_json(path)}"


def _printed(text: str) -> Json:
    return {"output": [{"stdout": text, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]}


def _no_arguments(call: Json) -> str:
    found = call.get("execution"), call.get("arguments")
    good = found[0] == "client" and isinstance(found[1], dict) and found[1]
    return "" if good else f"execution {as_json(found[0])} with the arguments {as_json(found[1])}"


SHELL = _Tool(
    slug="responses/tool-shell",
    need="shell",
    choice={"type": "shell"},
    title="A shell that the client runs",
    tool=tools.SHELL,
    question="Use shell with commands ls.",
    call={"action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}},
    output=_printed,
    fault=_no_commands,
)
LOCAL_SHELL = _Tool(
    slug="responses/tool-local-shell",
    need="local-shell",
    title="Single commands that the client runs",
    tool=tools.LOCAL_SHELL,
    question="Use local_shell with command pwd.",
    call={"id": "lsh_1", "action": {"type": "exec", "command": ["ls"], "env": {}}},
    output=lambda text: {"id": "lsho_1", "output": text},
    fault=_no_commands,
)
PATCH = _Tool(
    slug="responses/tool-patch",
    need="apply-patch",
    choice={"type": "apply_patch"},
    title="Patches that the client applies",
    tool=tools.PATCH,
    question="Use apply_patch with type create_file, path a.txt and diff +hello.",
    call={"operation": {"type": "create_file", "path": "a.txt", "diff": "+hello"}},
    output=lambda text: {"status": "completed", "output": text},
    fault=_no_path,
)
SEARCH = _Tool(
    slug="responses/tool-search",
    need="tool-search",
    title="A search for tools that the client runs",
    tool=tools.SEARCH,
    others=(tools.DEFERRED,),
    rule="TOOL-22",
    question="Use tool_search with query weather.",
    call={"execution": "client", "arguments": {"query": "weather"}},
    output=lambda text: {"execution": "client", "tools": [{**tools.DEFERRED, "description": text}]},
    fault=_no_arguments,
)
_SHORT, _LONG = "one", "one two three four five six seven eight nine ten"
"""Outputs; the second one begins with the first."""


def _forced(exchange: Exchange, one: _Tool) -> None:
    """Raise NotRequested unless the request forces a call of this tool, because laws apply to any client's requests."""
    given = request_fields(exchange)
    found = given.get("tools")
    offered = [tool for tool in found if isinstance(tool, dict)] if isinstance(found, list) else []
    at_once = [tool for tool in offered if tool.get("defer_loading") is not True]
    if not any({**tool, **one.tool} == tool for tool in at_once):
        raise NotRequested(f"the request has no {one.tool['type']} of the client")
    alone = given.get("tool_choice") == "required" and len(at_once) == 1
    if not alone and given.get("tool_choice") != {"type": one.tool["type"]}:
        raise NotRequested(f"the request forces no call of {one.tool['type']}")


def _register(one: _Tool) -> None:
    pair(one.slug, f"{one.title}, and a forced call", one.request, needs=(one.need,))

    @both(
        f"{one.slug}/called",
        ("Call a tool of the client by the item of its type", one.rule),
        ("Stream a call of a tool of the client as the item of its type", one.rule),
    )
    def called(exchange: Exchange) -> Iterator[Problem]:
        _forced(exchange, one)
        if functions := items(exchange, "function_call"):
            shown = f"a function_call of {as_json(functions[0].get('name'))}"[:200]
            yield Problem(expected=f"a call of the type {one.kind}", actual=shown, pointer="output")
            return
        for call in calls_of(exchange, one.kind, forced=True):
            if fault := one.fault(call):
                yield Problem(expected="a call that a client can run", actual=fault[:200], pointer="item")

    @either(
        f"{one.slug}/call-id",
        "Give a call an id of 1 to 64 characters, different from the item's",
        "TOOL-09",
    )
    def call_id(exchange: Exchange) -> Iterator[Problem]:
        _forced(exchange, one)
        calls = calls_of(exchange, one.kind, forced=True)
        for call in calls:
            name = call.get("call_id")
            if not isinstance(name, str) or not 1 <= len(name) <= 64 or name == call.get("id"):
                shown = as_json((name, call.get("id")))[:200]
                yield Problem(expected="a separate call_id", actual=shown, pointer="item.call_id")
        if len({as_json(call.get("call_id")) for call in calls}) != len(calls):
            yield Problem(expected="ids that differ", actual="the same", pointer="item.call_id")

    @scenario(
        f"{one.slug}-round", f"{one.title}: a call and its output", needs=("responses", "tools", one.need)
    )
    def round_(target: Target) -> Generator[Request, Exchange, None]:
        """Send the server's items back unchanged, or a made-up call if it made no call."""
        first = yield Request(name="call", path="/responses", json=one.request(target))
        try:
            made = [item for item in first.json["output"] if isinstance(item["type"], str)]
            calls = [item for item in made if item["type"] == one.kind and isinstance(item["call_id"], str)]
        except (LookupError, TypeError):
            made, calls = [], []
        if not calls:
            made = calls = [{"type": one.kind, "call_id": "call_1", "status": "completed", **one.call}]
        asked = {**one.request(target), "tool_choice": "auto"}
        for name, text in (("output", _SHORT), ("longer_output", _LONG)):
            outputs = [
                {"type": one.output_kind, "call_id": call["call_id"], **one.output(text)} for call in calls
            ]
            given = [{"role": "user", "content": one.question}, *made, *outputs]
            yield Request(name=name, path="/responses", json={**asked, "input": given})

    @check(
        f"{one.slug}-round/answered", "Accept the server's own call with the output of the client", "TOOL-10"
    )
    def answered(seen: Transcript) -> Iterator[Problem]:
        yield from follow_up_accepted(seen, "call", "output")

    @check(f"{one.slug}-round/read", "Give the model the output of the client", one.rule)
    def read(seen: Transcript) -> Iterator[Problem]:
        yield from longer_prompt(seen, "output", "longer_output")


for _one in (SHELL, LOCAL_SHELL, PATCH, SEARCH):
    _register(_one)


@scenario(
    "responses/tool-search-loaded",
    "A function that a search has loaded, and a forced call of it",
    needs=("responses", SEARCH.need),
)
def loaded(target: Target) -> Generator[Request, Exchange, None]:
    search = {"type": SEARCH.kind, "call_id": "call_1", "status": "completed", **SEARCH.call}
    found = {"type": SEARCH.output_kind, "call_id": "call_1", **SEARCH.output(_SHORT)}
    question = {"role": "user", "content": "Use get_weather with city Paris."}
    choice = {"type": "function", "name": tools.DEFERRED["name"]}
    asked = {**SEARCH.request(target), "tool_choice": choice}
    yield Request(path="/responses", json={**asked, "input": [question, search, found]})


@check("responses/tool-search-loaded/called", "Call a function that a search has loaded", "TOOL-22")
def loaded_called(seen: Transcript) -> Iterator[Problem]:
    names = [call.get("name") for call in calls_of(accepted(only(seen)), forced=True)]
    if set(names) != {tools.DEFERRED["name"]}:
        yield Problem(
            expected=f"a call of {tools.DEFERRED['name']}", actual=as_json(names)[:200], pointer="output"
        )


@stream("responses/tool-shell/commands", "Stream each command of a call by its events, in order", "TOOL-20")
def _command_events(exchange: Exchange) -> Iterator[Problem]:
    """Compare the commands that the events describe with those of the items."""
    _forced(exchange, SHELL)
    calls_of(exchange, SHELL.kind, forced=True)
    streamed: dict[Any, _Commands] = {}
    for number, event in enumerate(events(exchange)):
        stem, _, verb = str(event.get("type")).removeprefix("response.").rpartition(".")
        place, item = event.get("output_index"), event.get("item")
        if stem == "shell_call_command":
            if wanted := streamed.setdefault(place, _Commands()).meet(event, verb):
                shown = f"{verb} of command {as_json(event.get('command_index'))}: {as_json(_text(event))}"[
                    :200
                ]
                yield Problem(expected=wanted, actual=shown, pointer=f"event {number}")
        elif verb == "done" and isinstance(item, dict) and item.get("type") == SHELL.kind:
            found = streamed.get(place, _Commands()).done
            if found != _commands(item):
                shown, wanted = as_json(found)[:200], as_json(_commands(item))[:200]
                yield Problem(expected=wanted, actual=shown, pointer=f"the events before {number}")


class _Commands:
    """The commands of one item: each is added, extended by deltas, and ended by its whole text."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._open: str | None = None
        """The text so far of the command that has begun."""

    def meet(self, event: Json, verb: str) -> str:
        """Process an event; return what would have been right, or nothing if the event is."""
        index, text = len(self.done), _text(event)
        if event.get("command_index") != index or (verb == "added") != (self._open is None):
            return f"{'added' if self._open is None else 'delta or done'} of command {index}"
        if verb == "done":
            whole, self._open = self._open, None
            self.done.append(text)
            return "" if text == whole else f"the deltas joined: {as_json(whole)}"[:200]
        self._open = (self._open or "") + text
        return ""


def _text(event: Json) -> str:
    return str(event.get("delta", event.get("command")))
