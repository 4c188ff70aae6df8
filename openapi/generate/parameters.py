"""Write the page of parameters: every field of every request, with its limits, its effect and its tests.

Types, limits and descriptions come from the contract, exceptions from `effects.yaml`. The tests of a field are the
files of `tests/server` that send it: those with its name as a string or as a keyword argument.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

from generate import bundle
from generate.bundle import SCHEMA_REF, Json
from generate.operations import Operation, operations

__all__ = ["EFFECTS", "effect_of", "tests_of", "write_page"]

EFFECTS = bundle.OPENAPI / "effects.yaml"
_TESTS = bundle.ROOT / "tests" / "server"

_INTRODUCTION = """\
# Parameters

Every field of every request, what it does and which tests show it. A field that is not in these tables is ignored, with
its name in the header `x-plumbline-ignored` and in the log; with `--strict` it is a 400.

* **Effect**: a *hint* is accepted and changes no answer; a *refused* field is a 400 that names it.
* **Not OpenAI's**: the servers that share the field. Fields without a mark are OpenAI's.
* **Engines**: which engines honour the field, where not all do; the others answer 400.
* **Tests**: files of `tests/server` that send it.
"""


def write_page(whole: Json, found: list[Operation]) -> str:
    """Return the page."""
    schemas: Json = whole["components"]["schemas"]
    effects: Json = bundle.load(EFFECTS)
    tested = tests_of()
    parts = [_INTRODUCTION]
    inner: list[str] = []
    for op in found:
        if op.request:
            title = f"## `{op.method.upper()} {op.path}`"
            parts.append(f"{title}\n\n{_table(op.request, schemas[op.request], effects, tested)}")
            inner += [
                name for name in bundle.reachable(schemas, {op.request}) if name not in (*inner, op.request)
            ]
    parts.append("## Objects in requests")
    parts += [_object(name, schemas[name]) for name in sorted(inner)]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _object(name: str, schema: Json) -> str:
    """Return the section of one schema: its fields, or what it is one of."""
    rows = list(schema.get("properties", {}).items())
    lines = ["| field | type and limits | effect |", "|---|---|---|"]
    lines += [
        f"| `{field}` | {_kind(inner)} | {_cell(inner.get('description', ''))} |" for field, inner in rows
    ]
    body = "\n".join(lines) if rows else f"{_kind(schema)}"
    return f"### {name}\n\n{_cell(schema.get('description', ''))}\n\n{body}"


def tests_of() -> dict[str, list[str]]:
    """Return the test files by the names that they send."""
    found: dict[str, list[str]] = {}
    for path in sorted(_TESTS.rglob("test_*.py"), key=lambda path: path.name):
        for name in sorted(_names(path)):
            found.setdefault(name, []).append(path.stem)
    return found


def _names(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
        elif isinstance(node, ast.keyword) and node.arg:
            names.add(node.arg)
    return names


def _table(root: str, schema: Json, effects: Json, tested: dict[str, list[str]]) -> str:
    lines = [
        "| field | type and limits | effect | not OpenAI's | engines | tests |",
        "|---|---|---|---|---|---|",
    ]
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        cells = [
            f"`{name}`" + (" (required)" if name in required else ""),
            _kind(field),
            _effect(root, name, field, effects),
            ", ".join(field.get("x-extension", [])),
            ", ".join(effect_of(effects["engines"], root, name) or []),
            ", ".join(tested.get(name, [])[:4]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def effect_of(kind: Json, root: str, name: str) -> Any:
    """Return the entry of a field, by its name in one schema (`CreateResponse.prompt`) or in all."""
    return kind.get(f"{root}.{name}", kind.get(name))


def _effect(root: str, name: str, field: Json, effects: Json) -> str:
    text = _cell(field.get("description", ""))
    for kind, word in (("hints", "A hint"), ("refused", "Refused"), ("limited", "Limited")):
        why = effect_of(effects[kind], root, name)
        if why is not None:
            text += f" **{word}**: {why}"
    return text


_LIMITS = {
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "to {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} members",
    "maxProperties": "at most {} members",
}


def _kind(schema: Json) -> str:
    """Return the type of a value and its limits in a few words."""
    if "$ref" in schema:
        return f"[{(name := schema['$ref'].removeprefix(SCHEMA_REF))}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            kinds = [_kind(member) for member in schema[key] if member != {"type": "null"}]
            return " or ".join(dict.fromkeys(kinds)) + _limits(schema)
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    kind: Any = schema.get("type", "any value")
    if isinstance(kind, list):
        kind = " or ".join(k for k in kind if k != "null")
    if kind == "array":
        kind = f"list of {_kind(schema.get('items', {}))}"
    extra = schema.get("additionalProperties")
    if kind == "object" and isinstance(extra, dict) and extra:
        kind = f"object of {_kind(extra)}"
    return f"{kind}{_limits(schema)}"


def _limits(schema: Json) -> str:
    words = [text.format(schema[key]) for key, text in _LIMITS.items() if key in schema]
    return f", {', '.join(words)}" if words else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":  # `nox -s docs`: python -m generate.parameters FILE
    document = bundle.document()
    Path(sys.argv[1]).write_text(write_page(document, operations(document)), "utf-8")
