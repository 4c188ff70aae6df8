"""Read structural tags: text is free until a trigger, then a tag with JSON follows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from plumbline.answer.turn import Tag, TagsFormat
from plumbline.base.exact_number import exact_number
from plumbline.contract.wire.errors import invalid_request

__all__ = ["read_structural_tag"]

_MAX_TAGS = 128


def read_structural_tag(value: Any, param: str) -> TagsFormat:
    """Read a structural tag, given as an object or as its JSON text.

    The older format, of SGLang and vLLM, has `structures` with `begin`, `schema` and `end`, and `triggers`. The newer
    format, of XGrammar, has a `format`; only `triggered_tags` around JSON schemas is supported.

    Raises:
        ApiError: 400 naming the field, if the tag is malformed or of an unsupported kind.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_float=exact_number)
        except (ValueError, RecursionError):
            raise _refused(param, "is a string that is not JSON") from None
    if not isinstance(value, Mapping):
        raise _refused(param, "must be an object")
    if "format" in value:
        structures, triggers = _of_format(value["format"], f"{param}.format")
        where = f"{param}.format.tags"
    else:
        structures, triggers = value.get("structures"), value.get("triggers")
        where = f"{param}.structures"
    if not _are_texts(triggers):
        raise _refused(param, "must have 'triggers', a list of strings that are not empty")
    if not isinstance(structures, list) or not 0 < len(structures) <= _MAX_TAGS:
        raise _refused(where, f"must be a list of 1 to {_MAX_TAGS} tags")
    return TagsFormat(tuple(_tag(tag, triggers, f"{where}[{i}]") for i, tag in enumerate(structures)))


def _of_format(described: Any, param: str) -> tuple[Any, Any]:
    """Return the tags and triggers of the newer format, the tags in the older one."""
    if not isinstance(described, Mapping) or described.get("type") != "triggered_tags":
        raise _refused(param, "must be of type 'triggered_tags'; others are not supported by this server")
    for name in ("at_least_one", "stop_after_first"):
        if described.get(name):
            raise _refused(f"{param}.{name}", "is not supported by this server")
    tags = described.get("tags")
    if not isinstance(tags, list):
        return tags, described.get("triggers")
    found = []
    for index, tag in enumerate(tags):
        content = tag.get("content") if isinstance(tag, Mapping) else None
        if not isinstance(content, Mapping) or content.get("type") != "json_schema":
            raise _refused(f"{param}.tags[{index}].content", "must be of type 'json_schema'")
        found.append({**tag, "schema": content.get("json_schema")})
    return found, described.get("triggers")


def _tag(tag: Any, triggers: Sequence[str], param: str) -> Tag:
    if not isinstance(tag, Mapping):
        raise _refused(param, "must be an object")
    begin, end, schema = tag.get("begin"), tag.get("end", ""), tag.get("schema")
    if not isinstance(begin, str) or not isinstance(end, str):
        raise _refused(param, "must have 'begin' and 'end', which are strings")
    if not isinstance(schema, Mapping | bool):
        raise _refused(f"{param}.schema", "must be a JSON Schema")
    trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
    if trigger is None:
        raise _refused(f"{param}.begin", "must start with one of the triggers")
    return Tag(trigger=trigger, begin=begin, schema=schema, end=end)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) and v for v in value)


def _refused(param: str, why: str) -> Exception:
    return invalid_request(f"Invalid '{param}': it {why}.", param, "invalid_value")
