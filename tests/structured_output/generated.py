"""Schemas like those of real programs, made by a seeded generator, each with valid and invalid documents.

The shapes are the ones that tools and applications send: records with identifiers, enumerations, money, dates,
addresses, lists of lines, trees, tagged unions, maps, nullable fields, shared definitions. Documents come from the
generator itself, so an independent validator can disagree with it; invalid ones are valid ones with one thing broken.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

__all__ = ["Sample", "sample"]

Sample = tuple[Any, list[Any], list[Any]]
"""A schema, valid documents, documents that may be invalid (the oracle says which are)."""

Make = Callable[[], Any]
Part = tuple[Any, Make]
"""A schema, and what makes a document of it."""

_WORDS = [
    "id",
    "name",
    "title",
    "status",
    "price",
    "total",
    "count",
    "email",
    "city",
    "street",
    "lines",
    "items",
    "tags",
    "notes",
    "kind",
    "owner",
    "parent",
    "active",
    "start",
    "end",
    "score",
    "weight",
    "labels",
    "meta",
]
_TEXTS = [
    "",
    "a",
    "Ada Lovelace",
    "O'Hara",
    "tab\tend",
    'said "no"',
    "naïve café",
    "日本語",
    "😀",
    "line\nbreak",
    "a/b\\c",
    "</tool_call>",
    "null",
]


def sample(seed: int) -> Sample:
    """The schema of this seed, with up to 4 valid documents and up to 8 broken ones."""
    draw = random.Random(seed)
    schema, make = _Maker(draw).root()
    valid = [make() for _ in range(4)]
    broken = [_broken(draw, value) for value in valid for _ in range(2)]
    return schema, valid, broken


class _Maker:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.definitions: dict[str, Any] = {}

    def root(self) -> Part:
        schema, make = self.draw.choice([self.record, self.record, self.record, self.listed, self.union])(3)
        if self.definitions:
            schema = {**schema, "$defs": self.definitions}
        if self.draw.random() < 0.3:
            schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", **schema}
        return schema, make

    def part(self, depth: int) -> Part:
        simple = [self.text, self.integer, self.number, self.flag, self.option, self.shaped, self.nullable]
        nested = [self.record, self.listed, self.union, self.map, self.tree, self.shared, self.pair]
        return self.draw.choice(simple if depth <= 0 or self.draw.random() < 0.55 else nested)(depth - 1)

    def text(self, _: int) -> Part:
        low, high = self.draw.choice([(0, None), (0, 40), (1, 12), (0, None)])
        schema: dict[str, Any] = {"type": "string"}
        if low:
            schema["minLength"] = low
        if high is not None:
            schema["maxLength"] = high
        if self.draw.random() < 0.3:
            schema["description"] = "What it is."
        fitting = [text for text in _TEXTS if low <= len(text) <= (high or 99)]
        return schema, lambda: self.draw.choice(fitting)

    def shaped(self, _: int) -> Part:
        draw = self.draw
        return draw.choice(
            [
                (
                    {"type": "string", "pattern": "^[A-Z]{2}-\\d{3,5}$"},
                    lambda: f"AB-{draw.randint(100, 99999)}",
                ),
                ({"type": "string", "pattern": "^\\+?[0-9 ]{6,14}$"}, lambda: "+49 30 1234"),
                ({"type": "string", "pattern": "^#[0-9a-fA-F]{6}$"}, lambda: f"#{draw.randrange(16**6):06x}"),
                (
                    {"type": "string", "format": "date"},
                    lambda: f"20{draw.randint(10, 30)}-0{draw.randint(1, 9)}-28",
                ),
                (
                    {"type": "string", "format": "date-time"},
                    lambda: f"2024-02-29T0{draw.randint(0, 9)}:30:00Z",
                ),
                ({"type": "string", "format": "email"}, lambda: f"user{draw.randint(0, 9)}@example.org"),
                (
                    {"type": "string", "format": "uuid"},
                    lambda: f"{draw.randrange(16**8):08x}-0000-4000-8000-000000000000",
                ),
                ({"type": "string", "format": "ipv4"}, lambda: f"10.0.{draw.randint(0, 255)}.1"),
            ]
        )

    def integer(self, _: int) -> Part:
        low, high = self.draw.choice([(None, None), (0, None), (1, 5), (-20, 20), (0, 65535)])
        schema = {"type": "integer", "minimum": low, "maximum": high}
        return _without_none(schema), lambda: self.draw.randint(
            low if low is not None else -999, high if high is not None else 999
        )

    def number(self, _: int) -> Part:
        if self.draw.random() < 0.3:
            return {
                "type": "number",
                "multipleOf": 0.01,
                "minimum": 0,
            }, lambda: self.draw.randint(0, 9999) / 100
        bounds = self.draw.choice(
            [{}, {"minimum": 0}, {"minimum": 0, "maximum": 1}, {"exclusiveMinimum": 0, "maximum": 1}]
        )
        return {"type": "number", **bounds}, lambda: self.draw.randint(1, 99) / 100

    def flag(self, _: int) -> Part:
        return {"type": "boolean"}, lambda: self.draw.random() < 0.5

    def option(self, _: int) -> Part:
        options: list[Any] = self.draw.choice(
            [["open", "closed"], ["low", "mid", "high", "very high"], [1, 2, 3], ["a", None], ["€", "£", "$"]]
        )
        schema: dict[str, Any] = {"enum": options}
        if all(isinstance(option, str) for option in options) and self.draw.random() < 0.7:
            schema = {"type": "string", **schema}
        return schema, lambda: self.draw.choice(options)

    def nullable(self, depth: int) -> Part:
        schema, make = self.part(depth - 1)
        if isinstance(schema.get("type"), str) and "enum" not in schema and self.draw.random() < 0.4:
            schema = {**schema, "type": [schema["type"], "null"]}
        else:
            schema = {"anyOf": [schema, {"type": "null"}]}
        return schema, lambda: None if self.draw.random() < 0.4 else make()

    def record(self, depth: int) -> Part:
        names = self.draw.sample(_WORDS, self.draw.randint(1, 5))
        parts = {name: self.part(depth) for name in names}
        strict = self.draw.random() < 0.5
        required = names if strict else [name for name in names if self.draw.random() < 0.6]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: part[0] for name, part in parts.items()},
        }
        if required:
            schema["required"] = list(required)
        if strict or self.draw.random() < 0.4:
            schema["additionalProperties"] = False

        def make() -> Any:
            return {name: parts[name][1]() for name in names if name in required or self.draw.random() < 0.6}

        return schema, make

    def listed(self, depth: int) -> Part:
        schema, make = self.part(depth)
        low, high = self.draw.choice([(0, None), (1, None), (0, 3), (2, 4)])
        found = {"type": "array", "items": schema, "minItems": low or None, "maxItems": high}
        return _without_none(found), lambda: [make() for _ in range(self.draw.randint(low, high or 3))]

    def pair(self, depth: int) -> Part:
        first, second = self.part(depth), self.part(depth)
        schema = {"type": "array", "prefixItems": [first[0], second[0]], "items": False, "minItems": 2}
        return schema, lambda: [first[1](), second[1]()]

    def map(self, depth: int) -> Part:
        schema, make = self.part(depth)
        return {"type": "object", "additionalProperties": schema}, lambda: {
            name: make() for name in self.draw.sample(_WORDS, self.draw.randint(0, 3))
        }

    def union(self, depth: int) -> Part:
        word = self.draw.choice(["anyOf", "oneOf"])
        kinds = self.draw.sample(["circle", "square", "text", "image"], self.draw.randint(2, 3))
        branches: list[tuple[str, str, Part]] = [
            (kind, self.draw.choice(_WORDS), self.part(depth - 1)) for kind in kinds
        ]
        schema = {
            word: [
                {
                    "type": "object",
                    "properties": {"type": {"const": kind}, name: part[0]},
                    "required": ["type", name],
                    "additionalProperties": False,
                }
                for kind, name, part in branches
            ]
        }

        def make() -> Any:
            kind, name, part = self.draw.choice(branches)
            return {"type": kind, name: part[1]()}

        return schema, make

    def tree(self, depth: int) -> Part:
        schema, make = self.part(0)
        name = f"node{len(self.definitions)}"
        self.definitions[name] = {
            "type": "object",
            "properties": {
                "value": schema,
                "children": {"type": "array", "items": {"$ref": f"#/$defs/{name}"}},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }

        def grow(level: int) -> Any:
            return {
                "value": make(),
                "children": [grow(level - 1) for _ in range(self.draw.randint(0, level))],
            }

        return {"$ref": f"#/$defs/{name}"}, lambda: grow(2)

    def shared(self, depth: int) -> Part:
        schema, make = self.record(depth - 1)
        name = f"shared{len(self.definitions)}"
        self.definitions[name] = schema
        return {"$ref": f"#/$defs/{name}"}, make


def _without_none(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if value is not None}


def _broken(draw: random.Random, value: Any) -> Any:
    """The document with one thing in it taken away, added, or replaced by something of another kind."""
    found = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def collect(item: Any) -> None:
        keys = list(item) if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        for key in keys:
            places.append((item, key))
            collect(item[key])

    collect(found)
    if not places:
        return draw.choice([{}, [], 1, "x", None, {"surprise": 1}])
    holder, key = draw.choice(places)
    way = draw.randrange(4)
    if way == 0:
        del holder[key]
    elif way == 1 and isinstance(holder, dict):
        holder["surprise"] = draw.choice([1, "x", None])
    elif way == 2 and isinstance(holder, list):
        holder.extend([*copy.deepcopy(holder), None])
    else:
        old = holder[key]
        others = [1, -1.5, "x", "", None, True, [], {}, 10**9, "AB-12", "2023-02-29", "1" * 50]
        holder[key] = draw.choice([other for other in others if type(other) is not type(old) or other != old])
    return found
