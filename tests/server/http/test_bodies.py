"""Request bodies that are accepted, and how all others are refused (HTTP-*, ERR-*)."""
# ruff: noqa: E501 - a table reads best with one case a line

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import inspect
from support.bodies import BODIES, ROOTS, each_api, each_body
from support.models import scripted, scripted_info, served
from support.servers.asgi import serving


@each_body
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "could not parse"),
        (b"{", "could not parse"),
        (b'{"model": "test-model", "messages": [', "could not parse"),
        (b"not json", "could not parse"),
        (b"[]", "could not parse"),
        (b'"text"', "could not parse"),
        (b"null", "could not parse"),
        (b'{"model": "\xff\xfe"}', "UTF-8"),
        (b'{"model": "\\ud800"}', "could not parse"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deep"),
        (b"[" * 100_000, "could not parse"),
        (b"\x00", "could not parse"),
    ],
    ids=lambda given: given[:20].decode("latin-1") if isinstance(given, bytes) else given,
)
async def test_a_body_that_is_no_json_object_is_refused(path: str, body: bytes, words: str) -> None:
    """HTTP-07: 400 with the envelope, never 500."""
    async with serving(served(scripted())) as server:
        answer = await server.post(path, body)

        assert answer.status == 400
        assert words in answer.error["message"]


@each_body
@pytest.mark.parametrize("depth", [300, 480, 700, 900])
async def test_a_deep_body_with_another_mistake_is_refused(path: str, depth: int) -> None:
    """HTTP-07: at any depth, whichever decoder reaches its recursion limit."""
    async with serving(served(scripted())) as server:
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        answer = await server.post(path, b'{"model": 1, "prompt": 1, "tokens": 1, "metadata": ' + deep + b"}")

        assert answer.status == 400
        assert answer.error


def wrong_values(kind: inspect.Type) -> Iterator[Any]:
    """Values of JSON kinds that this type does not have."""
    kinds = list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]
    names = {type(k).__name__ for k in kinds}
    texts = {"StrType", "LiteralType", "AnyType"}
    if not names & texts:
        yield "x"
    if not names & {"IntType", "FloatType", "AnyType"}:
        yield 5
    if not names & {"BoolType", "AnyType"}:
        yield True
    if not names & {"ListType", "AnyType"}:
        yield []
    if not names & {"DictType", "StructType", "AnyType"}:
        yield {}
    if not names & {"NoneType", "AnyType"}:
        yield None


@each_body
async def test_a_value_of_the_wrong_type_is_refused_by_its_name(path: str) -> None:
    """ERR-08, ERR-05: for every field of the request; strict also where a string would do as a number."""
    kind = inspect.type_info(ROOTS[path])
    assert isinstance(kind, inspect.StructType)
    async with serving(served(scripted())) as server:
        tried = 0
        for field in kind.fields:
            for value in wrong_values(field.type):
                answer = await server.post(path, {**BODIES[path], field.encode_name: value})
                assert answer.status == 400, (field.encode_name, value)
                param = answer.error["param"] or ""
                assert re.split(r"[.\[]", param)[0] == field.encode_name, (
                    field.encode_name,
                    value,
                    answer.error,
                )
                tried += 1
        assert tried > 2 * len(kind.fields)


OUT_OF_RANGE: dict[str, list[Any]] = {
    "temperature": [-0.1, 2.1], "top_p": [-0.1, 1.1], "presence_penalty": [-2.1, 2.1], "frequency_penalty": [-2.1, 2.1],
    "n": [0, 129], "top_logprobs": [-1, 21], "max_tokens": [-1], "max_completion_tokens": [0], "stop": [[], ["a"] * 5],
    "messages": [[]], "max_output_tokens": [15, 0], "best_of": [-1, 21], "logprobs": [-1, 6],
    "metadata": [{"k" * 65: "v"}, {"k": "v" * 513}, {str(i): "v" for i in range(17)}],
    "tools": [[{"type": "function", "function": {"name": "a b"}}], [{"type": "function", "function": {"name": "a" * 65}}]],
    "logit_bias": [{"5": 101}, {"5": -101}],
}  # fmt: skip


@each_api
async def test_a_value_out_of_range_is_refused_and_not_clamped(path: str) -> None:
    """ERR-07, R-16, R-17."""
    known = set(ROOTS[path].__struct_fields__)
    async with serving(served(scripted())) as server:
        for field, values in OUT_OF_RANGE.items():
            elsewhere = (("/v1/responses", "tools"), ("/v1/messages", "tools"), ("/v1/messages", "metadata"))
            if field not in known or (path, field) in elsewhere:
                continue
            for value in values:
                if path != "/v1/completions" and field == "logprobs":
                    continue  # There it is a switch.
                answer = await server.post(path, {**BODIES[path], field: value})
                assert answer.status == 400, (field, value)
                assert re.split(r"[.\[]", answer.error["param"])[0] == field


async def test_errors_have_the_texts_of_openai() -> None:
    """ERR-04, ERR-06: clients match on them."""
    chat = BODIES["/v1/chat/completions"]
    async with serving(served(scripted(info=scripted_info(max_model_len=40)))) as server:

        async def error(body: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[int, Any]:
            answer = await server.post(path, body)
            return answer.status, tuple(answer.error[key] for key in ("message", "param", "code"))

        assert await error({"messages": chat["messages"]}) == (
            400,
            ("you must provide a model parameter", None, None),
        )
        assert await error({"model": "test-model"}) == (
            400, ("Missing required parameter: 'messages'.", "messages", "missing_required_parameter"),
        )  # fmt: skip
        assert await error({**chat, "max_tokens": "5"}) == (
            400,
            ("Invalid type for 'max_tokens': expected an integer, but got a string instead.", "max_tokens", "invalid_type"),
        )  # fmt: skip
        assert await error({**chat, "n": 130}) == (
            400,
            ("Invalid 'n': integer above maximum value. Expected a value <= 128, but got 130 instead.", "n", "integer_above_max_value"),
        )  # fmt: skip
        assert await error({**chat, "model": "x"}) == (
            404, ("The model `x` does not exist or you do not have access to it. This server has test-model.", None, "model_not_found"),
        )  # fmt: skip
        status, (message, param, code) = await error({**chat, "max_tokens": 100})
        assert (status, param, code) == (400, "max_tokens", "context_length_exceeded")
        assert "maximum context length is 40 tokens" in message
        status, (_, param, code) = await error({**chat, "max_completion_tokens": 100})
        assert (status, param, code) == (400, "max_completion_tokens", "context_length_exceeded")
        status, (_, param, code) = await error({**chat, "messages": [{"role": "user", "content": "x" * 100}]})
        assert (status, param, code) == (400, "messages", "context_length_exceeded")
        assert (await error({"model": "test-model", "input": "x" * 100}, "/v1/responses"))[1][1:] == (
            "input", "context_length_exceeded",
        )  # fmt: skip
        assert (await error({"model": "test-model", "prompt": ""}, "/v1/completions"))[1][1] == "prompt"


async def test_truncation_drops_the_oldest_messages() -> None:
    """R-18: `auto` succeeds where `disabled` is a 400."""
    items = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"words {i} " * 5} for i in range(9)]
    body = {"model": "test-model", "input": items, "instructions": "Be brief."}
    async with serving(served(scripted(info=scripted_info(max_model_len=150)))) as server:
        assert (await server.post("/v1/responses", body)).error["code"] == "context_length_exceeded"
        answer = await server.post("/v1/responses", {**body, "truncation": "auto", "max_output_tokens": 16})

        assert answer.status == 200
        assert answer.json["output"][0]["content"][0]["text"].startswith("You said: words")
        assert answer.json["usage"]["input_tokens"] + 16 <= 150


async def test_unknown_fields_are_passed_over() -> None:
    """HTTP-09."""
    async with serving(served(scripted())) as server:
        for path, body in BODIES.items():
            assert (await server.post(path, {**body, "client_metadata": {"a": [1]}})).status == 200


@each_api
@pytest.mark.parametrize("declared", [True, False], ids=["content-length", "chunked"])
async def test_a_body_that_is_too_large_is_refused(path: str, declared: bool) -> None:
    """413 with the envelope, with and without a content length."""
    body = json.dumps({**BODIES[path], "user": "x" * 11_000_000}).encode()
    chunks = None if declared else [body[i : i + 1_000_000] for i in range(0, len(body), 1_000_000)]
    async with serving(served(scripted())) as server:
        answer = await server.post(path, body if declared else None, chunks=chunks)

        assert (answer.status, answer.error["type"]) == (413, "invalid_request_error")
        assert (await server.post(path, BODIES[path])).status == 200


@each_body
@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"]
)
async def test_a_body_of_another_type_is_refused(path: str, kind: str) -> None:
    """HTTP-08."""
    async with serving(served(scripted())) as server:
        answer = await server.post(path, BODIES[path], headers={"content-type": kind})

        assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


async def test_a_compressed_body_is_refused() -> None:
    """HTTP-08: it would otherwise be taken for malformed JSON."""
    async with serving(served(scripted())) as server:
        answer = await server.post("/v1/responses", b"\x1f\x8b", headers={"content-encoding": "gzip"})

        assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"]
)
async def test_json_by_any_name_is_accepted(kind: str) -> None:
    async with serving(served(scripted())) as server:
        answer = await server.post("/v1/responses", BODIES["/v1/responses"], headers={"content-type": kind})

        assert answer.status == 200
