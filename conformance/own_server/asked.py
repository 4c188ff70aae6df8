"""List which scenarios ask for each part of the contract, by the recording of our server (`--empty`: what none asks).

A part is a member of a request or of an answer, a value of an enumeration, a kind of a union, or a status. What a fault
must change to be seen is what some request asks for: a part without a scenario is where faults hide.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plumbline_conformance.recording.file import read_recording
from plumbline_conformance.suite.contract import document
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["Part", "asked_by", "main", "parts"]

ROOT = Path(__file__).resolve().parents[2]
RECORDING = ROOT / "conformance" / "recordings" / "plumbline.jsonl.gz"
Part = tuple[str, str]
"""The schema of a request or an answer, and a member of it, such as `tools[].function.strict` or `stop = string`."""
Json = dict[str, Any]
REQUESTS = {
    "/chat/completions": "CreateChatCompletionRequest",
    "/completions": "CreateCompletionRequest",
    "/responses": "CreateResponse",
    "/messages": "CreateMessageRequest",
}
ANSWERS = {
    "CreateChatCompletionRequest": ("CreateChatCompletionResponse", "CreateChatCompletionStreamResponse"),
    "CreateCompletionRequest": ("CreateCompletionResponse", "CreateCompletionStreamResponse"),
    "CreateResponse": ("Response", "ResponseStreamEvent"),
    "CreateMessageRequest": ("CreateMessageResponse", "MessageStreamEvent"),
}
"""By the schema of a request, those of a whole answer and of an event."""
DEPTH = 5
"""Members within members that are listed."""
TAGS = ("type", "role", "object")


def parts(schema: str) -> dict[Part, None]:
    """Return the parts of a schema that OpenAI or Anthropic defines, without the extensions of servers."""
    return dict.fromkeys(
        (schema, place) for place in _members({"$ref": f"#/components/schemas/{schema}"}, "", 0)
    )


def _members(node: Json, place: str, depth: int) -> Iterator[str]:
    node = _resolved(node)
    if "x-extension" in node or depth > DEPTH:
        return
    for value in (*node.get("enum", ()), *([node["const"]] if "const" in node else [])):
        yield f"{place} = {value}"
    for key in ("anyOf", "oneOf", "allOf"):
        for one in node.get(key, ()):
            yield from _members(one, place, depth)
    tag = _tag(node)
    within = f"{place}<{tag}>" if tag else place
    for name, member in node.get("properties", {}).items():
        if "x-extension" in member:
            continue
        path = f"{within}.{name}".lstrip(".")
        yield path
        if name not in TAGS or not tag:
            yield from _members(member, path, depth + 1)
    if isinstance(node.get("items"), dict):
        yield from _members(node["items"], f"{place}[]", depth + 1)


def _resolved(node: Json) -> Json:
    while "$ref" in node:
        node = document()["components"]["schemas"][node["$ref"].rpartition("/")[2]]
    return node


def _tag(node: Json) -> str:
    """Return the constant by which an object says what it is."""
    members = node.get("properties", {})
    for name in TAGS:
        found = _resolved(members.get(name, {}))
        if "const" in found or len(found.get("enum", ())) == 1:
            return str(found.get("const", *found.get("enum", ())))
    return ""


def seen_in(schema: str, value: Any) -> set[Part]:
    """Return the parts of a schema that a value has."""
    return {(schema, place) for place in _seen({"$ref": f"#/components/schemas/{schema}"}, value, "", 0)}


def _seen(node: Json, value: Any, place: str, depth: int) -> Iterator[str]:
    node = _resolved(node)
    if depth > DEPTH:
        return
    if not isinstance(value, dict | list) and (
        value in node.get("enum", ()) or value == node.get("const", ...)
    ):
        yield f"{place} = {value}"
    for key in ("anyOf", "oneOf", "allOf"):
        for one in node.get(key, ()):
            yield from _seen(one, value, place, depth)
    tag = _tag(node)
    if isinstance(value, dict) and tag in ("", *(str(value.get(name)) for name in TAGS)):
        within = f"{place}<{tag}>" if tag else place
        for name, member in node.get("properties", {}).items():
            if value.get(name) is None:
                continue
            path = f"{within}.{name}".lstrip(".")
            yield path
            yield from _seen(member, value[name], path, depth + 1)
    if isinstance(value, list) and isinstance(node.get("items"), dict):
        for one in value:
            yield from _seen(node["items"], one, f"{place}[]", depth + 1)


def asked_by(exchange: Exchange) -> set[Part]:
    """Return the parts of the contract that an exchange has, in its request and in its answer."""
    schema = next((REQUESTS[path] for path in REQUESTS if exchange.path == f"/v1{path}"), None)
    if schema is None or exchange.method not in ("POST", "WEBSOCKET"):
        return set()
    found = seen_in(schema, exchange.request_json) if isinstance(exchange.request_json, dict) else set()
    if exchange.status in (200, 101):
        whole, event = ANSWERS[schema]
        if exchange.json is not None and exchange.method == "POST":
            found |= seen_in(whole, exchange.json)
        else:
            found |= {part for one in exchange.chunks for part in seen_in(event, one)}
    return found


def table(recording: Path) -> dict[Part, list[str]]:
    """Return the scenarios that ask for each part of the contract, in the order of the suite."""
    schemas = [*REQUESTS.values(), *(one for pair in ANSWERS.values() for one in pair)]
    found: dict[Part, list[str]] = {part: [] for schema in schemas for part in parts(schema)}
    for transcript in read_recording(recording).transcripts:
        for exchange in transcript.exchanges:
            for part in asked_by(exchange):
                if part in found and transcript.scenario not in found[part]:
                    found[part].append(transcript.scenario)
    return found


def main() -> int:
    """Print the table, or the parts that no scenario asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", nargs="?", type=Path, default=RECORDING)
    parser.add_argument("--empty", action="store_true", help="only the parts that no scenario asks for")
    options = parser.parse_args()
    found = table(options.recording)
    for (schema, place), scenarios in found.items():
        if not (options.empty and scenarios):
            print(f"{schema}\t{place}\t{', '.join(scenarios[:3])}")
    print(f"{sum(map(bool, found.values()))} of {len(found)} parts are asked for", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
