"""Load the contract as data: the OpenAPI document, and the rules that a schema cannot express."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = [
    "document",
    "event_schemas",
    "known_events",
    "page_of",
    "rule_of_difference",
    "rules",
    "suite",
    "widened_schemas",
]


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    found: dict[str, Any] = json.loads(_read("openapi.json"))
    return found


@cache
def widened_schemas() -> dict[str, Any]:
    """Return the schemas of answers of Messages, widened by the types that Anthropic publishes."""
    found: dict[str, Any] = json.loads(_read("messages.json"))
    return found


@cache
def rules() -> dict[str, dict[str, Any]]:
    """Return the rules by id, as `openapi/rules/` has them."""
    return {rule["id"]: rule for rule in json.loads(_read("rules.json"))}


def page_of(rule: str) -> str:
    """Return the address of the page of a rule, relative to the root of the site that `nox -s docs` builds.

    >>> page_of("CHAT-05")
    'rules/CHAT-05/'
    """
    return f"rules/{rule}/"


@cache
def _compared() -> dict[str, str]:
    return {name: rule for rule, found in rules().items() for name in found.get("compared", ())}


def rule_of_difference(command: str, surface: str, facet: str) -> str | None:
    """Return the rule that a difference breaks, or None if no rule covers it.

    Args:
        command: `diff` compares two servers, `exact` an answer with its script.
        surface: the API.
        facet: the differing part, such as `text` or `finish`.
    """
    return _compared().get(f"{command}/{surface}/{facet}")


@cache
def event_schemas() -> dict[str, str]:
    """Return the schema name of each event type of a Responses stream."""
    schemas = document()["components"]["schemas"]
    names = [member["$ref"].rsplit("/", 1)[1] for member in schemas["ResponseStreamEvent"]["anyOf"]]
    return {schemas[name]["properties"]["type"]["const"]: name for name in names}


@cache
def known_events() -> frozenset[str]:
    """Return the event types of a Responses stream that the contract or OpenAI's SDK has."""
    return frozenset(event_schemas()) | frozenset(json.loads(_read("events.json")))


@cache
def suite() -> dict[str, str]:
    """Return the version of the contract, and digests of the document and the rules."""
    parts = ("openapi", "messages", "events", "rules")
    digests = {name: hashlib.sha256(_read(f"{name}.json")).hexdigest()[:12] for name in parts}
    return {"version": str(document()["info"]["version"]), **digests}


def _read(name: str) -> bytes:
    return files("plumbline_conformance._generated").joinpath(name).read_bytes()
