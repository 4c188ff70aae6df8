"""Every example in the contract validates, decodes into its type, and encodes to what it was."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from support.contract import CONTRACT
from support.contract import EXAMPLES as SAMPLES
from support.contract_types import TYPES

from generate.operations import operations
from plumbline.contract._generated import OPERATIONS
from plumbline.contract.wire.decode import decode, encode

EXAMPLES = [(name, index) for name, found in SAMPLES.items() for index in range(len(found))]
EVENTS = {
    union: {
        reference["$ref"].rsplit("/")[-1] for reference in CONTRACT["components"]["schemas"][union]["anyOf"]
    }
    for union in ("ResponseStreamEvent", "MessageStreamEvent")
}
REQUESTS = {op.request for op in OPERATIONS if op.request}


@cache
def validator(name: str) -> Any:
    schema = {"$ref": f"#/components/schemas/{name}", "components": CONTRACT["components"]}
    return jsonschema_rs.Draft202012Validator(schema)


@pytest.mark.parametrize(("name", "index"), EXAMPLES)
def test_every_example_validates_and_round_trips(name: str, index: int) -> None:
    example = SAMPLES[name][index]
    validator(name).validate(example)
    body = json.dumps(example).encode()
    kind = TYPES[name]
    decoded = decode(kind, body) if name in REQUESTS else msgspec.json.decode(body, type=kind)

    again = json.loads(encode(decoded))
    validator(name).validate(again)
    assert list(_lost(example, again)) == []


def _lost(before: Any, after: Any, path: str = "$") -> Any:
    """Yield what encoding changed; it may add constants and the types that a client left out."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key not in after:
                yield f"{path}.{key} is lost"
            else:
                yield from _lost(value, after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for position, (a, b) in enumerate(zip(before, after, strict=True)):
            yield from _lost(a, b, f"{path}[{position}]")
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"


def test_every_root_and_every_event_has_an_example() -> None:
    roots = {n for op in operations(CONTRACT) for n in (op.request, op.response, op.event) if n}

    assert {name: len(events) for name, events in EVENTS.items()} == {
        "ResponseStreamEvent": 37,
        "MessageStreamEvent": 8,
    }
    assert set() == roots.union(*EVENTS.values()) - set(SAMPLES) - EVENTS.keys()


@pytest.mark.parametrize(
    ("union", "name"), [(union, name) for union, names in EVENTS.items() for name in sorted(names)]
)
def test_an_event_is_known_by_its_type_alone(union: str, name: str) -> None:
    for example in SAMPLES[name]:
        event = msgspec.json.decode(json.dumps(example).encode(), type=TYPES[union])
        assert type(event).__name__ == name
