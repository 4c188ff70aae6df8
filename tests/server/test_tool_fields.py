"""Fields about tools over HTTP: invalid schemas, deprecated functions, namespaces and hosted tools."""

from __future__ import annotations

from typing import Any

import pytest
from support.asgi import serving
from support.models import scripted, served
from support.speaking import speaking

CALL = '<tool_call>\n{"name": "%s", "arguments": {"a": "b"}}\n</tool_call>'
USER = [{"role": "user", "content": "hello"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
PATHS = {
    "/v1/chat/completions": ("messages", "tools[0].function.parameters"),
    "/tokenize": ("messages", "tools[0].function.parameters"),
    "/v1/responses": ("input", "tools[0].parameters"),
}


def _tool(path: str, parameters: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": parameters}
    return (
        {"type": "function", **function}
        if "responses" in path
        else {"type": "function", "function": function}
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "parameters", [{"type": 7}, {"type": "nonsense"}, {"properties": {"a": {"enum": 3}}}]
)
async def test_parameters_that_are_no_schema_are_refused(path: str, stream: bool, parameters: Any) -> None:
    body = {"model": "test-model", PATHS[path][0]: USER, "tools": [_tool(path, parameters)]}
    if path != "/tokenize":
        body["stream"] = stream
    async with serving(served(scripted())) as server:
        answer = await server.post(path, body)
    assert answer.status == 400
    assert answer.error["param"] == PATHS[path][1]
    assert answer.error["code"] == "invalid_json_schema"


@pytest.mark.parametrize("path", PATHS)
async def test_known_aliases_of_types_are_accepted(path: str) -> None:
    parameters = {"type": "dict", "properties": {"a": {"type": "float"}}}
    async with serving(speaking("Hello.")) as server:
        answer = await server.post(
            path, {"model": "test-model", PATHS[path][0]: USER, "tools": [_tool(path, parameters)]}
        )
    assert answer.status == 200, answer.body
