"""List which scenarios ask for each part of the contract, by the recording of our server, or why none does.

A part is a member of a request or of an answer, a value of an enumeration, a kind of a union, or a status. What a fault
must change to be seen is what some request asks for: a part without a scenario is where faults hide.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from plumbline_conformance.recording.file import read_recording
from plumbline_conformance.suite.schema_samples import TAGS, kind_of, resolved
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["Part", "UnaskedReason", "asked_by", "main", "matches", "parts", "reasons", "table"]

ROOT = Path(__file__).resolve().parents[2]
REASONS = Path(__file__).with_name("unasked.toml")
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
SHARED = ("InputItem", "Response", "OutputItem", "ResponseTool", "ToolChoiceParam")
"""Schemas of answers that stand in several places, which have rows of their own: every event of a response has them."""


def parts(schema: str) -> dict[Part, None]:
    """Return the parts of a schema that OpenAI or Anthropic defines, without the extensions of servers."""
    return dict.fromkeys(_members(_reference(schema), schema, "", 0))


def _reference(schema: str) -> Json:
    return {"$ref": f"#/components/schemas/{schema}"}


def _shared(node: Json, place: str) -> str:
    """Return the name of a schema with rows of its own that stands at a place of another one; empty for others."""
    name = str(node.get("$ref", "")).rpartition("/")[2]
    return name if place and name in SHARED else ""


def _members(node: Json, schema: str, place: str, depth: int) -> Iterator[Part]:
    if shared := _shared(node, place):
        yield from _members(_reference(shared), shared, "", 0)
        return
    node = resolved(node)
    if "x-extension" in node or depth > DEPTH:
        return
    for value in (*node.get("enum", ()), *([node["const"]] if "const" in node else [])):
        yield schema, f"{place} = {value}"
    for key in ("anyOf", "oneOf", "allOf"):
        for one in node.get(key, ()):
            yield from _members(one, schema, place, depth)
    tag = kind_of(node)
    within = f"{place}<{tag}>" if tag else place
    for name, member in node.get("properties", {}).items():
        if "x-extension" in member:
            continue
        path = f"{within}.{name}".lstrip(".")
        yield schema, path
        if name not in TAGS or not tag:
            yield from _members(member, schema, path, depth + 1)
    if isinstance(node.get("items"), dict):
        yield from _members(node["items"], schema, f"{place}[]", depth + 1)


def seen_in(schema: str, value: Any) -> set[Part]:
    """Return the parts of a schema that a value has."""
    return set(_seen(_reference(schema), value, schema, "", 0))


def _seen(node: Json, value: Any, schema: str, place: str, depth: int) -> Iterator[Part]:
    if shared := _shared(node, place):
        yield from _seen(_reference(shared), value, shared, "", 0)
        return
    node = resolved(node)
    if depth > DEPTH:
        return
    if not isinstance(value, dict | list) and (
        value in node.get("enum", ()) or value == node.get("const", ...)
    ):
        yield schema, f"{place} = {value}"
    for key in ("anyOf", "oneOf", "allOf"):
        for one in node.get(key, ()):
            yield from _seen(one, value, schema, place, depth)
    tag = kind_of(node)
    if isinstance(value, dict) and tag in ("", *(str(value.get(name)) for name in TAGS)):
        within = f"{place}<{tag}>" if tag else place
        for name, member in node.get("properties", {}).items():
            if value.get(name) is None:
                continue
            path = f"{within}.{name}".lstrip(".")
            yield schema, path
            yield from _seen(member, value[name], schema, path, depth + 1)
    if isinstance(value, list) and isinstance(node.get("items"), dict):
        for one in value:
            yield from _seen(node["items"], one, schema, f"{place}[]", depth + 1)


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


class UnaskedReason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why no scenario asks for some parts."""

    why: str
    parts: list[str]
    """Patterns `SCHEMA: PLACE`, in which `*` is any text."""
    checked_by: str = ""
    """The check that observes what a server does instead."""

    def covers(self, part: Part) -> bool:
        """Return whether the reason is about a part."""
        return any(matches(pattern, part) for pattern in self.parts)


def matches(pattern: str, part: Part) -> bool:
    """Return whether a pattern of a reason is about a part.

    >>> matches("*: *[].role = *", ("Schema", "items[].role = user"))
    True
    """
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), ": ".join(part)) is not None


@cache
def reasons() -> tuple[UnaskedReason, ...]:
    """Return the reasons of `unasked.toml`."""
    rows = msgspec.toml.decode(REASONS.read_bytes(), type=dict[str, list[UnaskedReason]])
    return tuple(rows["reason"])


def main() -> int:
    """Print the table, or the parts that no scenario asks for and no reason covers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", nargs="?", type=Path, default=RECORDING)
    parser.add_argument("--empty", action="store_true", help="only the parts without a scenario and a reason")
    options = parser.parse_args()
    found = table(options.recording)
    why = {
        part: next((one.why for one in reasons() if one.covers(part)), "")
        for part in found
        if not found[part]
    }
    for part, scenarios in found.items():
        if not (options.empty and (scenarios or why[part])):
            print("\t".join([*part, ", ".join(scenarios[:3]) or why[part]]))
    asked, explained = sum(map(bool, found.values())), sum(map(bool, why.values()))
    print(f"{asked} of {len(found)} parts are asked for, {explained} have a reason", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
