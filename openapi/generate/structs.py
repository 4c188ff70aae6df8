"""Write one msgspec Struct per object schema and one alias per other schema.

msgspec restricts unions more than JSON Schema does. This module maps them by these rules:

* several Structs in a union need one tag field: a property that is a closed string in every member is the
tag;
* a member whose tag has several values becomes one subclass per value, all of them under a common base;
* a union may hold one array type: several are merged, and a `__post_init__` refuses mixtures;
* a tagged Struct outside a union would accept a missing tag: in requests it is written `Sole[...]`;
* the first part of an `allOf` becomes the base class; fields of further parts are written in place, because a Struct
has one base at most;
* `$` in a Python pattern also matches before a final newline: it becomes `\\Z`;
* aliases are evaluated on import, Structs later: Structs come first, aliases follow in order of need.

Absent fields of requests are `UNSET`, so that a handler can distinguish absent from null. Answers have defaults for
fields with only one right value: constants, and null where null is required.
"""

from __future__ import annotations

import keyword
import re
from typing import Any

from .bundle import SCHEMA_REF, ContractError, Json, composed, parts, reachable, references

SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
CONSTRAINTS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_length",
    "maxItems": "max_length",
    "minProperties": "min_length",
    "maxProperties": "max_length",
    "pattern": "pattern",
}
HOMES = {
    "Annotated": "typing",
    "Any": "typing",
    "Literal": "typing",
    "TypeAlias": "typing",
    "Meta": "msgspec",
    "Struct": "msgspec",
    "UNSET": "msgspec",
    "UnsetType": "msgspec",
    "field": "msgspec",
    "Sole": "plumbline.contract.wire.shapes",
    "one_kind_of_array": "plumbline.contract.wire.shapes",
}


class Types:
    """Convert the schemas of a contract to Python types."""

    def __init__(self, families: dict[str, Json], request_roots: set[str]) -> None:
        self.schemas: Json = {name: s for members in families.values() for name, s in members.items()}
        in_place = {part for schema in self.schemas.values() for part in parts(schema)[1:]}
        in_place -= {part for schema in self.schemas.values() for part in parts(schema)[:1]}
        self.families = {
            family: {name: schema for name, schema in members.items() if name not in in_place}
            for family, members in families.items()
        }
        self.home = {name: family for family, members in families.items() for name in members}
        self.requested = reachable(self.schemas, request_roots)
        self.tags: dict[str, str] = {}
        for schema in self.schemas.values():
            self._find_tags(schema)

    def modules(self) -> dict[str, str]:
        """Return the text of every module, by family; families must not import each other in a circle."""
        self._check_layers()
        return {family: self._module(family) for family in self.families}

    # Tags

    def _find_tags(self, node: Any) -> None:
        if isinstance(node, list):
            for value in node:
                self._find_tags(value)
        if not isinstance(node, dict):
            return
        for value in node.values():
            self._find_tags(value)
        members = [m for m in self._union_structs(node) if self._is_struct(m)] if "anyOf" in node else []
        if len(members) < 2:
            return
        common = set.intersection(*(set(self._closed_strings(m)) for m in members))
        if not common:
            raise ContractError(f"no property distinguishes {members}")
        fields = [*composed(self.schemas[members[0]], self.schemas)["properties"]]
        tag = min(common, key=fields.index)
        values = [v for m in members for v in self._closed_strings(m)[tag]]
        if len(values) != len(set(values)):
            raise ContractError(f"the values of {tag!r} do not distinguish {members}: {values}")
        for member in members:
            if self.tags.setdefault(member, tag) != tag:
                raise ContractError(
                    f"{member} is distinguished by {tag!r} here and {self.tags[member]!r} there"
                )

    def _union_structs(self, node: Json) -> list[str]:
        """Return the names of the object members of a union, looking through unions of unions."""
        names: list[str] = []
        for member in node["anyOf"]:
            name = _ref(member)
            if name and "anyOf" in self.schemas[name]:
                names += self._union_structs(self.schemas[name])
            elif name:
                names.append(name)
        return list(dict.fromkeys(names))

    def _is_struct(self, name: str) -> bool:
        return "properties" in self.schemas[name] or "allOf" in self.schemas[name]

    def _closed_strings(self, name: str) -> dict[str, list[str]]:
        found = {}
        for key, schema in composed(self.schemas[name], self.schemas)["properties"].items():
            branches = schema.get("anyOf", [schema])
            values = [v for b in branches for v in _literals(b)]
            if values and all(isinstance(v, str) for v in values):
                found[key] = values
        return found

    def _tag_values(self, name: str) -> list[str]:
        return self._closed_strings(name)[self.tags[name]] if name in self.tags else []

    # Modules

    def _check_layers(self) -> None:
        needs = {f: self._needed(f) for f in self.families}
        done: set[str] = set()
        while len(done) < len(needs):
            ready = {f for f in needs if f not in done and needs[f] <= done}
            if not ready:
                raise ContractError(f"these files need each other in a circle: {sorted(set(needs) - done)}")
            done |= ready

    def _needed(self, family: str) -> set[str]:
        return {self.home[name] for name in references(self.families[family])} - {family}

    def _module(self, family: str) -> str:
        members: Json = self.families[family]
        structs = [self._struct(name) for name in members if self._is_struct(name)]
        aliases = [self._alias(name) for name in self._in_order(members)]
        body = "\n\n".join(structs) + "\n\n" + "\n".join(aliases)
        public = sorted(n for name in members for n in self._public(name))
        imports = _imports(body) + self._module_imports(family, body, public)
        return "\n".join(
            [
                f'"""Generated from `openapi/schemas/{family}.yaml`."""\n',
                "from __future__ import annotations\n",
                *imports,
                f"\n__all__ = {public!r}\n\n",
                body,
            ]
        )

    def _public(self, name: str) -> list[str]:
        return [name, *(_subclass(name, value) for value in self._many_tags(name)), *self._any_name(name)]

    def _any_name(self, name: str) -> list[str]:
        return [f"Any{name}"] if self._many_tags(name) else []

    def _many_tags(self, name: str) -> list[str]:
        values = self._tag_values(name)
        return values if len(values) > 1 else []

    def _module_imports(self, family: str, body: str, own: list[str]) -> list[str]:
        used = set(re.findall(r"\b[A-Z]\w+", body)) - set(own)
        lines = []
        for other in sorted(self.families):
            names = sorted(used & {n for name in self.families[other] for n in self._public(name)})
            if names and other != family:
                lines.append(f"from .{other} import {', '.join(names)}")
        return lines

    def _in_order(self, members: Json) -> list[str]:
        """Return the aliases in an order in which each follows those it refers to."""
        order: list[str] = []

        def visit(name: str) -> None:
            if name in order or name not in members or self._is_struct(name):
                return
            for needed in references(members[name]):
                visit(needed)
            order.append(name)

        for name in members:
            visit(name)
        return order

    # Structs

    def _struct(self, name: str) -> str:
        schema = self.schemas[name]
        request = name in self.requested
        base = parts(schema)[:1]
        options = [*(base or ["Struct"]), "kw_only=True"]
        tags = self._tag_values(name)
        if tags:
            options.append(f"tag_field={self.tags[name]!r}")
            if len(tags) == 1:
                options.append(f"tag={tags[0]!r}")
        if schema.get("additionalProperties") is False:
            options.append("forbid_unknown_fields=True")
        lines = [f"class {name}({', '.join(options)}):", f"    {_docstring(schema)}"]
        fields = composed(schema, self.schemas)["properties"]
        inherited = {line for part in base for line in self._fields(part, part in self.requested).values()}
        lines += [f"    {line}" for line in self._fields(name, request).values() if line not in inherited]
        checks = [
            key
            for key, value in fields.items()
            if sum(m.get("type") == "array" for m in value.get("anyOf", ())) > 1
        ]
        if checks:
            lines.append("\n    def __post_init__(self) -> None:")
            lines += [f"        one_kind_of_array({key!r}, self.{key})" for key in checks]
        for value in self._many_tags(name):
            doc = f'"""{name} of type `{value}`."""'
            lines.append(f"\n\nclass {_subclass(name, value)}({name}, tag={value!r}):\n    {doc}")
        if self._many_tags(name):
            union = " | ".join(_subclass(name, value) for value in self._many_tags(name))
            lines.append(f"\n\nAny{name}: TypeAlias = {union}")
        return "\n".join(lines) + "\n"

    def _fields(self, name: str, request: bool) -> dict[str, str]:
        """Return the declarations of a Struct's fields, inherited ones included."""
        schema = composed(self.schemas[name], self.schemas)
        required = set(schema.get("required", ()))
        return {
            key: self._field(key, value, key in required, request)
            for key, value in schema["properties"].items()
            if key != self.tags.get(name)
        }

    def _field(self, key: str, schema: Json, required: bool, request: bool) -> str:
        kind = self.expression(schema, request)
        attribute = re.sub(r"\W", "_", key) + ("_" if keyword.iskeyword(key) else "")
        default = ""
        if not required:
            kind = kind if kind == "Any" else f"{kind} | UnsetType"
            default = "UNSET"
        elif not request:
            if "const" in schema:
                default = repr(schema["const"])
            elif kind.endswith("| None"):
                default = "None"
        if attribute != key:
            option = f", default={default}" if default else ""
            default = f"field(name={key!r}{option})"
        return f"{attribute}: {kind}" + (f" = {default}" if default else "")

    # Type expressions

    def _alias(self, name: str) -> str:
        schema = self.schemas[name]
        text = f"{name}: TypeAlias = {self.expression(schema, name in self.requested)}"
        return f"{text}\n{_docstring(schema)}\n" if "description" in schema else text

    def expression(self, schema: Json, request: bool) -> str:
        """Return the Python type of a schema; `request` is whether a client sends it."""
        name = _ref(schema)
        if name:
            named = f"Any{name}" if self._many_tags(name) else name
            return f"Sole[{named}]" if request and name in self.tags and named == name else named
        if "anyOf" in schema:
            return self._union(schema["anyOf"], request)
        literals = _literals(schema)
        if literals:
            closed = all(isinstance(v, str | int) and not isinstance(v, bool) for v in literals)
            return f"Literal[{', '.join(map(repr, literals))}]" if closed else "bool"
        kinds = schema.get("type")
        if isinstance(kinds, list):
            bare = {k: v for k, v in schema.items() if k != "type"}
            return self._union([{**bare, "type": kind} for kind in kinds], request)
        if kinds == "array":
            return _annotated(f"list[{self.expression(schema['items'], request)}]", schema)
        if kinds == "object":
            return _annotated(self._map(schema, request), schema)
        return _annotated(SCALARS[kinds], schema) if kinds else "Any"

    def _map(self, schema: Json, request: bool) -> str:
        key = _annotated("str", schema.get("propertyNames", {}))
        values = schema.get("additionalProperties", True)
        return f"dict[{key}, {self.expression(values, request) if isinstance(values, dict) else 'Any'}]"

    def _union(self, members: list[Json], request: bool) -> str:
        arrays = [m for m in members if m.get("type") == "array"]
        if len(arrays) > 1:
            items = {"anyOf": [m["items"] for m in arrays]}
            least = min(m.get("minItems", 0) for m in arrays)
            merged = {"type": "array", "items": items, **({"minItems": least} if least else {})}
            if all("maxItems" in m for m in arrays):  # the readers enforce the smaller maximum of one kind
                merged["maxItems"] = max(m["maxItems"] for m in arrays)
            members = [m for m in members if m not in arrays]
            members.insert(1, merged)
        structs = sum(1 for m in members if _ref(m) and self._is_struct(str(_ref(m))))
        # Among other tagged members the tag is required anyway.
        parts = [self.expression(m, request and structs < 2) for m in members]
        parts = list(dict.fromkeys(parts))
        parts.sort(key=lambda part: part == "None")
        return " | ".join(parts)


def _ref(schema: Json) -> str | None:
    ref = schema.get("$ref")
    return ref.removeprefix(SCHEMA_REF) if isinstance(ref, str) else None


def _literals(schema: Json) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))


def _annotated(kind: str, schema: Json) -> str:
    limits = []
    for key, word in CONSTRAINTS.items():
        if key in schema and kind != "None":
            value = schema[key]
            if key == "pattern":
                value = re.sub(r"\$$", r"\\Z", value)
            limits.append(f"{word}={value!r}")
    return f"Annotated[{kind}, Meta({', '.join(limits)})]" if limits else kind


def _subclass(name: str, value: str) -> str:
    return name + "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", value))


def _docstring(schema: Json) -> str:
    text = " ".join(schema.get("description", "").split()) or "To be described."
    return f'"""{text}"""'


def _imports(body: str) -> list[str]:
    lines = []
    for module in ("typing", "msgspec", "plumbline.contract.wire.shapes"):
        names = [n for n, home in HOMES.items() if home == module and re.search(rf"\b{n}\b", body)]
        if names:
            lines.append(f"from {module} import {', '.join(names)}")
    return lines
