"""Serve the reference as an ASGI application."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl, unquote

from example_servers.asgi import body_of, live_and_end
from example_servers.reference import chat, messages
from example_servers.reference.names import KEY, MODEL
from example_servers.reference.refusals import (
    Refused,
    authorised,
    check_chat,
    check_completion,
    check_response,
)
from example_servers.reference.responses import Kept
from example_servers.reference.schema_faults import read_json
from example_servers.reference.stored import Completions
from example_servers.reference.websocket import converse

__all__ = ["KEY", "MODEL", "application"]

THE_MODEL = {
    "id": MODEL,
    "object": "model",
    "created": 1_764_000_000,
    "owned_by": "org",
    "max_model_len": messages.CONTEXT,
}
OTHER = {**THE_MODEL, "id": "other/one"}
PATHS = {
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/responses": "POST",
    "/v1/responses/input_tokens": "POST",
    "/v1/responses/compact": "POST",
    "/v1/models": "GET",
    messages.PATH: "POST",
    f"{messages.PATH}/count_tokens": "POST",
}
DONE = b"data: [DONE]\n\n"
Json = dict[str, Any]


def application() -> Any:
    """Return a server with empty stores."""
    kept = Kept()
    completions = Completions()
    count = 0

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        nonlocal count
        if scope["type"] == "websocket":
            await converse(kept, scope, receive, send)
            return
        if scope["type"] == "lifespan":
            await live_and_end(receive, send)
            return
        content = await body_of(receive)
        count += 1
        status, kind, body = 200, "application/json", b""
        try:
            authorised(scope)
            value = _route(kept, completions, scope, content)
            if isinstance(value, dict):
                body = json.dumps(value).encode()
            else:
                kind, body = "text/event-stream", b"".join(_frames(value))
                if scope["path"] == messages.PATH:
                    body = body.removesuffix(DONE)
        except Refused as refused:
            own = messages.error(refused) if scope["path"].startswith(messages.PATH) else refused.error
            status, body = refused.status, json.dumps(own).encode()
        headers = [(b"content-type", kind.encode()), (b"x-request-id", b"req_%d" % count)]
        if status == 405:
            headers.append((b"allow", PATHS[scope["path"]].encode()))
        if scope["http_version"] == "1.0":
            headers.append((b"content-length", b"%d" % len(body)))  # Otherwise uvicorn sends chunks.
        if scope["path"].startswith(messages.PATH):
            headers.append((b"request-id", b"req_%d" % count))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return serve


def _frames(events: Iterable[Json]) -> Iterable[bytes]:
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        yield f"{name}data: {json.dumps(event)}\n\n".encode()
    yield DONE


def _route(kept: Kept, completions: Completions, scope: Any, content: bytes) -> Any:
    path, method = scope["path"], scope["method"]
    query = dict(parse_qsl(scope["query_string"].decode()))
    if path.startswith("/v1/chat/completions") and (path not in PATHS or method == "GET"):
        name, _, action = path.removeprefix("/v1/chat/completions").removeprefix("/").partition("/")
        return completions.route(method, name, action, read_json(content), query)
    if path.startswith("/v1/conversations"):
        name, _, action = path.removeprefix("/v1/conversations").removeprefix("/").partition("/")
        return kept.conversations.route(method, name, action, read_json(content), query)
    if path.startswith("/v1/models/"):
        return _model(unquote(path.removeprefix("/v1/models/")))
    if path.startswith("/v1/responses/") and path not in PATHS:
        name, _, action = path.removeprefix("/v1/responses/").partition("/")
        match method, action:
            case "GET", "":
                return kept.get(name, query)
            case "DELETE", "":
                return kept.delete(name)
            case "POST", "cancel":
                return kept.cancel(name)
            case "GET", "input_items":
                return kept.items(name, query)
    if path not in PATHS:
        raise Refused("Unknown URL.", None, "unknown_url", status=404)
    if method == "HEAD" and PATHS[path] == "GET":
        return {}  # uvicorn sends no body.
    if method != PATHS[path]:
        raise Refused("Method not allowed.", None, "method_not_allowed", status=405)
    if path == "/v1/models":
        return {"object": "list", "data": [THE_MODEL, OTHER]}
    body = _decoded(content)
    answer = _answer(kept, path, body)
    if "chat" in path and body.get("store"):
        if body.get("stream"):
            answer = list(answer)
            whole = chat.answer(body)
            completions.keep(body, {**whole, "id": answer[0]["id"], "created": answer[0]["created"]})
        else:
            completions.keep(body, answer)
    return answer


def _decoded(content: bytes) -> Json:
    body = read_json(content)
    if not isinstance(body, dict):
        raise Refused("We could not parse the JSON body of your request.", None, None)
    if "model" not in body:
        raise Refused("You must provide a model parameter.", "model", "missing_required_parameter")
    return body


def _answer(kept: Kept, path: str, body: Json) -> Any:
    if path == messages.PATH:
        return messages.events(body, MODEL) if body.get("stream") else messages.answer(body, MODEL)
    if path.startswith(messages.PATH):
        return messages.counted(body, MODEL)
    match path.rsplit("/", 1)[-1], "chat" in path:
        case "completions", True:
            check_chat(body, MODEL)
            return chat.chunks(body) if body.get("stream") else chat.answer(body)
        case "completions", False:
            check_completion(body, MODEL)
            return chat.completion_chunks(body) if body.get("stream") else chat.complete(body)
    if path.endswith("compact"):
        return kept.compact(body)
    check_response(body, MODEL)
    if path.endswith("input_tokens"):
        response, _ = kept.create({**body, "store": False})
        return {"object": "response.input_tokens", "input_tokens": response["usage"]["input_tokens"]}
    response, events = kept.create(body)
    return events if body.get("stream") else response


def _model(name: str) -> Json:
    for model in (THE_MODEL, OTHER):
        if model["id"] == name:
            return model
    raise Refused("The model does not exist.", "model", "model_not_found", status=404)
