"""Validators of the contract's schemas, made once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema_rs

from plumbline_conformance.case import Problem

__all__ = ["contract", "rules", "violations"]


@cache
def contract() -> dict[str, Any]:
    """The OpenAPI document."""
    found: dict[str, Any] = json.loads(_read("openapi.json"))
    return found


@cache
def rules() -> dict[str, dict[str, Any]]:
    """The semantic rules by id."""
    return {rule["id"]: rule for rule in json.loads(_read("rules.json"))}


def violations(name: str, value: Any, where: str = "") -> Iterator[Problem]:
    """The ways in which a value breaks the schema of this name."""
    for error in _validator(name).iter_errors(value):
        path = ".".join(str(part) for part in error.instance_path)
        yield Problem(expected=f"a valid {name}", actual=error.message[:300], pointer=f"{where}{path}")


@cache
def _validator(name: str) -> Any:
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": contract()["components"]}
    )


def _read(name: str) -> bytes:
    return files("plumbline_conformance._generated").joinpath(name).read_bytes()
