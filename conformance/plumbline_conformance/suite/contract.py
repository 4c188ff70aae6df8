"""The contract that servers are held against, as data: the OpenAPI document and the rules that no schema can say."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["document", "event_schemas", "rules", "suite"]


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    found: dict[str, Any] = json.loads(_read("openapi.json"))
    return found


@cache
def rules() -> dict[str, dict[str, Any]]:
    """The semantic rules by id."""
    return {rule["id"]: rule for rule in json.loads(_read("rules.json"))}


@cache
def event_schemas() -> dict[str, str]:
    """The name of the schema of each type of event of a Responses stream."""
    schemas = document()["components"]["schemas"]
    names = [member["$ref"].rsplit("/", 1)[1] for member in schemas["ResponseStreamEvent"]["anyOf"]]
    return {schemas[name]["properties"]["type"]["const"]: name for name in names}


@cache
def suite() -> dict[str, str]:
    """Which contract and rules these are: the version, and digests that change with every word of them."""
    digests = {name: hashlib.sha256(_read(f"{name}.json")).hexdigest()[:12] for name in ("openapi", "rules")}
    return {"version": str(document()["info"]["version"]), **digests}


def _read(name: str) -> bytes:
    return files("plumbline_conformance._generated").joinpath(name).read_bytes()
