"""The page of parameters is true: refused fields are refused, hints do nothing, every field is sent by a test.

Laws:
    1. A field that the page calls refused is a 400 that names it; every other field of `UNSUPPORTED` is one of these.
    2. A hint changes no answer, but for what a Response echoes.
    3. Every field of the generating operations is sent by a test of tests/server.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.bodies import BODIES
from support.contract import CONTRACT
from support.models import scripted, served
from support.servers.asgi import serving

from generate import bundle, parameters
from generate.parameters import EFFECTS, effect_of
from plumbline.contract._generated import OPERATIONS
from plumbline.server.protocols.common.unsupported import UNSUPPORTED

SCHEMAS = CONTRACT["components"]["schemas"]
EFFECT = bundle.load(EFFECTS)
ROOTS = {
    op.path: op.request for op in OPERATIONS if op.request and op.request in SCHEMAS and op.path in BODIES
}
FIELDS = [
    (path, root, name, field)
    for path, root in ROOTS.items()
    for name, field in SCHEMAS[root].get("properties", {}).items()
]


def value_of(schema: Any) -> Any:
    """Some value of a schema."""
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rsplit("/", 1)[1]]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return value_of(next(member for member in schema[key] if member != {"type": "null"}))
    if "examples" in schema:
        return schema["examples"][0]
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    kind = next(k for k in kind if k != "null") if isinstance(kind, list) else kind
    match kind:
        case "object":
            needed = schema.get("required", [])
            return {name: value_of(schema["properties"][name]) for name in needed}
        case "array":
            return [value_of(schema["items"])] * schema.get("minItems", 1)
        case "boolean":
            return True
        case "integer" | "number":
            return schema.get("minimum", 1)
        case _:
            return "x" * schema.get("minLength", 1)


def of_kind(kind: str) -> list[Any]:
    rows = [row for row in FIELDS if effect_of(EFFECT[kind], row[1], row[2]) is not None]
    assert rows
    return [pytest.param(*row, id=f"{row[1]}.{row[2]}") for row in rows]


@pytest.mark.parametrize(("path", "root", "name", "field"), of_kind("refused"))
async def test_a_refused_field_is_a_400_that_names_it(path: str, root: str, name: str, field: Any) -> None:
    value = value_of(field)
    async with serving(served(scripted())) as server:
        answer = await server.post(path, {**BODIES[path], name: value})
        asks_for_nothing = await server.post(path, {**BODIES[path], name: False if value is True else None})

    assert answer.status == 400, answer.body
    assert answer.error["param"] == name, answer.error
    # Routers in front of a server add such fields.
    assert asks_for_nothing.status == 200 or "null" not in str(field.get("type", field)), (
        asks_for_nothing.body
    )


@pytest.mark.parametrize(("path", "root", "name", "field"), of_kind("hints"))
async def test_a_hint_changes_no_answer(path: str, root: str, name: str, field: Any) -> None:
    async with serving(served(scripted())) as server:
        plain = await server.post(path, BODIES[path])
        hinted = await server.post(path, {**BODIES[path], name: value_of(field)})

    assert hinted.status == 200, hinted.body
    assert said(hinted.json, name) == said(plain.json, name)


def said(answer: Any, echoed: str) -> Any:
    """Drop what differs between any two answers, and the echo of a field."""
    left_out = {"id", "created", "created_at", "completed_at", echoed}
    text = json.dumps(answer, sort_keys=True)
    return json.loads(text, object_hook=lambda found: {k: v for k, v in found.items() if k not in left_out})


def test_every_unsupported_field_is_listed() -> None:
    assert set(UNSUPPORTED) <= {name.rpartition(".")[2] for name in EFFECT["refused"]}


def test_every_field_is_sent_by_a_test() -> None:
    here = ("refused", "hints")
    tested = parameters.tests_of()
    assert [
        f"{root}.{name}"
        for _, root, name, _ in FIELDS
        if name not in tested and all(effect_of(EFFECT[kind], root, name) is None for kind in here)
    ] == []
