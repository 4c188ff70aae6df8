"""Errors keep status, text, code and param together, and their envelope has four keys."""

from __future__ import annotations

import json

import pytest

from plumbline.contract.wire import errors
from plumbline.contract.wire.errors import ApiError

PROMPT_TOO_LONG = (
    "This model's maximum context length is 8 tokens. However, your messages resulted in 8 tokens. "
    "Please reduce the length of the messages."
)
LIMIT_TOO_LARGE = (
    "This model's maximum context length is 8 tokens. However, your input resulted in 3 tokens, and "
    "'max_output_tokens' asks for 6 more. "
    "Please set 'max_output_tokens' to at most 5, or reduce the length of the input."
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
    (
        errors.context_length_exceeded(8, 8, 1, "messages", "max_tokens"),
        400,
        "messages",
        "context_length_exceeded",
        PROMPT_TOO_LONG,
    ),
    (
        errors.context_length_exceeded(8, 3, 6, "input", "max_output_tokens"),
        400,
        "max_output_tokens",
        "context_length_exceeded",
        LIMIT_TOO_LARGE,
    ),
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
