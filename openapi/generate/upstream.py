"""Extract the facts of the official document, and list where the contract differs from them.

    python -m generate.upstream OFFICIAL.yaml     rewrite upstream.json from the official document
    python -m generate.upstream                   print what differences.yaml does not explain

`upstream.json` holds names, types and constraints, and no prose. The two documents are walked side by side
from their operations, so that an object that one names and the other writes in place is still the same
object. A difference is a line such as `Response.created_at: type +integer -number`, named after our schema.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .bundle import OPENAPI, SCHEMA_REF, ContractError, Json, document, load, reachable

UPSTREAM = OPENAPI / "upstream.json"
DIFFERENCES = OPENAPI / "differences.yaml"

RENAMED = {"Getinputtokencounts": "countResponseInputTokens", "Compactconversation": "compactResponse"}
PROSE = {"description", "title", "example", "examples", "externalDocs", "summary", "tags", "security"}
BOUNDS = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
LABELS = ("type", "role", "object")


# The digest


def digest(official: Json, sha256: str) -> Json:
    """Return the facts of the official document that our operations touch."""
    ours = {op for item in document()["paths"].values() for op in _operation_ids(item)}
    found = {}
    for path, item in official["paths"].items():
        for method, op in item.items():
            name = (
                RENAMED.get(op.get("operationId", ""), op.get("operationId")) if isinstance(op, dict) else ""
            )
            if name in ours and "?" not in path:
                found[name] = {"path": path, "method": method, **_facts(op)}
    schemas = official["components"]["schemas"]
    roots = {SCHEMA_REF + name for name in reachable(schemas, _refs(found))}
    names = sorted(ref.removeprefix(SCHEMA_REF) for ref in roots)
    return {
        "openapi": official["openapi"],
        "version": official["info"]["version"],
        "sha256": sha256,
        "renamed": RENAMED,
        "operations": found,
        "schemas": {name: _facts(schemas[name]) for name in names},
    }


def _operation_ids(item: Json) -> Iterator[str]:
    for op in item.values():
        if isinstance(op, dict) and "operationId" in op:
            yield op["operationId"]


def _refs(node: Any) -> set[str]:
    return {ref.removeprefix(SCHEMA_REF) for ref in _strings(node) if ref.startswith(SCHEMA_REF)}


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from _strings(child)


def _facts(node: Any, named: bool = False) -> Any:
    """Copy a node without prose; in `properties` every key is a name and stays."""
    if isinstance(node, list):
        return [_facts(value) for value in node]
    if not isinstance(node, dict):
        return node
    kept = {k: v for k, v in node.items() if named or not (k in PROSE or k.startswith("x-"))}
    return {key: _facts(value, key == "properties") for key, value in kept.items()}


# Shapes: schemas in a normal form


@dataclass
class ValueShape:
    """The values that a schema allows, independent of how unions, references and `nullable` express them."""

    kinds: set[str] = field(default_factory=set)
    values: set[Any] | None = field(default_factory=set)
    bounds: Json = field(default_factory=dict)
    objects: list[tuple[str, Json]] = field(default_factory=list)
    items: list[Json] = field(default_factory=list)
    maps: list[Json] = field(default_factory=list)


def shape(schemas: Json, node: Json) -> ValueShape:
    found = ValueShape()
    leaves = list(_leaves(schemas, node, ""))
    for name, leaf in leaves:
        kinds = leaf.get("type", "object" if "properties" in leaf else "any")
        found.kinds |= set(kinds if isinstance(kinds, list) else [kinds])
        if leaf.get("type") == "object" or "properties" in leaf:
            if "properties" in leaf:
                found.objects.append((name, leaf))
            else:
                found.maps.append(leaf)
        elif leaf.get("type") == "array":
            found.items.append(leaf["items"])
    found.values = _values([leaf for _, leaf in leaves])
    found.bounds = _bounds([leaf for _, leaf in leaves])
    return found


def _values(leaves: list[Json]) -> set[Any] | None:
    """Return the values that are listed; None if a leaf allows others."""
    closed = [set(leaf.get("enum", [leaf.get("const")])) for leaf in leaves if _is_closed(leaf)]
    is_open = any(not _is_closed(leaf) and leaf.get("type") in ("string", "boolean") for leaf in leaves)
    return None if is_open or not closed else set.union(*closed)


def _bounds(leaves: list[Json]) -> Json:
    """Return the bounds that all leaves of their kind have."""
    found: Json = {}
    for key in BOUNDS:
        having = [leaf for leaf in leaves if key in leaf]
        bounded = [leaf for leaf in leaves if _same_kind(leaf, having)]
        if having and len(having) == len(bounded):
            found[key] = having[0][key]
    return found


def _is_closed(leaf: Json) -> bool:
    return "enum" in leaf or "const" in leaf


def _same_kind(leaf: Json, others: list[Json]) -> bool:
    return leaf.get("type") != "null" and any(leaf.get("type") == other.get("type") for other in others)


def _leaves(schemas: Json, node: Json, name: str) -> Iterator[tuple[str, Json]]:
    """Yield the members of a union, references followed, compositions merged, null as a member of its own."""
    if node.get("nullable"):
        yield "", {"type": "null"}
    if "$ref" in node:
        target = node["$ref"].removeprefix(SCHEMA_REF)
        yield from _leaves(schemas, schemas[target], target)
    elif "allOf" in node:
        merged: Json = {"type": "object", "properties": {}, "required": []}
        for part in node["allOf"]:
            for _, leaf in _leaves(schemas, part, ""):
                merged["properties"].update(leaf.get("properties", {}))
                merged["required"] += leaf.get("required", [])
        yield name, merged
    elif "anyOf" in node or "oneOf" in node:
        for member in [*node.get("anyOf", ()), *node.get("oneOf", ())]:
            yield from _leaves(schemas, member, "")
    else:
        yield name, node


# The walk


class Comparison:
    """Walk both documents and collect the differences."""

    def __init__(self, official: Json, ours: Json) -> None:
        self.official = official
        self.ours = ours
        self.found: set[str] = set()
        self._seen: set[tuple[str, str]] = set()

    def run(self) -> list[str]:
        theirs = self.official["operations"]
        for path, item in self.ours["paths"].items():
            for method, op in item.items():
                if isinstance(op, dict) and op.get("operationId") in theirs:
                    self._operation(op, {"path": path, "method": method}, item, theirs[op["operationId"]])
                elif isinstance(op, dict) and "operationId" in op:
                    self.found.add(f"{op['operationId']}: operation added")
        return sorted(self.found)

    def _operation(self, op: Json, where: Json, item: Json, official: Json) -> None:
        name = op["operationId"]
        if where["method"] != official["method"] or where["path"] != "/v1" + official["path"]:
            raise ContractError(f"{name} is elsewhere in the official document")
        parameters = [self._resolved(p) for p in [*item.get("parameters", ()), *op.get("parameters", ())]]
        mine = {p["name"]: p["schema"] for p in parameters}
        theirs = {p["name"]: p["schema"] for p in official.get("parameters", ())}
        self._names(f"{name}: parameter", set(mine), set(theirs))
        for key in mine.keys() & theirs.keys():
            self.schemas(f"{name}?{key}", mine[key], theirs[key])
        self._names(f"{name}: status", set(op["responses"]), set(official["responses"]))
        self._bodies(f"{name}>", op.get("requestBody"), official.get("requestBody"))
        self._bodies(f"{name}<", op["responses"]["200"], official["responses"]["200"])

    def _resolved(self, node: Json) -> Json:
        if "$ref" not in node:
            return node
        found: Any = self.ours
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return found  # type: ignore[no-any-return]

    def _bodies(self, where: str, mine: Json | None, theirs: Json | None) -> None:
        my_content, their_content = (mine or {}).get("content", {}), (theirs or {}).get("content", {})
        self._names(f"{where}: media type", set(my_content), set(their_content))
        for media in my_content.keys() & their_content.keys():
            my_schema = my_content[media]["schema"]
            if media == "text/event-stream":
                payload = my_schema["properties"]["data"]["oneOf"][1]["contentSchema"]
                my_schema = payload["anyOf"][0] if "anyOf" in payload else payload
            self.schemas(where, my_schema, their_content[media]["schema"])

    def schemas(self, where: str, mine: Json, theirs: Json) -> None:
        a, b = shape(self.ours["components"]["schemas"], mine), shape(self.official["schemas"], theirs)
        if "any" in a.kinds:
            return
        self._names(f"{where}: type", a.kinds, b.kinds)
        if (a.values is None) != (b.values is None):
            self.found.add(f"{where}: {'open' if a.values is None else 'closed'}")
        elif a.values is not None and b.values is not None:
            self._names(f"{where}: value", a.values, b.values)
        for key in BOUNDS:
            if a.bounds.get(key) != b.bounds.get(key):
                self.found.add(f"{where}: {key} {b.bounds.get(key, 'none')} -> {a.bounds.get(key, 'none')}")
        if a.items and b.items:
            self.schemas(f"{where}[]", _union(a.items), _union(b.items))
        values = [m for m in a.maps if isinstance(m.get("additionalProperties"), dict)]
        official_values = [m for m in b.maps if isinstance(m.get("additionalProperties"), dict)]
        if values and official_values:
            self.schemas(
                f"{where}{{}}",
                _union([m["additionalProperties"] for m in values]),
                _union([m["additionalProperties"] for m in official_values]),
            )
        self._objects(where, a.objects, b.objects)

    def _objects(self, where: str, mine: list[tuple[str, Json]], theirs: list[tuple[str, Json]]) -> None:
        if len(mine) == 1 and len(theirs) == 1:
            self._fields(where, mine[0], theirs[0])
            return
        my_kinds, their_kinds = (
            self._by_label(self.ours["components"]["schemas"], mine),
            self._by_label(self.official["schemas"], theirs),
        )
        if theirs or mine:
            self._names(f"{where}: kind", set(my_kinds), set(their_kinds))
        for label in sorted(my_kinds.keys() & their_kinds.keys()):
            if my_kinds[label][1].get("x-hosted"):
                self.found.add(f"{where}<{label}>: hosted, open")
            else:
                self._fields(f"{where}<{label}>", my_kinds[label], their_kinds[label])

    def _by_label(self, schemas: Json, objects: list[tuple[str, Json]]) -> dict[str, tuple[str, Json]]:
        kinds: dict[str, tuple[str, Json]] = {}
        for name, schema in objects:
            for label in _labels(schemas, schema):
                kinds[label] = (name, _merged(kinds[label][1], schema) if label in kinds else schema)
        return kinds

    def _fields(self, where: str, mine: tuple[str, Json], theirs: tuple[str, Json]) -> None:
        (my_name, a), (their_name, b) = mine, theirs
        where = my_name or where
        if (where, their_name or where) in self._seen:
            return
        self._seen.add((where, their_name or where))
        self._names(f"{where}: field", set(a["properties"]), set(b["properties"]))
        mine_required, theirs_required = set(a.get("required", ())), set(b.get("required", ()))
        common = a["properties"].keys() & b["properties"].keys()
        self._names(f"{where}: required", mine_required & common, theirs_required & common)
        if (a.get("additionalProperties") is False) != (b.get("additionalProperties") is False):
            self.found.add(f"{where}: unknown fields")
        for key in sorted(common):
            self.schemas(f"{where}.{key}", a["properties"][key], b["properties"][key])

    def _names(self, what: str, mine: set[Any], theirs: set[Any]) -> None:
        self.found |= {f"{what} +{name}" for name in mine - theirs}
        self.found |= {f"{what} -{name}" for name in theirs - mine}


def _union(nodes: list[Json]) -> Json:
    return nodes[0] if len(nodes) == 1 else {"anyOf": nodes}


def _labels(schemas: Json, schema: Json) -> list[str]:
    for key in LABELS:
        values = shape(schemas, schema["properties"][key]).values if key in schema["properties"] else None
        if values:
            return sorted(map(str, values))
    return ["?"]


def _merged(a: Json, b: Json) -> Json:
    """Return an object that allows what either of two of the same label allows."""
    both = {**a["properties"], **b["properties"]}
    properties = {
        key: _union([s["properties"][key] for s in (a, b) if key in s["properties"]]) for key in both
    }
    required = [key for key in a.get("required", ()) if key in b.get("required", ())]
    return {"type": "object", "properties": properties, "required": required}


# The reviewed list


def unexplained(found: list[str], reviewed: list[Json]) -> tuple[list[str], list[str]]:
    """Return the differences that no entry explains, and the patterns that match no difference."""
    patterns = {p: _pattern(p) for entry in reviewed for p in entry["differences"]}
    missing = [line for line in found if not any(p.fullmatch(line) for p in patterns.values())]
    stale = [text for text, p in patterns.items() if not any(p.fullmatch(line) for line in found)]
    return missing, stale


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")))


def differences() -> list[str]:
    """Return every difference between the contract and the official document."""
    return Comparison(json.loads(UPSTREAM.read_text("utf-8")), document()).run()


def _dumped(facts: Json) -> str:
    """Write one schema per line, so that a new official document gives a readable diff."""
    lines = []
    for key, value in facts.items():
        if key in ("operations", "schemas"):
            entries = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, default=str)}" for k, v in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{entries}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(argv: list[str]) -> int:
    if argv:
        raw = Path(argv[0]).read_bytes()
        facts = digest(load(Path(argv[0])), hashlib.sha256(raw).hexdigest())
        UPSTREAM.write_text(_dumped(facts), "utf-8")
    missing, stale = unexplained(differences(), load(DIFFERENCES) or [] if DIFFERENCES.exists() else [])
    for line in missing:
        print(f"not explained: {line}")
    for text in stale:
        print(f"explains nothing: {text}")
    return 1 if missing or stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
