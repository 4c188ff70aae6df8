"""Every operation has a route; what is not implemented, not found or not right answers with the envelope."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.testing import TestClient

from plumbline.contract._generated import OPERATIONS
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.models import Model
from plumbline.contract._generated.routes import ROUTE_HANDLERS
from plumbline.contract._generated.service import Service
from plumbline.contract.wire import sse
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.errors import ApiError, envelope, from_status
from plumbline.contract.wire.reply import EventReply, JsonReply, RawReply, Reply

MINIMAL: dict[str, dict[str, Any]] = {
    "createChatCompletion": {"model": "m", "messages": [{"role": "user", "content": "Hello"}]},
    "createCompletion": {"model": "m", "prompt": "Hello"},
    "createMessage": {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]},
    "countMessageTokens": {"model": "m", "messages": [{"role": "user", "content": "Hello"}]},
    "createResponse": {"model": "m", "input": "Hello"},
    "countResponseInputTokens": {"model": "m", "input": "Hello"},
    "compactResponse": {"model": "m", "input": "Hello"},
    "updateChatCompletion": {"metadata": {}},
    "createConversation": {},
    "updateConversation": {"metadata": {}},
    "createConversationItems": {"items": [{"role": "user", "content": "Hello"}]},
    "tokenize": {"prompt": "Hello"},
    "detokenize": {"tokens": [1]},
    "loadLoraAdapter": {"lora_name": "a", "lora_path": "b"},
    "unloadLoraAdapter": {"lora_name": "a"},
    "loadModel": {"model": "a"},
    "unloadModel": {"model": "a"},
    "streamModelLoad": {"name": "a"},
}


class Echo(Service):
    """Answers a few operations with what reached it."""

    async def create_chat_completion(self, request: CreateChatCompletionRequest, call: Call) -> Reply:
        async def events() -> AsyncIterator[bytes]:
            yield sse.frame(b'{"model":"%s"}' % request.model.encode())
            yield sse.DONE

        return EventReply(events())

    async def retrieve_model(self, call: Call, *, model: str) -> Reply:
        return JsonReply(encode(Model(id=model, created=0, owned_by="us")))

    async def list_input_items(
        self, call: Call, *, response_id: str, limit: int, order: str, after: str | None, include: list[str]
    ) -> Reply:
        return JsonReply(encode([response_id, limit, order, after, include]))

    async def get_response(
        self,
        call: Call,
        *,
        response_id: str,
        include: list[str],
        stream: bool | None,
        starting_after: int | None,
        include_obfuscation: bool | None,
    ) -> Reply:
        return JsonReply(encode([response_id, stream, starting_after, include_obfuscation]))

    async def get_metrics(self, call: Call) -> Reply:
        return RawReply(b"up 1\n", "text/plain; version=0.0.4")


def on_api_error(_: Request[Any, Any, Any], error: ApiError) -> Response[bytes]:
    return Response(
        envelope(error), status_code=error.status, headers=error.headers, media_type="application/json"
    )


def on_http_error(_: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    known = from_status(error.status_code, error.detail, error.headers)
    return on_api_error(_, known)


def application(service: Service) -> Litestar:
    return Litestar(
        route_handlers=ROUTE_HANDLERS,
        dependencies={"api": Provide(lambda: service, sync_to_thread=False, use_cache=True)},
        exception_handlers={ApiError: on_api_error, HTTPException: on_http_error},
        openapi_config=None,
        request_max_body_size=1 << 20,
    )


@pytest.fixture(scope="module")
def client() -> Any:
    with TestClient(application(Echo())) as client:
        yield client


@pytest.fixture(scope="module")
def bare() -> Any:
    with TestClient(application(Service())) as client:
        yield client


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: op.id)
def test_an_operation_without_a_handler_is_a_404_that_names_it(bare: Any, operation: Any) -> None:
    path = re.sub(r"\{\w+\}", "x", operation.path)
    body = MINIMAL[operation.id] if operation.request else None
    answer = bare.request(operation.method, path, json=body)

    assert answer.status_code == 404
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} == set(error)
    assert error["code"] == "unsupported_operation"
    assert operation.id in error["message"]


@pytest.mark.parametrize("path", ["org/name", "org%2Fname", "name", "a/b/c", "a%20b", "mod%C3%A9"])
def test_a_model_id_may_contain_slashes_plain_or_encoded(client: Any, path: str) -> None:
    """MOD-02."""
    expected = path.replace("%2F", "/").replace("%20", " ").replace("%C3%A9", "é")
    answer = client.get(f"/v1/models/{path}")

    assert answer.status_code == 200
    assert {"id": expected, "object": "model", "created": 0, "owned_by": "us"} == answer.json()


def test_a_stream_is_sent_as_unbuffered_events(client: Any) -> None:
    answer = client.post("/v1/chat/completions", json=MINIMAL["createChatCompletion"])

    assert answer.headers.get_list("content-type") == ["text/event-stream"]
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.content == b'data: {"model":"m"}\n\ndata: [DONE]\n\n'


def test_query_parameters_have_their_defaults(client: Any) -> None:
    answer = client.get("/v1/responses/resp_1/input_items")

    assert answer.json() == ["resp_1", 20, "desc", None, []]


def test_query_parameters_are_read_in_either_spelling(client: Any) -> None:
    value = "message.output_text.logprobs"
    query = f"limit=5&order=asc&after=msg_1&include={value}&include[]={value}"
    answer = client.get(f"/v1/responses/resp_1/input_items?{query}")

    assert ["resp_1", 5, "asc", "msg_1", [value, value]] == answer.json()
    replay = client.get("/v1/responses/resp_1?stream=true&starting_after=3&include_obfuscation=false&other=1")
    assert replay.json() == ["resp_1", True, 3, False]


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("limit=0", "limit", "integer_below_min_value"),
        ("limit=101", "limit", "integer_above_max_value"),
        ("limit=ten", "limit", "invalid_type"),
        ("limit=1_0", "limit", "invalid_type"),
        ("limit=", "limit", "invalid_type"),
        ("limit=1&limit=2", "limit", None),
        ("order=up", "order", "invalid_value"),
        ("include=nothing", "include[0]", "invalid_value"),
    ],
)
def test_a_bad_query_parameter_is_named(client: Any, query: str, param: str, code: str | None) -> None:
    answer = client.get(f"/v1/responses/resp_1/input_items?{query}")

    assert answer.status_code == 400
    assert (param, code) == (answer.json()["error"]["param"], answer.json()["error"]["code"])


def test_a_boolean_query_parameter_is_true_or_false(client: Any) -> None:
    answer = client.get("/v1/responses/resp_1?stream=yes")

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nowhere", 404), ("DELETE", "/v1/chat/completions", 405), ("DELETE", "/health", 405)],
)
def test_framework_errors_use_the_envelope(client: Any, method: str, path: str, status: int) -> None:
    """HTTP-08."""
    answer = client.request(method, path)

    assert status == answer.status_code
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_above_the_limit_is_a_413(client: Any) -> None:
    answer = client.post("/v1/completions", content=b'{"prompt":"' + b"x" * (1 << 21) + b'"}')

    assert answer.status_code == 413
    assert "error" in answer.json()


def test_raw_replies_keep_their_media_type(client: Any) -> None:
    answer = client.get("/metrics")

    assert answer.content == b"up 1\n"
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
