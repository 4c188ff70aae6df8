"""Test that a schema message names the key that is wrong, and the branch of a union that the value is meant for."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from example_servers.good_server import transcripts

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.checks.common import at
from plumbline_conformance.suite.schema_validation import violations


def response() -> dict[str, Any]:
    found: dict[str, Any] = deepcopy(transcripts()["responses/stream-text"].exchanges[0].json)
    return found


@pytest.mark.parametrize("key", ["input_tokens", "output_tokens_details", "total_tokens"])
def test_a_missing_key_of_usage_is_named_with_its_schema(key: str) -> None:
    """`usage` may be null, which makes it a union."""
    answer = response()
    del answer["usage"][key]

    [problem] = violations("Response", answer)

    assert problem.actual == f'"{key}" is a required property of ResponseUsage'
    assert problem.pointer == "usage"


@pytest.mark.parametrize("key", ["id", "role", "content", "status"])
def test_a_missing_key_of_an_item_is_named_with_the_schema_of_its_type(key: str) -> None:
    answer = response()
    del answer["output"][0][key]

    [problem] = violations("Response", answer)

    assert problem.actual == f'"{key}" is a required property of OutputMessage'
    assert problem.pointer == "output.0"


def test_a_wrong_value_is_named_where_it_is() -> None:
    answer = response()
    answer["output"][0]["content"][0]["text"] = 5

    [problem] = violations("Response", answer)

    assert problem.actual.startswith('5 is not of type "string"')
    assert problem.pointer == "output.0.content.0.text"


def test_an_item_of_an_unknown_type_is_shown_itself() -> None:
    answer = response()
    answer["output"][0]["type"] = "nonsense"

    [problem] = violations("Response", answer)

    assert "nonsense" in problem.actual
    assert problem.pointer == "output.0"


def test_cache_writes_are_not_needed() -> None:
    """OpenAI's document requires them since 2026; no official client reads them."""
    answer = response()
    del answer["usage"]["input_tokens_details"]["cache_write_tokens"]

    assert list(violations("Response", answer)) == []


def test_nulls_in_a_long_list_count_as_members_left_out() -> None:
    """A list has one for each answer: more than the violations that are reported."""
    listed = at(transcripts()["chat/stored"], "list").json
    one = listed["data"][0]
    message = {**one["choices"][0]["message"], "tool_calls": None, "function_call": None}
    answer = {**one, "choices": [{**one["choices"][0], "message": message}]}

    assert list(violations("ChatCompletionList", {**listed, "data": [answer] * 300})) == []
