"""Extract what official SDKs publish of answers, and widen by it what the judge takes.

    python -m generate.sdk_types        rewrite sdk_types.json from the SDKs that are installed

Anthropic publishes no OpenAPI document; its SDK's types are what it promises. `sdk_types.json` holds names, types and
constants of them, and no prose. The judge may accuse no server of what they allow, so that it judges by the contract's
schemas of answers, widened by these (`widened`); our server writes a part of them. Of OpenAI's SDK it holds the types
of events of Responses, of which the pinned document has not all.
"""

from __future__ import annotations

import json
from typing import Any

from .bundle import OPENAPI, SCHEMA_REF, Json

TYPES = OPENAPI / "sdk_types.json"
ANSWERS = {
    "CreateMessageResponse": "Message",
    "MessageStreamEvent": "RawMessageStreamEvent",
    "MessageTokensCount": "MessageTokensCount",
    "MessageErrorResponse": "ErrorResponse",
}
"""The contract's schemas of answers, and the SDK's types of them."""
_PREFIX = "Anthropic"
"""Before the names of the types that only the SDK has."""
_PROSE = {"title", "description", "default", "discriminator", "additionalProperties"}


def extracted() -> Json:
    """Return the facts of the types of the SDKs that are installed."""
    import anthropic
    import openai
    from anthropic import types
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    found: Json = {}
    for name in ANSWERS.values():
        schema = TypeAdapter(getattr(types, name)).json_schema(ref_template=SCHEMA_REF + "{model}")
        found |= schema.pop("$defs", {})
        found[name] = schema
    events = TypeAdapter(ResponseStreamEvent).json_schema()["$defs"].values()
    kinds = {
        str(event["properties"]["type"].get("const"))
        for event in events
        if "type" in event.get("properties", {})
    }
    return {
        "openai": {
            "version": openai.__version__,
            "events": sorted(kind for kind in kinds if kind.startswith("response.")),
        },
        "anthropic": {
            "version": anthropic.__version__,
            "schemas": {name: _facts(found[name]) for name in sorted(found)},
        },
    }


def events() -> list[str]:
    """Return the types of events of Responses that OpenAI's SDK has."""
    found: list[str] = json.loads(TYPES.read_text("utf-8"))["openai"]["events"]
    return found


def _facts(node: Any, named: bool = False) -> Any:
    """Copy a schema without prose and defaults; in `properties` every key is a name and stays."""
    if isinstance(node, list):
        return [_facts(value) for value in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _facts(value, key == "properties") for key, value in node.items() if named or key not in _PROSE
    }


def widened(ours: Json) -> Json:
    """Return the schemas that replace the contract's where a server of Messages is judged, and those they refer to.

    Args:
        ours: the contract's schemas by name.
    """
    theirs = json.loads(TYPES.read_text("utf-8"))["anthropic"]["schemas"]
    found = _Widening(ours, theirs)
    for name, other in ANSWERS.items():
        found.node({"$ref": SCHEMA_REF + name}, {"$ref": SCHEMA_REF + other})
    return dict(sorted(found.written.items()))


class _Widening:
    """Walks two schemas side by side and writes one that allows what either of them allows."""

    def __init__(self, ours: Json, theirs: Json) -> None:
        self._ours = ours
        self._theirs = theirs
        self.written: Json = {}

    def node(self, mine: Json, other: Json) -> Json:
        """Return a schema for what either allows; bounds that only ours have stay."""
        if "$ref" in mine:
            name = mine["$ref"].removeprefix(SCHEMA_REF)
            if name not in self.written:
                self.written[name] = self._ours[name]  # Types that refer to themselves end here.
                self.written[name] = self.node(self._ours[name], other)
            return mine
        branches = _branches(mine, self._ours)
        added = []
        for theirs in _branches(other, self._theirs):
            places = [place for place, branch in enumerate(branches) if self._alike(branch, theirs)]
            for place in places:
                branches[place] = self._pair(branches[place], theirs)
            if not places:
                added.append(self._copied(theirs))
        every = [*branches, *added]
        if len(every) == 1:
            alone: dict[str, Any] = every[0]
            return alone
        return {"anyOf": every}

    def _alike(self, mine: Json, other: Json) -> bool:
        """Return whether two branches are about the same values, so that one of both can stand for them."""
        a, b = (_resolved(node, schemas) for node, schemas in ((mine, self._ours), (other, self._theirs)))
        if a.get("type") != b.get("type"):
            return False
        mine_tags, their_tags = _tags(a), _tags(b)
        return not mine_tags or not their_tags or bool(mine_tags & their_tags)

    def _pair(self, mine: Json, other: Json) -> Json:
        if "$ref" in mine:
            return self.node(mine, other)
        other = _resolved(other, self._theirs)
        if mine.get("type") == "array" and "items" in mine and "items" in other:
            return {**mine, "items": self.node(mine["items"], other["items"])}
        if mine.get("type") == "object" and "properties" in mine:
            return self._object(mine, other)
        listed = [value for value in _values(other) if value not in _values(mine)]
        if not listed and bool(_values(mine)) is bool(_values(other)):
            return mine
        kept = {key: value for key, value in mine.items() if key not in ("const", "enum")}
        return {**kept, "enum": [*_values(mine), *listed]} if _values(mine) and listed else kept

    def _object(self, mine: Json, other: Json) -> Json:
        properties = dict(mine["properties"])
        for name, schema in other.get("properties", {}).items():
            properties[name] = (
                self.node(properties[name], schema) if name in properties else self._copied(schema)
            )
        # The SDK gives members that may be null a default, though every answer has them: ours say which must be there.
        return {**mine, "properties": properties}

    def _copied(self, node: Any) -> Any:
        """Return one of their schemas, with the types that it refers to under names of their own."""
        if isinstance(node, list):
            return [self._copied(value) for value in node]
        if not isinstance(node, dict):
            return node
        if "$ref" not in node:
            return {key: self._copied(value) for key, value in node.items()}
        name = node["$ref"].removeprefix(SCHEMA_REF)
        if _PREFIX + name not in self.written:
            self.written[_PREFIX + name] = {}
            self.written[_PREFIX + name] = self._copied(self._theirs[name])
        return {"$ref": SCHEMA_REF + _PREFIX + name}


def _branches(node: Json, schemas: Json) -> list[Json]:
    """Return the members of a union, and of unions in it; a list of types is a union."""
    if "$ref" in node:
        found = _resolved(node, schemas)
        return _branches(found, schemas) if "anyOf" in found or "oneOf" in found else [node]
    for key in ("anyOf", "oneOf"):
        if key in node:
            return [leaf for member in node[key] for leaf in _branches(member, schemas)]
    if isinstance(node.get("type"), list):
        own = {key: value for key, value in node.items() if key != "description"}
        return [{**own, "type": kind} if kind != "null" else {"type": kind} for kind in node["type"]]
    return [node]


def _resolved(node: Json, schemas: Json) -> Json:
    return schemas[node["$ref"].removeprefix(SCHEMA_REF)] if "$ref" in node else node


def _tags(node: Json) -> set[Any]:
    """Return the values of `type` by which an object says what it is."""
    return set(_values(node.get("properties", {}).get("type", {})))


def _values(node: Json) -> list[Any]:
    return [node["const"]] if "const" in node else list(node.get("enum", ()))


if __name__ == "__main__":
    TYPES.write_text(json.dumps(extracted(), indent=1, sort_keys=True) + "\n", "utf-8")
