"""The seam: errors keep text, code and status together; frames are frames; a call knows its client."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar import Litestar, Request, get
from litestar.testing import TestClient

from plumbline.wire import errors, sse
from plumbline.wire.call import Call, new_request_id
from plumbline.wire.errors import ApiError
from plumbline.wire.explain import explain
from plumbline.wire.query import Query

CONTEXT = (
    "This model's maximum context length is 8 tokens. However, your messages resulted in 9 tokens. "
    "Please reduce the length of the messages."
)
ERRORS = [
    (errors.unknown_parameter("x.y"), 400, "x.y", "unknown_parameter", "Unknown parameter: 'x.y'."),
    (
        errors.unsupported_parameter("x", "is new"),
        400,
        "x",
        "unsupported_parameter",
        "Unsupported parameter: 'x' is new.",
    ),
    (
        errors.unsupported_value("n", 3, "is odd"),
        400,
        "n",
        "unsupported_value",
        "Unsupported value: 'n' '3' is odd.",
    ),
    (errors.context_length_exceeded(8, 9), 400, "messages", "context_length_exceeded", CONTEXT),
    (
        errors.invalid_json_schema("text.format.schema", "s", "no"),
        400,
        "text.format.schema",
        "invalid_json_schema",
        "Invalid schema for text 's': no.",
    ),
    (
        errors.previous_response_not_found("resp_x"),
        400,
        "previous_response_id",
        "previous_response_not_found",
        "Previous response with id 'resp_x' not found.",
    ),
    (
        errors.invalid_api_key(),
        401,
        None,
        "invalid_api_key",
        "Incorrect API key provided. Send the key as 'Authorization: Bearer KEY'.",
    ),
    (
        errors.model_not_found("x"),
        404,
        None,
        "model_not_found",
        "The model `x` does not exist or you do not have access to it.",
    ),
    (errors.response_not_found("resp_x"), 404, "response_id", None, "Response with id 'resp_x' not found."),
    (errors.rate_limited("Wait."), 429, None, "rate_limit_exceeded", "Wait."),
    (errors.server_error(), 500, None, None, "The server had an error while processing your request."),
    (errors.engine_unavailable(), 503, None, "engine_unavailable", "The engine is not ready."),
    (errors.from_status(405, "No."), 405, None, None, "No."),
    (errors.from_status(502, "No."), 502, None, None, "No."),
]


@pytest.mark.parametrize(("error", "status", "param", "code", "message"), ERRORS, ids=lambda v: str(v)[:24])
def test_an_error_is_a_status_and_an_envelope_of_four_keys(
    error: ApiError, status: int, param: str | None, code: str | None, message: str
) -> None:
    """ERR-01, ERR-03."""
    body = json.loads(errors.envelope(error))
    kind = (
        "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    )

    assert error.status == status
    assert body == {"error": {"message": message, "type": kind, "param": param, "code": code}}
    assert str(error) == message
    assert repr(error).startswith(f"ApiError({status}, ")


def test_waiting_is_at_least_a_second() -> None:
    """HTTP-05."""
    assert errors.rate_limited("", retry_after=0).headers == {"Retry-After": "1"}
    assert errors.rate_limited("", retry_after=30).headers == {"Retry-After": "30"}


def test_a_long_value_is_not_repeated_in_full() -> None:
    assert len(errors.invalid_value("x", "y" * 10_000).message) < 300
    for make in (errors.model_not_found, errors.previous_response_not_found, errors.response_not_found):
        assert len(make("y" * 10_000).message) < 300
    assert errors.invalid_value("x", {"a": 1}).message == "Invalid value for 'x': {\"a\":1}."


@pytest.mark.parametrize(
    ("words", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b, or c")]
)
def test_words_are_listed_as_in_english(words: list[str], text: str) -> None:
    assert errors.listed(words, "or") == text


def test_a_path_that_leads_nowhere_is_still_named() -> None:
    error = explain(dict, {"a": [1]}, "Expected `int`, got `str` - at `$.a[5].b`")

    assert (error.param, error.code) == ("a[5].b", "invalid_type")


def test_a_map_of_closed_strings_says_which_it_supports() -> None:
    class Root(msgspec.Struct):
        moods: dict[str, Literal["calm", "storm"]]

    document = {"moods": {"today": "calm", "later": "fog"}}
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(document, Root)
    error = explain(Root, document, str(caught.value))

    assert (
        error.message == "Invalid value for 'moods.later': 'fog'. Supported values are: 'calm' and 'storm'."
    )


def test_a_refusal_that_nobody_foresaw_is_still_a_400() -> None:
    error = explain(dict, {}, "Something else - at `$.a[0].b`")

    assert (error.status, error.param, error.message) == (400, "a[0].b", "Invalid request: Something else.")


@given(
    st.recursive(st.none() | st.booleans() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c))
)
def test_a_frame_holds_one_document_and_ends_with_a_blank_line(document: Any) -> None:
    """SSE-01, SSE-02, SSE-04."""
    data = msgspec.json.encode(document)
    for event in (None, "response.created"):
        lines = sse.frame(data, event).decode().split("\n")
        named = [f"event: {event}"] if event else []
        assert lines == [*named, f"data: {data.decode()}", "", ""]
    assert sse.comment("ping") == b": ping\n\n"
    assert sse.DONE == b"data: [DONE]\n\n"


def test_a_call_returns_from_waiting_when_the_client_has_gone() -> None:
    """HTTP-11."""
    messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

    async def receive() -> dict[str, str]:
        return next(messages)

    call = Call(request_id="r", headers={}, api_key=None, _receive=receive)
    asyncio.run(call.disconnected())
    assert next(messages, None) is None


def test_a_call_knows_its_key_and_its_name() -> None:
    """HTTP-03, HTTP-06."""

    @get("/")
    async def show(request: Request[Any, Any, Any]) -> dict[str, Any]:
        call = Call.of(request)
        return {"key": call.api_key, "id": call.request_id[:4], "agent": call.headers.get("User-Agent")}

    with TestClient(Litestar([show], openapi_config=None)) as client:
        for header, key in [
            ("Bearer k", "k"),
            ("bearer  k ", "k"),
            ("Basic k", None),
            ("Bearer ", None),
            ("", None),
        ]:
            answer = client.get("/", headers={"Authorization": header, "User-Agent": "us"}).json()
            assert answer == {"key": key, "id": "req_", "agent": "us"}
    assert new_request_id() != new_request_id()


def test_query_parameters_have_no_value_of_their_own() -> None:
    query = Query({"a": ["1"], "n": ["-5"], "big": ["9" * 30], "t": ["true"], "f": ["false"]})

    assert (query.text("b"), query.text("b", default="x"), query.text("a")) == (None, "x", "1")
    assert (query.integer("b"), query.integer("b", default=3), query.integer("n")) == (None, 3, -5)
    assert (query.boolean("b", default=True), query.boolean("t"), query.boolean("f")) == (True, True, False)
    with pytest.raises(ApiError, match="expected an integer"):
        query.integer("big")
