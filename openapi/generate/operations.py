"""Write the table of operations, the base class of the service, and one Litestar route per operation."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from typing import Any

from .bundle import SCHEMA_REF, ContractError, Json

METHODS = ("get", "put", "post", "delete", "patch")


@dataclass(frozen=True)
class Operation:
    """One operation of the contract, with its references resolved to names."""

    id: str
    method: str
    path: str
    parameters: tuple[Json, ...]
    request: str | None
    response: str | None
    event: str | None

    @property
    def function(self) -> str:
        return re.sub(r"(?<!^)([A-Z])", r"_\1", self.id).lower()


def operations(whole: Json) -> list[Operation]:
    """Return every operation of a bundled contract, in the order of its paths."""
    return [
        _operation(whole, path, method, item)
        for path, item in whole["paths"].items()
        for method in METHODS
        if method in item
    ]


def _operation(whole: Json, path: str, method: str, item: Json) -> Operation:
    spec = item[method]
    parameters = [_resolve(whole, p) for p in [*item.get("parameters", []), *spec.get("parameters", [])]]
    content = spec["responses"]["200"].get("content", {})
    return Operation(
        id=spec["operationId"],
        method=method,
        path=path,
        parameters=tuple(parameters),
        request=_json_schema(spec.get("requestBody", {}).get("content", {})),
        response=_json_schema(content),
        event=_event_schema(content),
    )


def _resolve(whole: Json, node: Json) -> Json:
    if "$ref" not in node:
        return node
    target: Any = whole
    for part in node["$ref"].removeprefix("#/").split("/"):
        target = target[part]
    return target  # type: ignore[no-any-return]


def _json_schema(content: Json) -> str | None:
    ref = content.get("application/json", {}).get("schema", {}).get("$ref")
    return ref.removeprefix(SCHEMA_REF) if ref else None


def _event_schema(content: Json) -> str | None:
    stream = content.get("text/event-stream")
    if stream is None:
        return None
    data = stream["schema"]["properties"]["data"]
    payload = (data["oneOf"][1] if "oneOf" in data else data)["contentSchema"]
    ref = payload.get("$ref") or payload["anyOf"][0]["$ref"]
    return str(ref).removeprefix(SCHEMA_REF)


def write_table(found: list[Operation]) -> str:
    lines = [
        '"""List the operations of the contract as data."""\n',
        "from dataclasses import dataclass\n",
        '__all__ = ["OPERATIONS", "Operation"]\n\n',
        "@dataclass(frozen=True, slots=True)\nclass Operation:\n",
        '    """One operation; schema names are keys of `components.schemas`."""\n',
        "    id: str\n    method: str\n    path: str\n    request: str | None",
        "    response: str | None\n    event: str | None\n\n",
        "OPERATIONS = (",
    ]
    for op in found:
        fields = (op.id, op.method.upper(), op.path, op.request, op.response, op.event)
        lines.append(f"    Operation({', '.join(map(repr, fields))}),")
    lines.append(")")
    return "\n".join(lines)


def write_service(found: list[Operation], whole: Json, homes: dict[str, str]) -> str:
    """Return the module of the service base; `homes` is the family of each schema."""
    requests = sorted({op.request for op in found if op.request})
    lines = [
        '"""Declare one method per operation; a method that a server does not override answers 404."""\n',
        "from plumbline.contract.wire.call import Call",
        "from plumbline.contract.wire.errors import unsupported_operation",
        "from plumbline.contract.wire.reply import Reply\n",
        *_imports(requests, homes),
        '\n__all__ = ["Service"]\n\n',
        "class Service:",
        '    """Every operation of the contract; a subclass overrides those that it supports."""\n',
    ]
    for op in found:
        summary = whole["paths"][op.path][op.method]["summary"]
        args = ["self"]
        if op.request:
            args.append(f"request: {op.request}")
        args += ["call: Call", "/"]
        extra = [f"{_name(p)}: {_python(p)}" for p in op.parameters]
        if extra:
            args += ["*", *extra]
        lines.append(f"    async def {op.function}({', '.join(args)}) -> Reply:")
        lines.append(f'        """{summary}"""')
        lines.append(f"        raise unsupported_operation({op.id!r})\n")
    return "\n".join(lines)


def write_routes(found: list[Operation], homes: dict[str, str]) -> str:
    """Return the module of the Litestar handlers; `homes` is the family of each schema."""
    enums = {_item_schema(p) for op in found for p in op.parameters if p["schema"]["type"] == "array"}
    requests = sorted({op.request for op in found if op.request} | enums)
    methods = sorted({op.method for op in found})
    lines = [
        '"""One Litestar handler per operation: read the request, call the service, send its reply.\n',
        "The application provides `api`, an instance of `Service`. Bodies are read as bytes and decoded by",
        '`plumbline.contract.wire.incoming`, because Litestar\'s own decoding accepts strings for numbers.\n"""\n',
        "from typing import Any, get_args\n",
        f"from litestar import Request, {', '.join(methods)}",
        "from litestar.handlers import HTTPRouteHandler",
        "from litestar.di import NamedDependency",
        "from litestar.params import RawBody, SkipValidation",
        "from litestar.response import Response, Stream\n",
        "from plumbline.contract.wire.call import Call",
        "from plumbline.contract.wire.incoming import read",
        "from plumbline.contract.wire.query import Query",
        "from plumbline.contract.wire.reply import respond\n",
        "from .service import Service",
        *_imports(requests, homes),
        '\n__all__ = ["ROUTE_HANDLERS"]\n',
        "Api = NamedDependency[SkipValidation[Service]]",
        "Incoming = Request[Any, Any, Any]",
        "Answer = Response[bytes] | Stream\n",
    ]
    for op in found:
        args = ["body: RawBody"] if op.request else []
        args += ["api: Api", "request: Incoming"]
        passed = [f"await read({op.request}, body, request)"] if op.request else []
        passed.append("Call.of(request)")
        query = any(p["in"] == "query" for p in op.parameters)
        passed += [f"{_name(p)}={_reader(p)}" for p in op.parameters]
        lines.append(f"@{op.method}({_litestar_path(op)!r}, name={op.id!r}, status_code=200)")
        lines.append(f"async def {op.function}({', '.join(args)}) -> Answer:")
        if query:
            lines.append("    query = Query.of(request)")
        lines.append(f"    return respond(await api.{op.function}({', '.join(passed)}))\n\n")
    handlers = ", ".join(op.function for op in found)
    lines.append(f"ROUTE_HANDLERS: list[HTTPRouteHandler] = [{handlers}]")
    return "\n".join(lines)


def _imports(names: list[str], homes: dict[str, str]) -> list[str]:
    """Return one import line for each family that has some of the types."""
    families = sorted({homes[name] for name in names})
    return [
        f"from .{family} import {', '.join(name for name in names if homes[name] == family)}"
        for family in families
    ]


def _litestar_path(op: Operation) -> str:
    # A model id may contain slashes (MOD-02); ids that the server generates do not.
    path = op.path.replace("{model}", "{model:path}")
    return re.sub(r"\{(\w+)\}", r"{\1:str}", path)


def _name(parameter: Json) -> str:
    name: str = parameter["name"]
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ContractError(f"parameter {name} is not a Python name")
    return name


_PYTHON = {
    "string": "str",
    "integer": "int",
    "boolean": "bool",
    "array": "list[str]",
    "object": "dict[str, str]",
}
_QUERY = {
    "string": "text",
    "integer": "integer",
    "boolean": "boolean",
    "array": "several",
    "object": "pairs",
}


def _python(parameter: Json) -> str:
    schema = parameter["schema"]
    kind = _PYTHON[schema["type"]]
    always = parameter["in"] == "path" or "default" in schema or schema["type"] in ("array", "object")
    return kind if always else f"{kind} | None"


def _item_schema(parameter: Json) -> str:
    ref: str = parameter["schema"]["items"]["$ref"]
    return ref.removeprefix(SCHEMA_REF)


def _reader(parameter: Json) -> str:
    name, schema = parameter["name"], parameter["schema"]
    if parameter["in"] == "path":
        return f"str(request.path_params[{name!r}])" + ('.removeprefix("/")' if name == "model" else "")
    kind = _QUERY[schema["type"]]
    args = [repr(name)]
    values = schema.get("enum")
    if values:
        args.append(f"values={tuple(values)!r}")
    if schema["type"] == "array":
        args.append(f"values=get_args({_item_schema(parameter)})")
    for key, word in (("minimum", "ge"), ("maximum", "le"), ("maxProperties", "most")):
        if key in schema:
            args.append(f"{word}={schema[key]!r}")
    if "default" in schema:
        args.append(f"default={schema['default']!r}")
    return f"query.{kind}({', '.join(args)})"
