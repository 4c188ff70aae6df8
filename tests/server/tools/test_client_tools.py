"""A shell and patches are tools that the client runs: shown to the model, called by official items, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter
from support.judges import check_response, fold_response
from support.servers.asgi import Server, serving
from support.speaking import speaking

from plumbline.contract._generated.tools import HostedToolShell
from plumbline.server.protocols.responses.client_tools.declared import client_function

Json = dict[str, Any]
RESPONSES = "/v1/responses"
SHELL = {"type": "shell", "environment": {"type": "local"}}
PATCH = {"type": "apply_patch"}
LOCAL = {"type": "local_shell"}
COMMANDS = {"commands": ["ls -l", "echo 'é'"], "timeout_ms": 1000, "max_output_length": None}
COMMAND = {"command": ["echo", "é"], "working_directory": "/tmp", "timeout_ms": None}
OFFICIAL: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)


def written(name: str, arguments: Any) -> str:
    """Return a call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def commands_of(events: list[Json]) -> list[str]:
    """Fold the events of commands."""
    found: list[str] = []
    for event in events:
        kind = event["type"].removeprefix("response.shell_call_command.")
        if kind == "added":
            assert (event["command_index"], event["command"]) == (len(found), "")
            found.append("")
        elif kind == "delta":
            assert event["delta"], "RS-18"
            found[event["command_index"]] += event["delta"]
        elif kind == "done":
            assert found[event["command_index"]] == event["command"]
    return found


async def respond(server: Server, stream: bool = False, **fields: Any) -> Json:
    body = {"model": "test-model", "input": "hi", "tools": [SHELL, PATCH, LOCAL], "stream": stream, **fields}
    answer = await server.post(RESPONSES, body)
    assert answer.status == 200, answer.body
    if not stream:
        whole: Json = answer.json
        return whole
    events = [event.json for event in answer.events if event.data != "[DONE]"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    for one, other in zip(added, done, strict=True):
        if other["type"] == "shell_call":
            assert one["action"].pop("commands") == []
            one["action"]["commands"] = commands_of(events)
        assert {**one, "status": other["status"]} == other
    assert all(one["status"] == "in_progress" for one in added)
    final: Json = events[-1]["response"]
    assert final["output"] == done
    return final


@pytest.mark.parametrize("stream", [False, True])
async def test_a_shell_is_called_by_its_official_item(stream: bool) -> None:
    """TOOL-20."""
    async with serving(speaking(written("shell", COMMANDS), grammars=True)) as server:
        final = await respond(server, stream)
    [item] = final["output"]
    assert final["status"] == "completed"
    assert (item["type"], item["status"], item["action"]) == ("shell_call", "completed", COMMANDS)
    assert item["environment"] == {"type": "local"}
    assert item["call_id"]
    assert item["id"].startswith("sh_")
    assert final["tools"][0]["type"] == "shell"
    check_response(final)
    assert OFFICIAL.validate_python(item).type == "shell_call"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["create_file", "update_file", "delete_file"])
async def test_a_patch_is_called_by_its_official_item(kind: str, stream: bool) -> None:
    """TOOL-20."""
    arguments = {"type": kind, "path": "a/b.py", "diff": "" if kind == "delete_file" else "@@\n-a\n+é\n"}
    async with serving(speaking(written("apply_patch", arguments), grammars=True)) as server:
        final = await respond(server, stream)
    [item] = final["output"]
    expected = {name: value for name, value in arguments.items() if value}
    assert (item["type"], item["status"], item["operation"]) == ("apply_patch_call", "completed", expected)
    check_response(final)
    assert OFFICIAL.validate_python(item).type == "apply_patch_call"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_local_shell_is_called_by_its_official_item(stream: bool) -> None:
    """TOOL-20."""
    async with serving(speaking(written("local_shell", COMMAND), grammars=True)) as server:
        final = await respond(server, stream)
    [item] = final["output"]
    assert (item["type"], item["status"]) == ("local_shell_call", "completed")
    assert item["action"] == {"type": "exec", "env": {}, **COMMAND}
    check_response(final)
    assert OFFICIAL.validate_python(item).type == "local_shell_call"


OUTPUTS: dict[str, dict[str, Any]] = {
    "shell": {
        "type": "shell_call_output",
        "output": [
            {"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
            {"stdout": "", "stderr": "slow", "outcome": {"type": "timeout"}},
        ],
    },
    "apply_patch": {"type": "apply_patch_call_output", "status": "failed", "output": "no such file"},
    "local_shell": {"type": "local_shell_call_output", "output": '{"stdout": "a"}'},
}
ARGUMENTS = {
    "shell": COMMANDS,
    "local_shell": COMMAND,
    "apply_patch": {"type": "update_file", "path": "a", "diff": "@@\n+a"},
}


@pytest.mark.parametrize("name", OUTPUTS)
async def test_a_stored_call_gives_the_model_the_same_messages_as_one_that_is_sent(
    name: str, tmp_path: Path
) -> None:
    """ST-04: also where the items are listed, and where a conversation keeps them."""
    model = speaking(written(name, ARGUMENTS[name]), "Done.", "Done.", "Done.", grammars=True)
    async with serving(model, store=str(tmp_path / "s.db")) as server:
        first = await respond(server, store=True)
        [call] = first["output"]
        output = {**OUTPUTS[name], "call_id": call["call_id"]}
        user = {"role": "user", "content": "hi"}
        sent = await respond(server, input=[user, call, output], store=False)
        chained = await respond(server, input=[output], previous_response_id=first["id"], store=True)
        listed = (await server.get(f"{RESPONSES}/{chained['id']}/input_items")).json["data"]
        kept = await server.post("/v1/conversations", {"items": [user, call, output]})
        assert kept.status == 200, kept.body
        continued = await respond(server, input=[], conversation=kept.json["id"])
    assert sent["output"][0]["content"][0]["text"] == "Done."
    assert sent["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert (
        chained["usage"]["input_tokens"]
        == sent["usage"]["input_tokens"]
        == continued["usage"]["input_tokens"]
    )
    found = next(item for item in listed if item["type"] == output["type"])
    assert {name: found[name] for name in output} == output


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ARGUMENTS)
async def test_a_call_that_is_cut_is_not_run(name: str, stream: bool) -> None:
    """A cut shell call has no commands, and a cut patch, which has no status for it, is left out."""
    text = written(name, ARGUMENTS[name])
    async with serving(speaking(text, grammars=True)) as server:
        final = await respond(server, stream, max_output_tokens=len(text) - 40)
    assert final["status"] == "incomplete"
    assert [(item["type"], item["status"], _commands(item)) for item in final["output"]] == (
        [] if name == "apply_patch" else [(f"{name}_call", "incomplete", [])]
    )


def _commands(item: Json) -> Any:
    return item["action"].get("commands", item["action"].get("command"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        ("shell", {"commands": 5}),
        ("local_shell", {"command": "ls"}),
        ("apply_patch", {"type": "move_file", "path": "a"}),
    ],
)
async def test_a_call_that_does_not_fit_its_item_is_left_out(call: tuple[str, Json], stream: bool) -> None:
    """No grammar allows it; an engine that ignores the grammar must not make a client run something else."""
    async with serving(speaking(written(*call), grammars=True)) as server:
        body = {"model": "test-model", "input": "hi", "tools": [SHELL, PATCH, LOCAL], "stream": stream}
        answer = await server.post(RESPONSES, body)
    final = fold_response([event.json for event in answer.events[:-1]]) if stream else answer.json
    assert [item["type"] for item in final["output"]] == ["message"], "an empty one"


async def test_a_shell_in_a_container_is_hosted() -> None:
    """TOOL-15."""
    tool = {"type": "shell", "environment": {"type": "container_auto"}}
    async with serving(speaking("Hello.", grammars=True)) as server:
        body = {"model": "test-model", "input": "hi", "tools": [tool, PATCH]}
        answer = await server.post(RESPONSES, body)
        forced = await server.post(RESPONSES, {**body, "tool_choice": {"type": "shell"}})
    assert answer.header("x-plumbline-unavailable-tools") == "shell"
    assert (forced.status, forced.error["param"]) == (400, "tool_choice.type")


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "shell"},
        "required",
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "shell"}]},
    ],
)
async def test_a_choice_may_name_it(choice: Any) -> None:
    """TOOL-06, TOOL-08."""
    async with serving(speaking(written("shell", COMMANDS), grammars=True)) as server:
        final = await respond(server, tool_choice=choice)
        body = {"model": "test-model", "input": "hi", "tools": [PATCH], "tool_choice": {"type": "shell"}}
        absent = await server.post(RESPONSES, body)
    assert [item["type"] for item in final["output"]] == ["shell_call"]
    assert absent.status == 400


async def test_without_the_tool_its_name_is_that_of_a_function() -> None:
    tool = {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}
    async with serving(speaking(written("shell", {}), grammars=True)) as server:
        final = await respond(server, tools=[tool])
        body = {"model": "test-model", "input": "hi", "tools": [tool, SHELL]}
        twice = await server.post(RESPONSES, body)
    assert [item["type"] for item in final["output"]] == ["function_call"]
    assert (twice.status, twice.error["type"]) == (400, "invalid_request_error")
    assert "shell" in twice.error["message"]


@pytest.mark.parametrize("name", OUTPUTS)
async def test_outputs_need_their_calls(name: str) -> None:
    """TOOL-12."""
    async with serving(speaking("Done.", grammars=True)) as server:
        body = {"model": "test-model", "input": [{**OUTPUTS[name], "call_id": "call_1"}], "tools": [SHELL]}
        answer = await server.post(RESPONSES, body)
    assert (answer.status, answer.error["param"]) == (400, "input")
    assert "call_1" in answer.error["message"]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("named", ["call_id", "its call_id as id", "its id as id"])
async def test_the_output_of_a_local_shell_names_its_call_in_any_way_that_clients_know(
    named: str, stored: bool, tmp_path: Path
) -> None:
    """The official document requires call_id and defines id; SDKs send id, and older Codex a function's output."""
    model = speaking(written("local_shell", COMMAND), "Done.", "Done.", grammars=True)
    async with serving(model, store=str(tmp_path / "s.db")) as server:
        first = await respond(server, store=True)
        [call] = first["output"]
        name = {"id": call["id"] if named == "its id as id" else call["call_id"]}
        if named == "call_id":
            name = {"call_id": call["call_id"]}
        output = {**OUTPUTS["local_shell"], **name}
        more: Json = {"input": [output], "previous_response_id": first["id"]}
        if not stored:
            more = {"input": [{"role": "user", "content": "hi"}, call, output]}
        final = await respond(server, **more)
        plain = {"type": "function_call_output", "call_id": call["call_id"], "output": output["output"]}
        as_function = await respond(server, input=[{"role": "user", "content": "hi"}, call, plain])
        listed = (await server.get(f"{RESPONSES}/{final['id']}/input_items")).json["data"]
    assert final["usage"]["input_tokens"] == as_function["usage"]["input_tokens"]
    found = next(item for item in listed if item["type"] == output["type"])
    assert found["call_id"] in call.values()
    assert len({item["id"] for item in listed}) == len(listed)


async def test_the_output_of_a_local_shell_needs_a_name() -> None:
    call = {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}}
    async with serving(speaking("Done.", grammars=True)) as server:
        body = {"model": "test-model", "input": [call, OUTPUTS["local_shell"]], "tools": [LOCAL]}
        answer = await server.post(RESPONSES, body)
    assert (answer.status, answer.error["param"]) == (400, "input[1].call_id")


async def test_the_environment_of_another_servers_call_is_shown_to_the_model() -> None:
    action = {"type": "exec", "command": ["ls"]}
    more = {**action, "env": {"LANG": "C"}, "user": "nobody"}
    async with serving(speaking("Done.", "Done.", grammars=True)) as server:
        counts = [
            (await respond(server, input=[call, {**OUTPUTS["local_shell"], "id": "c"}]))["usage"][
                "input_tokens"
            ]
            for call in (
                {"type": "local_shell_call", "call_id": "c", "action": one} for one in (action, more)
            )
        ]
    assert counts[1] >= counts[0] + len("LANG") + len("nobody")


async def test_skills_of_the_machine_are_told_to_the_model() -> None:
    skill = {"name": "pdf", "description": "Reads PDF files.", "path": "skills/pdf/SKILL.md"}
    tool = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    function = client_function(HostedToolShell(environment=tool["environment"]))
    async with serving(speaking("Done.", grammars=True)) as server:
        told = await respond(server, tools=[tool])
        plain = await respond(server, tools=[SHELL])
    assert function is not None
    assert all(text in str(function.description) for text in skill.values())
    assert told["usage"]["input_tokens"] > plain["usage"]["input_tokens"] + len(skill["description"]) // 2


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "shell", "environment": "local"}, "tools[0].environment"),
        ({"type": "shell", "environment": {"type": "elsewhere"}}, "tools[0].environment"),
        ({"type": "shell", "environment": {"type": "local", "skills": [1]}}, "tools[0].environment"),
        ({"type": "shell", "allowed_callers": 1}, "tools[0].allowed_callers"),
        ({"type": "apply_patch", "allowed_callers": ["programmatic"]}, "tools[0].allowed_callers"),
    ],
)
async def test_what_no_client_could_mean_is_refused_by_name(tool: Json, param: str) -> None:
    async with serving(speaking("Done.", grammars=True)) as server:
        answer = await server.post(RESPONSES, {"model": "test-model", "input": "hi", "tools": [tool]})
    assert (answer.status, answer.error["param"]) == (400, param)
