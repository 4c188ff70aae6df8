"""Write the reference of the API at `/docs` from the contract: one plain page without scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from html import escape
from typing import Any

from plumbline.server.page.controls import contract
from plumbline.server.page.files import PageFile

__all__ = ["reference"]

_DEEPEST = 8
_NOTES = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
    ("default", "default {}"),
)


@cache
def reference() -> PageFile:
    """Return the page."""
    return PageFile.of("".join(_page()).encode(), "text/html")


def _page() -> Iterator[str]:
    document = contract()
    info = document["info"]
    operations = list(_operations(document))
    schemas = document["components"]["schemas"]
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>API reference · Plumbline</title>'
        '<link rel="icon" href="page/icon.svg"><link rel="stylesheet" href="page/theme.css">'
        '<link rel="stylesheet" href="page/docs.css"><script src="page/theme.js"></script></head><body class="docs">'
        '<a class="skip" href="#content">Skip to the content</a><nav aria-label="Operations">'
        '<p class="brand"><a href="./">Plumbline</a></p><ul>'
    )
    for method, path, _ in operations:
        name = f'<b class="{method}">{method}</b> <span>{_breakable(path)}</span>'
        yield f'<li><a href="#{_anchor(method, path)}">{name}</a></li>'
    yield '<li><a href="#schemas">Schemas</a></li></ul></nav><main id="content"><h1>API reference</h1>'
    yield f"<p>Version {escape(info['version'])}. {_prose(info.get('description', ''))}</p>"
    yield '<p>As data: <a href="openapi.json">openapi.json</a>, <a href="openapi.yaml">openapi.yaml</a>.</p>'
    for method, path, operation in operations:
        yield from _operation(method, path, operation)
    yield '<h2 id="schemas">Schemas</h2>'
    for name, schema in sorted(schemas.items()):
        # A browser opens the details around the target of a link.
        yield f'<details class="schema"><summary>{name}</summary><div id="{name}">'
        yield from _schema(schema)
        yield "</div></details>"
    yield "</main></body></html>"


def _breakable(path: str) -> str:
    """Return a path that breaks into lines before its slashes."""
    return escape(path).replace("/", "<wbr>/")


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method in ("get", "post", "put", "delete"):
            if method in methods:
                yield method, path, methods[method]


def _anchor(method: str, path: str) -> str:
    return f"{method}{re.sub(r'[^a-z0-9]+', '-', path.lower())}"


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    anchor = _anchor(method, path)
    yield f'<section id="{anchor}"><h2><b class="{method}">{method}</b> <code>{escape(path)}</code></h2>'
    yield f"<p>{_prose(operation.get('summary', ''))} {_prose(operation.get('description', ''))}</p>"
    if parameters := [_component(found) for found in operation.get("parameters", [])]:
        yield "<h3>Parameters</h3><dl>"
        for found in parameters:
            yield from _member(found["name"], found["schema"] | _kept(found), found.get("required", False))
        yield "</dl>"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body:
        yield "<details><summary>Request body</summary>"
        yield from _schema(_component(body))
        yield "</details>"
    yield '<h3>Answers</h3><ul class="answers">'
    for status, found in sorted(operation["responses"].items()):
        resolved = _component(found)
        kinds = ", ".join(_kinds(resolved))
        yield f"<li><code>{status}</code> {_prose(resolved.get('description', ''))} {kinds}</li>"
    yield "</ul></section>"


def _kept(parameter: dict[str, Any]) -> dict[str, Any]:
    return {key: parameter[key] for key in ("description", "deprecated") if key in parameter}


def _kinds(answer: dict[str, Any]) -> Iterator[str]:
    """Yield the types of an answer, each with a link to its schema if it has a name."""
    for kind, content in answer.get("content", {}).items():
        yield f"<small>{escape(kind)}: {_type(content.get('schema', {}))}</small>"


def _component(found: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference."""
    while "$ref" in found:
        _, _, kind, name = found["$ref"].split("/")
        found = contract()["components"][kind][name]
    return found


def _schema(schema: dict[str, Any]) -> Iterator[str]:
    if description := schema.get("description"):
        yield f"<p>{_prose(description)}</p>"
    members = schema.get("properties", {})
    if not members:
        yield f"<p>{_type(schema)}{_notes(schema)}</p>"
        return
    required = schema.get("required", [])
    yield "<dl>"
    for name in sorted(
        members, key=lambda name: name not in required
    ):  # Required ones first, else in their order.
        yield from _member(name, members[name], name in required)
    yield "</dl>"


def _member(name: str, schema: dict[str, Any], required: bool) -> Iterator[str]:
    marks = [
        mark for mark, shown in (("required", required), ("deprecated", schema.get("deprecated"))) if shown
    ]
    shown = "".join(f' <em class="{mark}">{mark}</em>' for mark in marks)
    yield f"<dt><code>{escape(name)}</code> <small>{_type(schema)}</small>{shown}</dt>"
    also = f" As in {', '.join(schema['x-extension'])}." if "x-extension" in schema else ""
    yield f"<dd>{_prose(schema.get('description', ''))}{_notes(schema)}{also}</dd>"


def _notes(schema: dict[str, Any]) -> str:
    described = schema.get("description", "")
    found = [
        text.format(json.dumps(schema[key]))
        for key, text in _NOTES
        if key in schema and not (key == "default" and "Default" in described)
    ]
    return f" <small>({escape(', '.join(found))})</small>" if found else ""


def _type(schema: dict[str, Any], depth: int = 0) -> str:
    """Describe a type in one line; names link to their schemas."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{name}">{name}</a>'
    if depth > _DEEPEST:
        return "…"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(_type(choice, depth + 1) for choice in schema[key])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}), depth + 1)}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _prose(text: str) -> str:
    """Return a sentence of the contract as HTML; it has code between backticks and no other markup."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(" ".join(text.split())))
