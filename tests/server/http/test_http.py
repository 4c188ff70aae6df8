"""HTTP around the operations: headers, routes, models, and operations that OpenAI lacks (HTTP-*, ERR-*, MOD-*)."""
# ruff: noqa: E501 - a table reads best with one case a line

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest
from support.bodies import BODIES
from support.judges import valid
from support.models import scripted, served
from support.servers.asgi import Answer, Server, serving

from plumbline.contract._generated.operations import OPERATIONS

GETS = [
    "/v1/models",
    "/v1/models/test-model",
    "/health",
    "/version",
    "/metrics",
    "/openapi.json",
    "/openapi.yaml",
]


# Every answer


async def every_kind_of_answer(server: Server) -> list[Answer]:
    answers = [await server.get(path) for path in GETS]
    answers += [await server.post(path, body) for path, body in BODIES.items()]
    answers += [
        await server.post(path, {**body, "stream": True})
        for path, body in BODIES.items()
        if path.startswith("/v1")
    ]
    answers += [
        await server.get("/nowhere"),
        await server.get("/v1/completions"),
        await server.get("/v1/chat/completions"),
        await server.post("/v1/chat/completions", b"{"),
        await server.post("/v1/chat/completions", {**BODIES["/v1/chat/completions"], "model": "x"}),
        await server.post("/v1/chat/completions", b"a=1", headers={"content-type": "application/x-www-form-urlencoded"}),
        await server.post("/v1/chat/completions", b" " * 2_000_000),
    ]  # fmt: skip
    return answers


async def test_every_answer_has_a_different_id() -> None:
    """HTTP-03, HTTP-04: errors and streams too."""
    async with serving(served(scripted()), max_body_bytes=1_000_000) as server:
        answers = await every_kind_of_answer(server)
        ids = [answer.header("x-request-id") for answer in answers]

        assert {200, 400, 404, 405, 413, 415} == {answer.status for answer in answers}
        assert len(set(ids)) == len(ids)
        assert None not in ids
        assert all(re.fullmatch(r"\d+", answer.header("openai-processing-ms") or "") for answer in answers)
        assert {answer.header("openai-version") for answer in answers} == {"2020-10-01"}


async def test_an_answer_that_is_not_a_stream_is_json() -> None:
    """HTTP-01, ERR-01: success and failure alike."""
    async with serving(served(scripted()), max_body_bytes=1_000_000) as server:
        for answer in await every_kind_of_answer(server):
            kind = (answer.header("content-type") or "").partition(";")[0]
            if answer.status >= 400:
                assert answer.error["type"] == "invalid_request_error"
            else:
                assert kind in ("application/json", "text/event-stream", "text/plain", "application/yaml")


# Routes


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/nowhere", "/v1/chat", "/v1/completions/x", "/v1/%7Bx%7D", "/v1/é"]
)
async def test_an_unknown_path_is_a_404(path: str) -> None:
    """HTTP-08."""
    async with serving(served(scripted())) as server:
        for method in ("GET", "POST"):
            answer = await server.request(method, path, {} if method == "POST" else None)
            assert answer.status == 404
            assert answer.error["code"] is None


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", "POST"),
        ("PUT", "/v1/chat/completions", "GET"),
        ("PUT", "/v1/completions", "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("POST", "/health", "GET"),
        ("PATCH", "/v1/responses", "POST"),
    ],
)
async def test_a_wrong_method_is_a_405_that_names_the_right_one(method: str, path: str, allowed: str) -> None:
    """HTTP-08."""
    async with serving(served(scripted())) as server:
        answer = await server.request(method, path, {} if method == "POST" else None)

        assert answer.status == 405
        assert allowed in (answer.header("allow") or "")
        assert answer.error["type"] == "invalid_request_error"


async def test_options_names_the_methods_that_a_wrong_method_is_told() -> None:
    """Several operations of a path have a handler each, and a client may ask for any of them."""
    async with serving(served(scripted())) as server:
        for path in {operation.path for operation in OPERATIONS}:
            concrete = re.sub(r"{[^}]*}", "x", path)
            asked = await server.request("OPTIONS", concrete)
            refused = await server.request("TRACE", concrete)
            assert (asked.status, refused.status) == (204, 405), path
            methods = {name.strip() for name in (asked.header("allow") or "").split(",")}
            assert methods == {name.strip() for name in (refused.header("allow") or "").split(",")}, path
            assert methods >= {one.method for one in OPERATIONS if one.path == path}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/chat/completions", None),
        ("GET", "/v1/chat/completions/chatcmpl-1", None),
        ("POST", "/v1/chat/completions/chatcmpl-1", {"metadata": None}),
        ("DELETE", "/v1/chat/completions/chatcmpl-1", None),
        ("GET", "/v1/chat/completions/chatcmpl-1/messages", None),
        ("POST", "/v1/conversations", {}),
        ("GET", "/v1/conversations/conv_1", None),
        ("GET", "/v1/conversations/conv_1/items", None),
    ],
)
async def test_an_operation_that_needs_a_store_is_a_404_without_one(
    method: str, path: str, body: Any
) -> None:
    """HTTP-13: a 404, which clients do not retry, with the code `unsupported_operation` and the option to set."""
    async with serving(served(scripted())) as server:
        answer = await server.request(method, path, body)

        assert (answer.status, answer.error["code"]) == (404, "unsupported_operation")
        assert "--store" in answer.error["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
    ],
)
async def test_without_a_store_every_response_is_unknown(method: str, path: str) -> None:
    """HTTP-13."""
    async with serving(served(scripted())) as server:
        answer = await server.request(method, path)

        assert (answer.status, answer.error["param"]) == (404, "response_id")


# Models


async def test_every_listed_model_can_be_retrieved_and_used() -> None:
    """MOD-01, MOD-02, MOD-04: ids with `/`, plain and percent-encoded."""
    names = ("org/name", "alias", "a/b/c", "with space", "größe")
    async with serving(served(scripted(), names=names)) as server:
        listed = (await server.get("/v1/models")).json
        valid("ListModelsResponse", listed)
        assert [model["id"] for model in listed["data"]] == list(names)
        for model in listed["data"]:
            raw = model["id"].replace(" ", "%20")
            encoded = "".join(
                c if c.isascii() and c.isalnum() else "".join(f"%{b:02X}" for b in c.encode())
                for c in raw.replace("%20", " ")
            )
            for path in (raw, encoded):
                assert (await server.get(f"/v1/models/{path}")).json == model
            answer = await server.post("/v1/responses", {"model": model["id"], "input": "hi"})
            assert (answer.status, answer.json["model"]) == (200, "org/name")


@pytest.mark.parametrize("name", ["x", "org%2Fx", "org/x", "TEST-MODEL", ""])
async def test_an_unknown_model_is_a_404(name: str) -> None:
    """MOD-03, MOD-04, HTTP-13."""
    async with serving(served(scripted())) as server:
        if name:
            answer = await server.get(f"/v1/models/{name}")
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        for path in BODIES:
            answer = await server.post(path, {**BODIES[path], "model": name})
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")


async def test_a_response_without_a_model_comes_from_the_only_one() -> None:
    async with serving(served(scripted(), names=("first", "alias"))) as server:
        for changes in ({}, {"model": None}):
            answer = await server.post("/v1/responses", {"input": "hi", **changes})
            assert (answer.status, answer.json["model"]) == (200, "first")
        for path in ("/v1/chat/completions", "/v1/completions"):
            body = {name: value for name, value in BODIES[path].items() if name != "model"}
            assert (await server.post(path, body)).status == 400  # ERR-06


@pytest.mark.parametrize(
    "path", ["/health", "/version", "/v1/models", "/metrics", "/openapi.json", "/nothing"]
)
async def test_head_is_answered_wherever_get_is(path: str) -> None:
    async with serving(served(scripted())) as server:
        got, head = await server.get(path), await server.request("HEAD", path)
        assert (await server.request("HEAD", "/v1/completions")).status == 405
    assert (head.status, head.body) == (got.status, b"")
    assert head.header("content-type") == got.header("content-type")
    if path != "/metrics":  # They count the requests.
        assert head.header("content-length") == str(len(got.body))


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data; boundary=x"])
async def test_an_unknown_path_is_a_404_whatever_its_content_type(kind: str) -> None:
    async with serving(served(scripted())) as server:
        answer = await server.post("/v1/nothing", b"x", headers={"content-type": kind})
    assert answer.status == 404


async def test_models_say_how_much_they_hold() -> None:
    async with serving(served(scripted())) as server:
        [model] = (await server.get("/v1/models")).json["data"]
        assert model["max_model_len"] == 2048


# Operations beside the OpenAI API


@pytest.mark.parametrize("text", ["hello world", "€ 🎉 ü", " spaces  and\n\nlines ", "<|im_start|>user", ""])
async def test_tokens_and_text_go_round(text: str) -> None:
    async with serving(served(scripted())) as server:
        tokens = (await server.post("/tokenize", {"prompt": text, "return_token_strs": True})).json
        valid("TokenizeResponse", tokens)
        back = (await server.post("/detokenize", {"tokens": tokens["tokens"]})).json

        assert back == {"prompt": text}
        assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"])
        assert tokens["max_model_len"] == 2048


async def test_counts_agree_with_usage() -> None:
    """R-15: `/tokenize`, `/v1/responses/input_tokens` and the usage of an answer have the same count."""
    words = "hello €"
    message = [{"role": "user", "content": words}]
    async with serving(served(scripted())) as server:
        tokenised = (await server.post("/tokenize", {"messages": message})).json["count"]
        counted = await server.post("/v1/responses/input_tokens", {"model": "test-model", "input": words})
        response = (await server.post("/v1/responses", {"model": "test-model", "input": words})).json
        chat = (await server.post("/v1/chat/completions", {"model": "test-model", "messages": message})).json

        assert counted.json == {"object": "response.input_tokens", "input_tokens": tokenised}
        assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"] == tokenised


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "continue_final_message": True,
                       "add_generation_prompt": True}, "continue_final_message"),
        ("/detokenize", {"tokens": [1, 10**9]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)  # fmt: skip
async def test_what_cannot_be_tokenised_is_refused(path: str, body: dict[str, Any], param: str) -> None:
    async with serving(served(scripted())) as server:
        answer = await server.post(path, body)

        assert (answer.status, answer.error["param"]) == (400, param)


async def test_the_contract_is_served() -> None:
    async with serving(served(scripted())) as server:
        document = (await server.get("/openapi.json")).json
        assert document["openapi"].startswith("3.1")
        assert (await server.get("/openapi.yaml")).body.startswith(b"openapi:")
        valid("Version", (await server.get("/version")).json)


async def test_an_answer_is_dated() -> None:
    """CHAT-01, R-01."""
    async with serving(served(scripted())) as server:
        for path, key in (("/v1/chat/completions", "created"), ("/v1/responses", "created_at")):
            assert abs((await server.post(path, BODIES[path])).json[key] - time.time()) < 60


async def test_ids_are_unique_and_have_their_prefix() -> None:
    """CHAT-01, CMP-01, R-01, R-08."""
    prefixes = {"/v1/chat/completions": "chatcmpl-", "/v1/completions": "cmpl-", "/v1/responses": "resp_"}
    async with serving(served(scripted())) as server:
        for path, prefix in prefixes.items():
            answers = await asyncio.gather(*(server.post(path, BODIES[path]) for _ in range(8)))
            ids = {answer.json["id"] for answer in answers}
            assert len(ids) == 8
            assert all(i.startswith(prefix) for i in ids)
