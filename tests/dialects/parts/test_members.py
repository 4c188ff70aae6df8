"""Strings inside JSON between tags are read by the schema of their place, as whole values are.

The laws:

* A string where the schema allows none is the number, the boolean or the null in it; every other string is unchanged,
  and so are all keys and all other values.
* The result does not depend on the dialect, nor on how the output is cut.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.parsing.dialects import DIALECTS, Dialect, cut, fold

from plumbline.answer.dialects.spec.call_format import ArgumentSyntax, WrittenCall
from plumbline.answer.dialects.spec.dialect import Utterance
from plumbline.answer.events import TextDelta

TAGGED = [
    dialect
    for dialect in DIALECTS
    if dialect.tool is not None
    and dialect.tool.sections[0].call_format.argument_syntax
    in (ArgumentSyntax.TAGS, ArgumentSyntax.TYPED_TAGS)
]
SCALARS: dict[str, list[Any]] = {
    "integer": [3, "3", "-7", "x"],
    "boolean": [True, "false"],
    "null": [None, "null"],
    "string": ["3", 'a"\\', "true"],
}
Pair = tuple[dict[str, Any], Any]
"""A schema, and a value as the model writes it."""


def scalar(kind: str) -> st.SearchStrategy[Pair]:
    return st.sampled_from(SCALARS[kind]).map(lambda value: ({"type": kind}, value))


def container(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    members = st.dictionaries(st.sampled_from(["a", "3", 'é"', "true"]), inner, max_size=3)
    objects = members.map(
        lambda pairs: (
            {"type": "object", "properties": {name: schema for name, (schema, _) in pairs.items()}},
            {name: value for name, (_, value) in pairs.items()},
        )
    )
    lists = st.tuples(inner, st.integers(0, 3)).map(
        lambda found: ({"type": "array", "items": found[0][0]}, [found[0][1]] * found[1])
    )
    return objects | lists | objects.map(lambda found: ({}, found[1]))


values = container(st.recursive(st.sampled_from(sorted(SCALARS)).flatmap(scalar), container, max_leaves=6))


def meant(schema: dict[str, Any], value: Any) -> Any:
    """The value that the schema has in the place of the written one."""
    if isinstance(value, dict):
        return {
            name: meant(schema.get("properties", {}).get(name, {}), inner) for name, inner in value.items()
        }
    if isinstance(value, list):
        return [meant(schema.get("items", {}), inner) for inner in value]
    if isinstance(value, str) and schema.get("type", "string") != "string" and value != "x":
        return json.loads(value)
    return value


@pytest.mark.parametrize("dialect", TAGGED, ids=str)
@settings(max_examples=EXPLORED or 25)
@given(pair=values, sizes=st.lists(st.integers(1, 9), min_size=1))
def test_strings_inside_a_value_are_read_by_the_schema_of_their_place(
    dialect: Dialect, pair: Pair, sizes: list[int]
) -> None:
    schema, value = pair
    parameters = {"type": "object", "properties": {"value": schema, "note": {"type": "string"}}}
    call = WrittenCall("set", json.dumps({"value": value, "note": "3"}, ensure_ascii=False))
    output = dialect.write(Utterance((call,), "hm" if dialect.reasoning is not None else None))
    parser = dialect.parser(tools={"set": parameters})
    events = [event for piece in cut(output, sizes) for event in parser.push(TextDelta(piece))]
    [read] = fold([*events, *parser.finish("stop")]).calls
    assert json.loads(read.arguments) == {"value": meant(schema, value), "note": "3"}
