"""Generate requests to an operation: valid, nearly valid and hostile ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from plumbline_conformance.fuzz.features import featured, limits
from plumbline_conformance.fuzz.schema_strategies import SPECIAL, anything, of_schema, texts
from plumbline_conformance.suite.contract import document
from plumbline_conformance.suite.scenario import Request

__all__ = ["MODES", "OPERATORS", "FuzzedOperation", "operations", "requests"]

Strategy = st.SearchStrategy[Any]
MODES = {"valid": 2, "nearly": 1, "hostile": 1}
"""The kinds of request, with their weights; only valid requests reach streaming."""
_JSON = {"content-type": "application/json"}
_LIMITS = {"max_tokens", "max_completion_tokens", "max_output_tokens"}
_CHEAP = {"n", "best_of"}
"""Fields that multiply the cost of a valid request; their values stay small."""
_HUGE: tuple[Any, ...] = (
    -1,
    0,
    2**31,
    2**63,
    -(2**63) - 1,
    10**30,
    1e308,
    -1e308,
    5e-324,
    1.5,
    "1",
    True,
    None,
    [],
    {},
    [[[[[[None]]]]]],
    {"a": {"a": {"a": {"a": None}}}},
)


class FuzzedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of the contract."""

    id: str
    path: str
    """The path below the base URL."""
    schema: str
    """The name of the request schema."""
    statuses: frozenset[int]
    """The documented statuses."""
    answer: str | None
    """The name of the schema of a non-streaming answer."""


OPERATORS = frozenset({"loadLoraAdapter", "streamModelLoad", "unloadLoraAdapter", "unloadModels"})
"""Operations that are not fuzzed, because they change a server for all of its clients."""


@cache
def operations() -> dict[str, FuzzedOperation]:
    """Return the operations of OpenAI's API with a body and without path parameters, by id."""
    return {found.id: found for found in _operations()}


def _operations() -> Iterator[FuzzedOperation]:
    for path, methods in document()["paths"].items():
        post = methods.get("post")
        if post is None or "requestBody" not in post or "{" in path or not path.startswith("/v1/"):
            continue
        if post["operationId"] in OPERATORS:
            continue
        whole = post["responses"]["200"]["content"].get("application/json", {}).get("schema", {})
        yield FuzzedOperation(
            id=post["operationId"],
            path=path.removeprefix("/v1"),
            schema=_name(post["requestBody"]["content"]["application/json"]["schema"]),
            statuses=frozenset(int(status) for status in post["responses"]),
            answer=_name(whole) if "$ref" in whole else None,
        )


def _name(schema: dict[str, Any]) -> str:
    return str(schema["$ref"].rsplit("/", 1)[1])


def requests(operation: FuzzedOperation, mode: str, model: str) -> Strategy:
    """Generate requests in one of the `MODES`."""
    match mode:
        case "valid":
            return _as_requests(operation, _valid(operation, model))
        case "nearly":
            return _as_requests(operation, _nearly(operation, model))
        case "hostile":
            return _hostile(operation, model)
    raise ValueError(mode)


def _as_requests(operation: FuzzedOperation, bodies: Strategy) -> Strategy:
    # ASCII, so that lone surrogates are sent as escapes, as clients do.
    return bodies.map(
        lambda body: Request(path=operation.path, content=json.dumps(body).encode("ascii"), headers=_JSON)
    )


@st.composite
def _valid(draw: st.DrawFn, operation: FuzzedOperation, model: str) -> dict[str, Any]:
    """Generate required fields, features and a few others; servers would refuse most requests with all fields."""
    schema = document()["components"]["schemas"][operation.schema]
    members: dict[str, Any] = schema["properties"]
    required = set(schema.get("required", ())) | ({"input"} & set(members))
    others = sorted(set(members) - required - {"stream_options"})
    if draw(st.integers(0, 3)):
        # Most servers do not know the extensions of others, and refuse or ignore them.
        others = [name for name in others if "x-extension" not in members[name]]
    # Some requests have required members alone, such as `loadLoraAdapter`.
    most = draw(st.sampled_from([0, 1, 4])) if others else 0
    names = draw(st.lists(st.sampled_from(others), max_size=most, unique=True)) if others else []
    body = {name: draw(of_schema(members[name])) for name in [*sorted(required), *names]}
    if "model" in members:
        body["model"] = model
    for name in _CHEAP & set(body):
        body[name] = draw(st.integers(1, 3))
    if not draw(st.booleans()):
        # Use a simple prompt in half of the requests, because servers refuse most conversations of the schema.
        body |= draw(_simple_prompt(members))
    body |= draw(featured(members))
    return {name: body[name] for name in body if name not in _LIMITS} | draw(limits(members))


def _simple_prompt(members: dict[str, Any]) -> Strategy:
    """Generate the field of a prompt that every server answers; no field for an operation without one."""
    # `prompt` next to `input` is a stored template.
    where = next((name for name in ("messages", "input", "prompt") if name in members), None)
    if where is None:
        return st.just({})
    prompts = texts(1)
    if where == "messages":
        prompts = prompts.map(lambda text: [{"role": "user", "content": text}])
    return prompts.map(lambda prompt: {where: prompt})


@st.composite
def _nearly(draw: st.DrawFn, operation: FuzzedOperation, model: str) -> Any:
    """Generate a valid request, then put one to three faults into it."""
    body: Any = draw(_valid(operation, model))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(_paths(body))))
        fault = draw(st.sampled_from(("drop", "huge", "null", "any", "text", "many", "wrap")))
        body = _at(body, path, draw(_faults(fault)), fault)
    return body


def _faults(fault: str) -> Strategy:
    match fault:
        case "huge":
            return st.sampled_from(_HUGE)
        case "any":
            return anything
        case "text":
            return st.sampled_from(SPECIAL) | st.just("\ud800") | texts() | st.just("x" * 5000)
        case "many":
            return st.integers(5, 300)
    return st.none()


def _paths(value: Any, here: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Return the paths of all nested values; the empty path only if there are none."""
    members: list[tuple[str | int, Any]] = []
    match value:
        case dict():
            members = list(value.items())
        case list():
            members = list(enumerate(value))
    if here or not members:
        yield here
    for key, member in members:
        yield from _paths(member, (*here, key))


def _at(value: Any, path: tuple[str | int, ...], drawn: Any, fault: str) -> Any:
    """Return the value with a fault at a path."""
    if not path:
        return _broken(value, drawn, fault)
    key, rest = path[0], path[1:]
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if fault == "drop" and not rest:
        del copy[key]
    else:
        copy[key] = _at(value[key], rest, drawn, fault)
    return copy


def _broken(value: Any, drawn: Any, fault: str) -> Any:
    match fault:
        case "many":
            return value * min(drawn, 300) if isinstance(value, list) else [value] * drawn
        case "wrap":
            return [value]
    return drawn


def _hostile(operation: FuzzedOperation, model: str) -> Strategy:
    """Generate bodies that are not requests, or damaged ones."""
    head = {"model": model}
    whole = _valid(operation, model).map(lambda body: json.dumps(body).encode("ascii"))
    bodies = st.one_of(
        st.binary(max_size=60),
        anything.map(lambda value: json.dumps(value).encode("ascii")),
        st.builds(lambda body, cut: body[: len(body) * cut // 100], whole, st.integers(0, 99)),
        st.builds(_damaged, whole, st.integers(0, 10_000), st.binary(min_size=1, max_size=4)),
        st.integers(10, 3000).map(lambda depth: b"[" * depth + b"]" * depth),
        st.integers(10, 3000).map(lambda depth: b'{"input":' * depth + b"1" + b"}" * depth),
        st.sampled_from(
            [
                "messages",
                "input",
                "prompt",
                "stream",
                "stream_options",
                "stop",
                "tools",
                "tool_choice",
                "response_format",
                "text",
                "logprobs",
                "metadata",
                "temperature",
                "n",
            ]
        ).flatmap(
            lambda name: st.sampled_from(_HUGE).map(lambda v: json.dumps({**head, name: v}).encode("ascii"))
        ),
        st.sampled_from(
            [b"NaN", b"Infinity", b"-0", b"1e999", b'"\\ud800"', b'"\\u0000"', b'{"a":1,"a":2}']
        ).map(lambda raw: json.dumps(head).encode()[:-1] + b', "temperature": ' + raw + b"}"),
    )
    kinds = st.sampled_from([_JSON, _JSON, {"content-type": "text/plain"}, {"content-type": "nonsense"}, {}])
    return st.builds(
        lambda content, headers: Request(path=operation.path, content=content, headers=headers), bodies, kinds
    )


def _damaged(body: bytes, place: int, put: bytes) -> bytes:
    place %= len(body)
    return body[:place] + put + body[place + 1 :]
