"""Read the contract as one document.

`plumbline.yaml` holds info, paths and the small components; every file in `schemas/` is a map from schema
name to schema. The bundle is an ordinary OpenAPI 3.1 document without references between files. Each request has all of
its fields in place: `allOf` is only how the files declare shared fields once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

OPENAPI = Path(__file__).resolve().parent.parent
ROOT = OPENAPI.parent
SCHEMA_REF = "#/components/schemas/"


class ContractError(Exception):
    """The contract contradicts itself; the message names the place."""


def load(path: Path) -> Any:
    return yaml.load(path.read_text("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def families() -> dict[str, Json]:
    """Return the schemas by file: `{"chat": {"ChatCompletionTool": {...}}, ...}`."""
    return {path.stem: load(path) for path in sorted((OPENAPI / "schemas").glob("*.yaml"))}


def document() -> Json:
    """Return the whole contract as one OpenAPI document."""
    whole: Json = load(OPENAPI / "plumbline.yaml")
    anchors = ("x-errors", "x-message-errors", "x-json-headers", "x-message-headers")
    whole = {key: value for key, value in whole.items() if key not in anchors}
    schemas: Json = {}
    for family, members in families().items():
        for name, schema in members.items():
            if name in schemas:
                raise ContractError(f"{name} is in {family}.yaml and in another file")
            schemas[name] = schema
    for name, found in examples().items():
        if name not in schemas:
            raise ContractError(f"there are examples of {name}, but no file has it")
        schemas[name] = {**schemas[name], "examples": found}
    shared = {part for schema in schemas.values() for part in parts(schema)}
    published = {name: composed(schemas[name], schemas) for name in sorted(schemas.keys() - shared)}
    whole["components"]["schemas"] = published
    for name in references(whole):
        if name in shared:
            raise ContractError(f"{name} is in an allOf, so nothing else may refer to it")
        if name not in published:
            raise ContractError(f"{name} is referred to, but no file has it")
    # A round trip unshares the YAML anchors, so that the dumped YAML repeats rather than aliases.
    return json.loads(json.dumps(whole))  # type: ignore[no-any-return]


def examples() -> dict[str, list[Any]]:
    """Return the examples of `openapi/examples/`, by schema."""
    return {
        name: found
        for path in sorted((OPENAPI / "examples").glob("*.yaml"))
        for name, found in load(path).items()
    }


def rules() -> list[Json]:
    """Return every semantic rule with its clauses, in the order of the files and of the rules in them."""
    parts = clauses()
    found = [
        {"id": name, **rule, **({"clauses": parts.pop(name)} if name in parts else {})}
        for path in sorted((OPENAPI / "rules").glob("*.yaml"))
        for name, rule in load(path).items()
    ]
    if parts:
        raise ContractError(f"there are clauses of {', '.join(parts)}, but no such rules")
    return found


def clauses() -> dict[str, list[Json]]:
    """Return the clauses of `openapi/rules/clauses/` by rule, with ids such as `CHAT-01a`.

    What is said of a whole answer, a stream or a refusal becomes a list of evidence, or stays a reason.
    """
    return {
        name: [_clause(f"{name}{letter}", clause) for letter, clause in parts.items()]
        for path in sorted((OPENAPI / "rules" / "clauses").glob("*.yaml"))
        for name, parts in load(path).items()
    }


def _clause(name: str, clause: Json) -> Json:
    return {
        "id": name,
        **{
            key: [value] if key in PLACES and isinstance(value, str) else value
            for key, value in clause.items()
        },
    }


PLACES = ("whole", "stream", "refusal")
"""The kinds of answers that a clause may be about."""


PART_KEYWORDS = {"description", "type", "properties", "required", "allOf"}


def parts(schema: Json) -> list[str]:
    """Return the names of the schemas in a schema's `allOf`."""
    return [part["$ref"].removeprefix(SCHEMA_REF) for part in schema.get("allOf", ())]


def composed(schema: Json, schemas: Json) -> Json:
    """Return a schema with the fields of its parts after its own; a field that both have has the keywords of both.

    Raises:
        ContractError: a part is missing, or has keywords that would be lost.
    """
    if "allOf" not in schema:
        return schema
    fields, required = dict(schema.get("properties", {})), list(schema.get("required", ()))
    for name in reversed(parts(schema)):
        if name not in schemas:
            raise ContractError(f"{name} is referred to, but no file has it")
        if lost := schemas[name].keys() - PART_KEYWORDS:
            raise ContractError(f"{name} is in an allOf, so it may not have {sorted(lost)}")
        part = composed(schemas[name], schemas)
        required = [*part.get("required", ()), *required]
        for key, shared in part["properties"].items():
            fields[key] = {**shared, **fields.get(key, {})}
    own = {key: value for key, value in schema.items() if key != "allOf"}
    return {**own, **({"required": [*dict.fromkeys(required)]} if required else {}), "properties": fields}


def references(node: Any) -> Iterator[str]:
    """Yield the name of every schema that the node refers to."""
    if isinstance(node, dict):
        ref = node.get("$ref")
        if isinstance(ref, str) and ref.startswith(SCHEMA_REF):
            yield ref.removeprefix(SCHEMA_REF)
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def reachable(schemas: Json, roots: set[str]) -> set[str]:
    """Return the names of the schemas that the roots need, the roots included."""
    seen: set[str] = set()
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(references(schemas[name]))
    return seen


def digest(whole: Json) -> str:
    """Return the digest of the contract."""
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
