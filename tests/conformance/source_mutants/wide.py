"""Define the wide set of requests: a mutant counts only if it changes an answer to one of them.

They are chosen without regard to the judge's scenarios, so that a fault counts also where the judge sends nothing like
it. Each session is a list of steps; a step may use the answers of earlier ones.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.differential.probes import probes
from plumbline_conformance.suite.scenario import Request
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["SESSIONS", "Session"]

Session = Generator[Request, Exchange, None]
_HI = [{"role": "user", "content": "Hi"}]
_WEATHER = {
    "name": "get_weather",
    "description": "Get the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
        "required": ["city"],
    },
}
_TOOLS = [{"type": "function", "function": _WEATHER}]
_FLAT = [{"type": "function", **_WEATHER}]
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer"},
        "home": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def _post(name: str, path: str, **body: Any) -> Request:
    return Request(name=name, path=path, json={"model": "plumbline-pocket", **body})


def _chat(name: str, **body: Any) -> Request:
    return _post(name, "/chat/completions", **{"messages": _HI, "max_tokens": 12, "temperature": 0, **body})


def _responses(name: str, **body: Any) -> Request:
    return _post(
        name, "/responses", **{"input": "Hi there", "max_output_tokens": 20, "temperature": 0, **body}
    )


def _get(path: str) -> Request:
    return Request(name=f"GET {path}", path=path, method="GET")


def _delete(path: str) -> Request:
    return Request(name=f"DELETE {path}", path=path, method="DELETE")


def _id(exchange: Exchange) -> str:
    found = exchange.json
    return str(found.get("id")) if isinstance(found, dict) else "none"


def _chats() -> Session:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    answered = [
        *_HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "18 degrees"},
    ]
    schema = {"type": "json_schema", "json_schema": {"name": "p", "schema": _PERSON, "strict": True}}
    bodies: list[dict[str, Any]] = [
        {"tools": _TOOLS, "messages": [{"role": "user", "content": "Use get_weather with city Paris."}]},
        {"tools": _TOOLS, "tool_choice": "required", "max_tokens": 60},
        {"tools": _TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        {"tools": _TOOLS, "tool_choice": "none"},
        {"tools": _TOOLS, "messages": answered},
        {"response_format": schema, "max_tokens": 60},
        {"response_format": {"type": "json_object"}, "max_tokens": 30},
        {"response_format": schema, "tools": _TOOLS, "n": 2, "max_tokens": 40},
        {"n": 3, "temperature": 1, "seed": 5},
        {"logprobs": True, "top_logprobs": 3, "stop": ["e", "."]},
        {"presence_penalty": 1, "frequency_penalty": 1, "logit_bias": {"11": -100, "12": 5}},
        {"temperature": 0.8, "top_p": 0.5, "seed": 3},
        {
            "messages": [
                {"role": "developer", "content": "Be terse."},
                {"role": "system", "content": "x"},
                *_HI,
            ]
        },
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
            ]
        },
        {
            "messages": [
                *_HI,
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "Again é🎉"},
            ]
        },
        {"max_completion_tokens": 5, "metadata": {"a": "b"}, "user": "me", "service_tier": "auto"},
        {"reasoning_effort": "low", "max_tokens": 40},
    ]
    for number, body in enumerate(bodies):
        yield _chat(f"chat {number}", **body)
        yield _chat(f"chat {number} streamed", **body, stream=True, stream_options={"include_usage": True})
    yield _chat("chat streamed without usage", stream=True)


def _wrong() -> Session:
    bodies: list[dict[str, Any]] = [
        {"messages": [{"role": "nobody", "content": "x"}]},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "none"}]},
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"tools": _TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"response_format": {"type": "json_schema"}},
        {"logit_bias": {"999999999": 1}},
        {"stop": ["a"] * 9},
        {"max_tokens": 10**9},
        {"seed": "x"},
        {"top_logprobs": 3},
        {"metadata": {"k" * 65: "v"}},
        {"audio": {"voice": "x", "format": "wav"}},
    ]
    for number, body in enumerate(bodies):
        yield _chat(f"wrong {number}", **body)
    for path in ("/chat/completions", "/completions", "/responses", "/messages"):
        yield Request(name=f"{path} not JSON", path=path, content=b'{"model": ')
        yield Request(name=f"{path} a list", path=path, content=b"[]")
        yield Request(name=f"{path} nothing", path=path, json={"model": "plumbline-pocket"})
        yield _get(path)
    yield _get("/nothing")
    yield _get("/models")
    yield _get("/models/plumbline-pocket")
    yield _get("/models/other")
    yield Request(name="wrong key", path="/models", method="GET", headers={"authorization": "Bearer no"})
    yield Request(
        name="text type", path="/chat/completions", content=b"{}", headers={"content-type": "text/plain"}
    )


def _completions() -> Session:
    bodies: list[dict[str, Any]] = [
        {"prompt": ["Hi", "Once upon"], "n": 2, "temperature": 1, "seed": 1},
        {"prompt": "Hi", "echo": True, "logprobs": 2},
        {"prompt": "Hi", "echo": True, "max_tokens": 0, "logprobs": 1},
        {"prompt": [1, 2, 3]},
        {"prompt": "One, two", "stop": [","], "logprobs": 1},
        {"prompt": "é🎉", "suffix": None, "user": "u"},
        {"prompt": "Hi", "best_of": 3, "temperature": 1, "seed": 2},
    ]
    for number, body in enumerate(bodies):
        given = {"max_tokens": 8, "temperature": 0, **body}
        yield _post(f"completion {number}", "/completions", **given)
        if "best_of" not in body:
            yield _post(f"completion {number} streamed", "/completions", **given, stream=True)


def _answers() -> Session:
    text = {"format": {"type": "json_schema", "name": "p", "schema": _PERSON, "strict": True}}
    output = {"type": "function_call_output", "call_id": "c1", "output": "18"}
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"}
    bodies: list[dict[str, Any]] = [
        {"tools": _FLAT, "input": "Use get_weather with city Paris."},
        {"tools": _FLAT, "tool_choice": "required", "max_output_tokens": 60, "parallel_tool_calls": False},
        {"text": text, "max_output_tokens": 60},
        {"input": [{"role": "user", "content": "Hi"}, call, output], "tools": _FLAT},
        {"instructions": "Be terse.", "metadata": {"a": "b"}, "truncation": "auto"},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"reasoning": {"effort": "low"}, "max_output_tokens": 40},
        {"store": False, "include": ["reasoning.encrypted_content"]},
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "é🎉"}]}]},
    ]
    for number, body in enumerate(bodies):
        yield _responses(f"response {number}", **body)
        yield _responses(f"response {number} streamed", **body, stream=True)
    yield _post("input tokens", "/responses/input_tokens", input="Hi there", instructions="x")
    yield _responses("unknown earlier", previous_response_id="resp_none")
    yield _responses("tool that is not there", tool_choice={"type": "function", "name": "no"})
    socket = {"type": "response.create", "model": "plumbline-pocket", "input": "Hi", "max_output_tokens": 16}
    yield Request(name="socket", path="/responses", method="WEBSOCKET", socket="a", json=socket)


def _memory() -> Session:
    first = yield _responses("first", input="My name is Ada.", metadata={"k": "v"})
    name = _id(first)
    second = yield _responses("second", previous_response_id=name, instructions="Other.")
    yield _responses("second streamed", previous_response_id=name, stream=True)
    yield _get(f"/responses/{name}")
    yield _get(f"/responses/{name}?stream=true")
    yield _get(f"/responses/{name}?stream=true&starting_after=3")
    yield _get(f"/responses/{_id(second)}/input_items")
    yield _get(f"/responses/{_id(second)}/input_items?limit=1&order=asc")
    yield Request(name="cancel", path=f"/responses/{name}/cancel", json={})
    yield _post("compact", "/responses/compact", previous_response_id=name)
    yield _delete(f"/responses/{name}")
    yield _get(f"/responses/{name}")
    yield _responses("after deletion", previous_response_id=name)
    unkept = yield _responses("unkept", store=False)
    yield _get(f"/responses/{_id(unkept)}")
    background = yield _responses("background", background=True, max_output_tokens=16)
    for _ in range(3):
        yield Request(path=f"/responses/{_id(background)}", name="poll", method="GET", pause=0.4)


def _conversations() -> Session:
    item = {"type": "message", "role": "user", "content": "Hello"}
    made = yield Request(name="make", path="/conversations", json={"items": [item], "metadata": {"a": "1"}})
    path = f"/conversations/{_id(made)}"
    yield _get(path)
    yield Request(name="update", path=path, json={"metadata": {"b": "2"}})
    added = yield Request(name="add", path=f"{path}/items", json={"items": [item, item]})
    yield _responses("turn", conversation=_id(made))
    yield _responses("turn streamed", conversation={"id": _id(made)}, stream=True)
    yield _get(f"{path}/items")
    yield _get(f"{path}/items?limit=2&order=asc")
    data = added.json.get("data") if isinstance(added.json, dict) else None
    for one in (data or [])[:1]:
        yield _get(f"{path}/items/{one.get('id')}")
        yield _get(f"{path}/items?after={one.get('id')}&order=asc")
        yield _delete(f"{path}/items/{one.get('id')}")
    yield _get(f"{path}/items?limit=0")
    yield _delete(path)
    yield _get(path)


def _stored_chats() -> Session:
    first = yield _chat("kept 1", store=True, metadata={"n": "1"})
    second = yield _chat("kept 2", store=True, metadata={"n": "2"})
    yield _chat("kept 3", store=True)
    name = _id(first)
    yield _chat("kept streamed", store=True, stream=True)
    yield _get("/chat/completions")
    yield _get("/chat/completions?limit=2&order=desc")
    yield _get(f"/chat/completions?after={_id(second)}")
    yield _get("/chat/completions?metadata[n]=1")
    yield _get(f"/chat/completions/{name}")
    yield _get(f"/chat/completions/{name}/messages")
    yield Request(name="update chat", path=f"/chat/completions/{name}", json={"metadata": {"z": "9"}})
    yield _get(f"/chat/completions/{name}")
    yield _delete(f"/chat/completions/{name}")
    yield _get(f"/chat/completions/{name}")


def _messages() -> Session:
    tool = {"name": "get_weather", "input_schema": _WEATHER["parameters"]}
    used = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "18"}
    bodies: list[dict[str, Any]] = [
        {},
        {"system": "Be terse.", "stop_sequences": ["e"]},
        {"tools": [tool], "messages": [{"role": "user", "content": "Use get_weather with city Paris."}]},
        {"tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": 60},
        {
            "tools": [tool],
            "messages": [
                *_HI,
                {"role": "assistant", "content": [used]},
                {"role": "user", "content": [result]},
            ],
        },
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1060},
        {"top_k": 0},
    ]
    for number, body in enumerate(bodies):
        given = {"messages": _HI, "max_tokens": 12, "temperature": 0, **body}
        if "thinking" in body:
            del given["temperature"]
        yield _post(f"message {number}", "/messages", **given)
        yield _post(f"message {number} streamed", "/messages", **given, stream=True)
    yield _post("count", "/messages/count_tokens", messages=_HI, system="x")


def _probes() -> Session:
    for probe in probes(40, seed=7):
        body = {"model": "plumbline-pocket", **probe.body}
        yield Request(name=probe.name, path=probe.path, json=body)


def _sessions() -> Iterator[tuple[str, Any]]:
    for session in (
        *(_chats, _wrong, _completions, _answers, _memory, _conversations),
        *(_stored_chats, _messages, _probes),
    ):
        yield session.__name__.strip("_"), session


SESSIONS = dict(_sessions())
"""Functions that return a session, by name."""
