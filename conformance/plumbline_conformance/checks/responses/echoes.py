"""Compare the parameters that a response echoes with the parameters of its request (R-11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from plumbline_conformance.suite.field_rules import members_of
from plumbline_conformance.suite.scenario import Problem
from plumbline_conformance.suite.wording import as_json

__all__ = ["LABELS", "Placed", "defaults", "requested", "unlike"]

LABELS = ("safety_identifier", "prompt_cache_key")
"""Members that only OpenAI's service uses; servers may leave them out of the response."""
FREE = ("service_tier", "reasoning")
"""Members that a server answers with the value in effect, or that other scenarios look at."""
UNSHOWN = ("authorization", "headers", "server_url")
"""Members of an MCP server that a response leaves out or shortens, because they may be credentials (TOOL-21)."""
DEFAULTS = {
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "truncation": "disabled",
    "background": False,
    "metadata": {},
    "tools": [],
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
}
"""Expected value of a parameter that the request leaves out. Temperature and top_p are left out, because
servers fill in the defaults of the model."""
Placed = tuple[str, dict[str, Any]]
"""A response object, and where it is: empty, or the event of a stream."""


def requested(given: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request that the response must echo."""
    names = [name for name in members_of("R-11", "Response") if name not in (*LABELS, *FREE)]
    found = {name: given[name] for name in names if given.get(name) is not None}
    for name in ("reasoning", "text"):
        if found.get(name) == {}:
            del found[name]  # It asks for the defaults, which the response names.
    if isinstance(tools := found.get("tools"), list):
        found["tools"] = [_without_credentials(tool) for tool in tools]
    return found


def _without_credentials(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "mcp":
        return tool
    return {name: value for name, value in tool.items() if name not in UNSHOWN}


def defaults(given: dict[str, Any]) -> dict[str, Any]:
    """Return the response's values for the parameters that the request leaves out."""
    wanted = {key: value for key, value in DEFAULTS.items() if given.get(key) is None}
    if not given.get("tools") and "tool_choice" in wanted:
        wanted["tool_choice"] = Either("auto", "none")  # By TOOL-03, `none` is the default without tools.
    return wanted


def unlike(found: Iterable[Placed], wanted: dict[str, Any], rule: str = "R-11") -> Iterator[Problem]:
    """Yield every member that differs from the request; the schema requires every member."""
    for where, response in found:
        for key, value in wanted.items():
            if key in response and not _same(response[key], value):
                shown = as_json(response[key])[:150]
                expected = f"{as_json(value)[:150]}, as in the request"
                yield Problem(expected=expected, actual=shown, pointer=f"{where}{key}", rule=rule)


class Either(tuple[str, ...]):
    """Alternative expected values."""

    __slots__ = ()

    def __new__(cls, *values: str) -> Either:
        return super().__new__(cls, values)

    def __repr__(self) -> str:
        return " or ".join(map(repr, self))


def _same(found: Any, wanted: Any) -> bool:
    """Compare an echoed value; an object or a tool may have more members than the client sent."""
    if isinstance(wanted, Either):
        return found in wanted
    match wanted:
        case dict() if wanted:
            return isinstance(found, dict) and all(
                key in found and _same(found[key], value) for key, value in wanted.items()
            )
        case list():
            return (
                isinstance(found, list)
                and len(found) == len(wanted)
                and all(_same(*both) for both in zip(found, wanted, strict=True))
            )
    return bool(found == wanted)
