"""HTTP around the operations: headers, refusals, keys, models, health, metrics (HTTP-*, ERR-*, MOD-*)."""
# ruff: noqa: E501 - a table reads best with one case a line

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from prometheus_client.parser import text_string_to_metric_families
from support.asgi import Answer, Server, serving
from support.judges import valid
from support.models import GatedEngine, said, scripted, scripted_info, served, until

from plumbline._generated.types import (
    CreateChatCompletionRequest,
    CreateCompletionRequest,
    CreateResponse,
    DetokenizeRequest,
    TokenizeRequest,
)
from plumbline.engine.api import EngineStats
from plumbline.server.settings import Settings, SettingsError, read_api_keys

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "test-model", "messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"model": "test-model", "prompt": "hello", "max_tokens": 100},
    "/v1/responses": {"model": "test-model", "input": "hello"},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1, 2]},
}
ROOTS: dict[str, Any] = {
    "/v1/chat/completions": CreateChatCompletionRequest,
    "/v1/completions": CreateCompletionRequest,
    "/v1/responses": CreateResponse,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
each_body = pytest.mark.parametrize("path", BODIES)
each_api = pytest.mark.parametrize("path", [path for path in BODIES if path.startswith("/v1")])

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
        await server.get("/v1/chat/completions"),
        await server.post("/v1/chat/completions", b"{"),
        await server.post("/v1/chat/completions", {**BODIES["/v1/chat/completions"], "model": "x"}),
        await server.post("/v1/chat/completions", b"a=1", headers={"content-type": "application/x-www-form-urlencoded"}),
        await server.post("/v1/chat/completions", b" " * 2_000_000),
    ]  # fmt: skip
    return answers


async def test_every_answer_has_an_id_of_its_own() -> None:
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


# Bodies


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
    """HTTP-07: at whatever depth the recursion of which reader ends."""
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


OUT_OF_RANGE = {
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
            if field not in known or (path == "/v1/responses" and field == "tools"):
                continue
            for value in values:
                if path != "/v1/completions" and field == "logprobs":
                    continue  # There it is a switch.
                answer = await server.post(path, {**BODIES[path], field: value})
                assert answer.status == 400, (field, value)
                assert re.split(r"[.\[]", answer.error["param"])[0] == field


async def test_the_services_own_words_are_used() -> None:
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
            404, ("The model `x` does not exist or you do not have access to it.", None, "model_not_found"),
        )  # fmt: skip
        status, (message, param, code) = await error({**chat, "max_tokens": 100})
        assert (status, param, code) == (400, "messages", "context_length_exceeded")
        assert "maximum context length is 40 tokens" in message
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


# Routes


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/nowhere", "/v1/chat", "/v1/chat/completions/x", "/v1/%7Bx%7D", "/v1/é"]
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
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/completions", "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("POST", "/health", "GET"),
        ("PATCH", "/v1/responses", "POST"),
    ],
)
async def test_a_wrong_method_is_a_405_that_says_what_is_right(method: str, path: str, allowed: str) -> None:
    """HTTP-08."""
    async with serving(served(scripted())) as server:
        answer = await server.request(method, path, {} if method == "POST" else None)

        assert answer.status == 405
        assert allowed in (answer.header("allow") or "")
        assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/responses/resp_1", None),
        ("DELETE", "/v1/responses/resp_1", None),
        ("POST", "/v1/responses/resp_1/cancel", None),
        ("GET", "/v1/responses/resp_1/input_items", None),
        ("POST", "/v1/responses/compact", {"model": "test-model", "input": "hi"}),
    ],
)
async def test_an_operation_that_is_not_there_yet_says_so(method: str, path: str, body: Any) -> None:
    """HTTP-13: a 404, which clients do not retry, with a code of its own."""
    async with serving(served(scripted())) as server:
        answer = await server.request(method, path, body)

        assert (answer.status, answer.error["code"]) == (404, "unsupported_operation")


# Models


async def test_every_listed_model_can_be_retrieved_and_used() -> None:
    """MOD-01, MOD-02, MOD-04: ids with `/`, raw and percent-encoded."""
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


# Keys

KEYED = [
    "/v1/models",
    "/v1/models/test-model",
    "/v1/responses/resp_1",
    "/nowhere",
    "/v1/chat/completions",
    "/tokenize",
]


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic one",
        "one",
        "Bearer one two",
        "Bearer ONE",
        "bearerone",
    ],
)
async def test_without_the_key_nothing_is_answered(authorization: str | None) -> None:
    """HTTP-06: 401 for a missing or a wrong key, on every path that is not for probes."""
    headers = {} if authorization is None else {"authorization": authorization}
    async with serving(served(scripted()), api_keys=("one", "two")) as server:
        for path in KEYED:
            answer = await server.get(path, headers=headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert answer.header("www-authenticate") == "Bearer"
        for path, body in BODIES.items():
            assert (await server.post(path, body, headers=headers)).status == 401


@pytest.mark.parametrize("authorization", ["Bearer one", "bearer two", "Bearer  one ", "Bearer schlüssel"])
async def test_each_of_several_keys_is_accepted(authorization: str) -> None:
    """HTTP-06."""
    async with serving(served(scripted()), api_keys=("one", "two", "schlüssel")) as server:
        assert (await server.get("/v1/models", headers={"authorization": authorization})).status == 200


async def test_probes_need_no_key() -> None:
    async with serving(served(scripted()), api_keys=("one",)) as server:
        for path in ("/health", "/version", "/metrics", "/openapi.json", "/openapi.yaml"):
            assert (await server.get(path)).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "example.org"])
def test_without_a_key_only_loopback_is_served(host: str) -> None:
    with pytest.raises(SettingsError, match="--api-key"):
        Settings(host=host)
    assert Settings(host=host, api_keys=("one",)).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.0.0.9"])
def test_loopback_needs_no_key(host: str) -> None:
    assert Settings(host=host).api_keys == ()


def test_keys_come_from_arguments_a_file_and_the_environment(tmp_path: Any) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\n file-key \n\none\n")
    found = read_api_keys(["one", "two"], str(path), {"PLUMBLINE_API_KEY": "env-a, env-b,,"})

    assert found == ("one", "two", "file-key", "env-a", "env-b")
    assert read_api_keys([], None, {}) == ()


@pytest.mark.parametrize("content", [None, b"# nothing\n", b"\xff\xfe"])
def test_a_key_file_without_keys_is_an_error(tmp_path: Any, content: bytes | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match="api-key-file"):
        read_api_keys([], str(path), {})


def test_an_empty_key_is_an_error() -> None:
    with pytest.raises(SettingsError, match="empty"):
        Settings(api_keys=("",))


# Load, health, metrics


@each_api
@pytest.mark.parametrize("stream", [True, False])
async def test_a_full_queue_is_a_429(path: str, stream: bool) -> None:
    """HTTP-05: the envelope and `Retry-After`, before any stream begins."""
    engine = GatedEngine(max_inflight=1)
    async with serving(served(engine)) as server:
        first = server.open("POST", path, BODIES[path])
        await until(lambda: engine.num_running)
        answer = await server.post(path, {**BODIES[path], "stream": stream})

        assert answer.status == 429
        assert int(answer.header("retry-after") or 0) >= 1
        assert answer.error["code"] == "rate_limit_exceeded"
        engine.let()
        assert (await first.answer()).status == 200
        assert (await server.post(path, {**BODIES[path], "stream": stream})).status == 200


async def test_more_choices_than_can_ever_run_are_the_requests_mistake() -> None:
    """HTTP-13: a 429 would be tried again for ever, after all prompts have been tokenised for nothing."""
    async with serving(served(scripted()), max_num_seqs=2, max_num_waiting=2) as server:
        completion, chat = BODIES["/v1/completions"], BODIES["/v1/chat/completions"]
        for path, body, param in (
            ("/v1/completions", {**completion, "prompt": ["a"] * 3, "n": 2}, "prompt"),
            ("/v1/completions", {**completion, "best_of": 5}, "n"),
            ("/v1/chat/completions", {**chat, "n": 5}, "n"),
        ):
            answer = await server.post(path, body)
            assert (answer.status, answer.error["param"], answer.error["code"]) == (
                400,
                param,
                "invalid_value",
            )
        answer = await server.post("/v1/completions", {**completion, "prompt": ["a", "b"], "n": 2})
        assert len(answer.json["choices"]) == 4


async def test_a_request_that_does_not_fit_whole_leaves_nothing_behind() -> None:
    """HTTP-05 with `n`: of four choices three fit; none may go on."""
    engine = GatedEngine(max_inflight=3)
    async with serving(served(engine)) as server:
        for stream in (True, False):
            body = {**BODIES["/v1/chat/completions"], "n": 4, "stream": stream}
            assert (await server.post("/v1/chat/completions", body)).status == 429
            assert engine.num_running == 0
            assert await server.tasks_left() == set()
        assert engine.num_given == 0


class Sick(GatedEngine):
    """An engine that says of itself what the test wants."""

    facts: dict[str, Any] = {}  # noqa: RUF012

    def stats(self) -> EngineStats:
        return msgspec.structs.replace(super().stats(), **self.facts)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({}, 200),
        ({"alive": False}, 503),
        ({"seconds_since_step": 31.0}, 503),
        ({"seconds_since_step": 29.0}, 200),
    ],
)
async def test_health_tells_a_dead_or_stuck_engine(facts: dict[str, Any], status: int) -> None:
    engine = Sick()
    async with serving(served(engine), stuck_after=30.0) as server:
        engine.facts = facts
        answer = await server.get("/health")

        assert answer.status == status
        assert answer.json == {"status": "ok" if status == 200 else "failing"}
        engine.facts = {}


def families(answer: Answer) -> dict[str, Any]:
    assert answer.header("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    return {family.name: family for family in text_string_to_metric_families(answer.body.decode())}


def value(found: dict[str, Any], name: str, **labels: str) -> float:
    samples = [s for family in found.values() for s in family.samples if s.name == name]
    return sum(s.value for s in samples if labels.items() <= s.labels.items())


OURS = [
    "num_requests_running", "num_requests_waiting", "prompt_tokens_total", "generation_tokens_total",
    "time_to_first_token_seconds_count", "inter_token_latency_seconds_count", "request_success_total",
    "e2e_request_latency_seconds_sum", "request_prompt_tokens_sum", "request_generation_tokens_sum",
]  # fmt: skip


async def test_metrics_are_an_exposition_with_both_names() -> None:
    engine = GatedEngine(said("one two three"))
    async with serving(served(engine)) as server:
        before = families(await server.get("/metrics"))
        exchange = server.open(
            "POST", "/v1/chat/completions", {**BODIES["/v1/chat/completions"], "stream": True}
        )
        await until(lambda: engine.num_running)
        during = families(await server.get("/metrics"))
        engine.let()
        await exchange.answer()
        await server.get("/v1/nowhere")
        after = families(await server.get("/metrics"))

        assert {sample.name for family in before.values() for sample in family.samples} >= {
            name
            for ours in OURS
            if ours != "request_success_total"
            for name in (f"plumbline_{ours}", f"vllm:{ours}")
        }
        assert value(before, "plumbline_num_requests_running") == 0
        assert value(during, "plumbline_num_requests_running") == 1
        assert value(after, "plumbline_num_requests_running") == 0
        assert value(after, "plumbline_http_requests_open") == 1, "the scrape itself"
        assert value(after, "plumbline_request_success_total", finished_reason="stop") == 1
        for name in OURS:
            assert value(after, f"plumbline_{name}") == value(after, f"vllm:{name}"), name
        assert value(after, "plumbline_time_to_first_token_seconds_count") == 1
        num_deltas = len(list(said("one two three")(SimpleRequest))) - 1
        assert value(after, "plumbline_inter_token_latency_seconds_count") == num_deltas - 1
        assert value(after, "plumbline_errors_total", status="404") == 1
        assert value(after, "plumbline_http_requests_total", path="other", status="404") == 1
        assert value(after, "plumbline_http_requests_total", path="/v1/chat/completions", status="200") == 1


class SimpleRequest:
    """As much of a request as a script looks at."""

    class sampling:  # noqa: N801
        logprobs = None
        prompt_logprobs = None


async def test_paths_of_clients_make_no_time_series() -> None:
    async with serving(served(scripted())) as server:
        for path in (
            "/v1/models/a",
            "/v1/models/b%2Fc",
            "/v1/responses/x",
            "/v1/responses/y/input_items",
            "/z",
        ):
            await server.get(path)
        found = families(await server.get("/metrics"))
        paths = {s.labels["path"] for s in found["plumbline_http_requests"].samples if "path" in s.labels}

        assert paths == {"/v1/models/{id}", "/v1/responses/{id}", "/v1/responses/{id}/input_items", "other"}


async def test_a_client_that_left_is_counted_as_such() -> None:
    engine = GatedEngine()
    async with serving(served(engine)) as server:
        exchange = server.open("POST", "/v1/responses", BODIES["/v1/responses"])
        await until(lambda: engine.num_running)
        exchange.leave()
        await exchange.finished()
        found = families(await server.get("/metrics"))

        assert value(found, "plumbline_http_requests_total", path="/v1/responses", status="499") == 1
        assert value(found, "plumbline_num_requests_running") == 0


# Our own operations


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
    """R-15: tokenising a conversation, counting a request's input and answering it say the same number."""
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
        ("/tokenize", {"prompt": "a", "add_special_tokens": False}, "add_special_tokens"),
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
