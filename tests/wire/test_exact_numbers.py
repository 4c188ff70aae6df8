"""Law of number literals: those of schemas and arguments go through the server as the client wrote them."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import number_literals

from plumbline.base.exact_number import ExactNumber, dumps, exact_number
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.messages import CreateMessageRequest
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.decode import decode, encode

USER = '"model": "m", "messages": [{"role": "user", "content": "x"}]'
REQUESTS = [
    (
        CreateChatCompletionRequest,
        f'{{{USER}, "response_format": {{"type": "json_schema", "json_schema": {{"name": "x", "schema": %s}}}}}}',
    ),
    (  # Another number is none of the type of its field, which takes a second try.
        CreateChatCompletionRequest,
        f'{{{USER}, "n": 1.0, "tools": [{{"type": "function", "function": {{"name": "f", "parameters": %s}}}}]}}',
    ),
    (
        CreateResponse,
        '{"model": "m", "input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": %s}}}',
    ),
    (CreateChatCompletionRequest, f'{{{USER}, "structured_outputs": {{"json": %s}}}}'),
    (CreateChatCompletionRequest, f'{{{USER}, "guided_json": %s}}'),
    (
        CreateMessageRequest,
        f'{{{USER}, "max_tokens": 9, "tools": [{{"name": "f", "input_schema": %s}}]}}',
    ),
]


@pytest.mark.parametrize("number", range(len(REQUESTS)))
@given(literal=number_literals, padding=st.sampled_from((0, 1 << 16)))
def test_a_literal_is_echoed_and_shown_as_it_came_whatever_the_size_of_the_body(
    number: int, literal: str, padding: int
) -> None:
    root, text = REQUESTS[number]
    text = text.replace('"x"', f'"{"x" * padding}"', 1)
    schema = f'{{"type": "object", "default": {literal}}}'
    request: Any = decode(root, (text % schema).encode())  # type: ignore[arg-type]
    value = exact_number(literal) if set(literal) & set(".eE") else int(literal)
    for shown in (encode(request).decode(), dumps(json.loads(schema, parse_float=exact_number))):
        found = re.search(r'"default": ?([0-9.eE+-]+)', shown)
        assert found is not None
        if isinstance(value, int | ExactNumber):
            assert found[1] == literal
        else:  # A double has several spellings.
            assert float(found[1]) == value


def test_a_long_number_of_a_field_with_a_type_is_that_number() -> None:
    body = f'{{{USER}, "n": 1.0, "temperature": 0.7000000000000000123456}}'.encode()
    assert decode(CreateChatCompletionRequest, body).temperature == pytest.approx(0.7)


@given(number_literals)
def test_an_exact_number_survives_the_way_to_a_worker(literal: str) -> None:
    value = exact_number(literal)
    assert repr(pickle.loads(pickle.dumps(value))) == repr(value)


@given(st.text("\ue000\ue001:-+.eE019"))
def test_a_text_stays_a_text_beside_exact_numbers(text: str) -> None:
    value = {text: [text, exact_number("1e400"), f"\ue000{text}\ue001"]}
    assert dumps(value) == json.dumps({text: [text, 0, value[text][2]]}, ensure_ascii=False).replace(
        ", 0, ", ", 1e400, "
    )
