"""An output format is the same under every field name, and the strict subset is enforced."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import number_literals

from plumbline.answer.structured_output.strict_subset import strict_violation
from plumbline.answer.turn import ChoiceFormat, JsonFormat, LarkFormat, OutputFormat, RegexFormat, TagsFormat
from plumbline.base.exact_number import dumps
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.decode import decode, encode
from plumbline.server.protocols.common.output_formats import read_format

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
ITEMS = {"model": "m", "input": "hi"}
ROOTS = ((CreateChatCompletionRequest, CHAT), (CreateCompletionRequest, TEXT), (CreateResponse, ITEMS))

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
FORMATS: dict[str, tuple[Any, OutputFormat]] = {
    "json": (SCHEMA, JsonFormat(SCHEMA)),
    "regex": ("a+", RegexFormat("a+")),
    "choice": (["a", "b"], ChoiceFormat(("a", "b"))),
    "grammar": ('start: "a"', LarkFormat('start: "a"')),
}


def read(root: Any, body: dict[str, Any]) -> OutputFormat | None:
    return read_format(decode(root, encode(body)))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("root", "body"), ROOTS)
def test_both_field_names_give_the_same_format(root: Any, body: dict[str, Any], kind: str) -> None:
    value, expected = FORMATS[kind]
    assert read(root, {**body, "structured_outputs": {kind: value}}) == expected
    if root is not CreateResponse:
        assert read(root, {**body, f"guided_{kind}": value}) == expected


@given(number_literals)
def test_numbers_of_a_schema_that_comes_as_text_stay_as_they_are(literal: str) -> None:
    schema = f'{{"const": {literal}}}'
    tag = {"structures": [{"begin": "<a>", "schema": {"const": 0}, "end": "</a>"}], "triggers": ["<a>"]}
    for value in ({"json": schema}, {"structural_tag": json.dumps(tag).replace('{"const": 0}', schema)}):
        found = read(CreateChatCompletionRequest, {**CHAT, "structured_outputs": value})
        assert isinstance(found, JsonFormat | TagsFormat)
        read_schema = found.schema if isinstance(found, JsonFormat) else found.tags[0].schema
        (number,) = json.loads(dumps(read_schema), parse_float=Decimal, parse_int=Decimal).values()
        assert number == Decimal(literal)


@pytest.mark.parametrize(("root", "body"), ROOTS)
def test_a_schema_may_come_as_text(root: Any, body: dict[str, Any]) -> None:
    assert read(root, {**body, "structured_outputs": {"json": json.dumps(SCHEMA)}}) == JsonFormat(SCHEMA)
    assert read(root, {**body, "structured_outputs": {"json": "true"}}) == JsonFormat(True)


def test_chat_and_responses_read_a_schema_alike() -> None:
    described = {"name": "n", "schema": SCHEMA}
    chat = {**CHAT, "response_format": {"type": "json_schema", "json_schema": described}}
    items = {**ITEMS, "text": {"format": {"type": "json_schema", **described}}}
    assert read(CreateChatCompletionRequest, chat) == read(CreateResponse, items) == JsonFormat(SCHEMA)
    chat = {**CHAT, "response_format": {"type": "json_object"}}
    items = {**ITEMS, "text": {"format": {"type": "json_object"}}}
    assert read(CreateChatCompletionRequest, chat) == read(CreateResponse, items) == JsonFormat()


@pytest.mark.parametrize(("root", "body"), ROOTS)
def test_free_text_has_no_format(root: Any, body: dict[str, Any]) -> None:
    assert read(root, body) is None
    assert read(root, {**body, "structured_outputs": None}) is None


NAMES = st.sampled_from(["a", "b", "c", "dé"])


def strict_schemas(depth: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas inside of the strict subset."""
    leaves = st.sampled_from(
        [{"type": "string"}, {"type": ["integer", "null"]}, {"enum": [1]}, {"$ref": "#"}]
    )

    def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        return st.dictionaries(NAMES, inner, max_size=3).map(
            lambda members: {
                "type": "object",
                "properties": members,
                "required": list(members),
                "additionalProperties": False,
            }
        )

    def wrapped(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        return st.one_of(
            objects(inner),
            inner.map(lambda item: {"type": "array", "items": item}),
            st.lists(inner, min_size=1, max_size=2).map(lambda items: {"anyOf": items}),
        )

    return objects(st.recursive(leaves, wrapped, max_leaves=depth * 3))  # type: ignore[arg-type]


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Return every object schema inside of a schema."""
    found = [value] if isinstance(value, dict) and value.get("type") == "object" else []
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return found + [item for child in children for item in objects_in(child)]


@given(strict_schemas(), st.data())
def test_a_strict_schema_stops_being_one_by_any_single_omission(
    schema: dict[str, Any], data: st.DataObject
) -> None:
    """SO-03."""
    assert strict_violation(schema) is None
    broken = json.loads(json.dumps(schema))
    target = data.draw(st.sampled_from(objects_in(broken)))
    if target["required"] and data.draw(st.booleans()):
        missing = target["required"].pop(data.draw(st.integers(0, len(target["required"]) - 1)))
        assert f"'{missing}'" in (strict_violation(broken) or "")
    else:
        target["additionalProperties"] = True
        assert "additionalProperties" in (strict_violation(broken) or "")


@pytest.mark.parametrize("schema", [{}, {"type": "array"}, {"anyOf": [{"type": "object"}]}, True])
def test_the_root_of_a_strict_schema_is_an_object(schema: Any) -> None:
    assert strict_violation(schema) is not None
