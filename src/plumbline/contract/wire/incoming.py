"""Decode the body of a request, and report its unknown fields and its forms of other servers."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from litestar import Request

from .call import BESIDE, CLIENT_NAMED, FACTS, note_skipped
from .decode import decode, read_back
from .errors import ApiError, unknown_parameter
from .large_bodies import LARGE_BODIES, LargeBodies
from .lenient.stage import decode_leniently, with_hint
from .names.spellings import as_spelled
from .names.unknown import header_value, nearest_field, unknown_fields

__all__ = [
    "FORMS",
    "HELD_FOR",
    "IGNORED",
    "LENIENT",
    "STRICT",
    "ReadBody",
    "as_sent",
    "client_index",
    "error_of_body",
    "ignored_fields",
    "read",
    "read_body",
    "read_skipping_tools",
    "refused_tool",
]

IGNORED = "ignored_fields"
"""Key of the request's state: the value of the header `x-plumbline-ignored`."""
FORMS = "lenient_forms"
"""Key of the request's state: the value of the header `x-plumbline-lenient`."""
STRICT = "strict_fields"
"""Key of the application's state: whether an unknown field is an error."""
LENIENT = "lenient"
"""Key of the application's state: whether requests may have the forms of other servers."""
HELD_FOR = "held_for"
"""Key of the request's state: the client that its bytes count for."""
_READ = "read_body"
"""Key of the request's state: what `read` decoded (type, body, whether leniently), for the text of a later error."""
_LONGEST_READ_AGAIN = 128 * 1024
"""Bytes of a body that is read again for a later error, on the event loop."""

_log = logging.getLogger("plumbline.server")

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")


class ReadBody(NamedTuple, Generic[T]):
    """What a body says."""

    request: T
    forms: tuple[str, ...]
    """The forms of other servers that it had."""
    unknown: list[str]
    """The paths of its unknown fields."""


async def read(root: type[T], body: bytes, request: Request[Any, Any, Any]) -> T:
    """Decode a body, and take the request id that it may have.

    Unknown fields (HTTP-09) are logged and named in a header of the answer, or refused. Forms of other servers are
    also named in a header.

    Args:
        root: the generated Struct of the request.
        body: JSON in UTF-8.
        request: Litestar's request; its state gets the names of the unknown fields and of the forms.

    Raises:
        ApiError: 400 naming the field that is wrong or, if the server is strict, unknown.
    """
    state = request.scope["state"]
    lenient = bool(request.app.state.get(LENIENT, False))
    large: LargeBodies | None = request.app.state.get(LARGE_BODIES)

    async def read_one(body: bytes) -> ReadBody[T]:
        work = functools.partial(read_body, root, body, lenient=lenient)
        return work() if large is None else await large.run(state.get(HELD_FOR, ""), len(body), work)

    (decoded, forms, unknown), body = await read_skipping_tools(body, state.setdefault(FACTS, {}), read_one)
    if forms:
        state[FORMS] = ", ".join(forms)
    state[_READ] = root, body, lenient
    if large is not None:
        state[BESIDE] = functools.partial(large.run, state.get(HELD_FOR, "")), len(body)
    name = _request_name(decoded)
    if name is not None and not state.get(CLIENT_NAMED):  # As in vLLM, the header wins.
        state["request_id"], state[CLIENT_NAMED] = name, True
    if unknown:
        strict = bool(request.app.state.get(STRICT, False))
        state[IGNORED] = ignored_fields(root, unknown, state.get("request_id"), strict=strict)
    return decoded


def ignored_fields(
    root: type[msgspec.Struct], unknown: Sequence[str], request_id: str | None, *, strict: bool
) -> str:
    """Log unknown fields (HTTP-09), and return the value of the header that names them.

    Raises:
        ApiError: 400 naming one of them, if the server is strict.
    """
    if strict:
        raise unknown_parameter(unknown[0], nearest_field(root, unknown[0]))
    shown = header_value(root, unknown)
    _log.warning("request %s: ignored unknown fields: %s", request_id, shown)
    return shown


def read_body(root: type[T], body: bytes, *, lenient: bool) -> ReadBody[T]:
    """Decode a body.

    Args:
        root: the generated Struct of the request.
        body: JSON in UTF-8.
        lenient: whether it may have the forms of other servers. If not, an error says where it might.

    Raises:
        ApiError: 400 naming the field that is wrong.
    """
    if lenient:
        decoded, (body, forms) = decode_leniently(root, body)
        return ReadBody(decoded, forms, unknown_fields(decoded, body))
    try:
        decoded = decode(root, body)
    except ApiError as error:
        raise with_hint(error, root, body) from None
    return ReadBody(decoded, (), unknown_fields(decoded, body))


async def read_skipping_tools(
    body: bytes, facts: dict[str, Any], read_one: Callable[[bytes], Awaitable[R]]
) -> tuple[R, bytes]:
    """Read a body; if it wants so (`x_skip_invalid_tools`), without the tools that cannot be read.

    Args:
        body: JSON in UTF-8.
        facts: gets the names of the tools that are left out.
        read_one: reads a body.

    Returns:
        What `read_one` returns, and the body that it read.

    Raises:
        ApiError: from `read_one`.
    """
    removed: list[int] = []
    while True:
        try:
            return await read_one(body), body
        except ApiError as error:
            body = _without_tool(body, error, facts, removed)


def refused_tool(error: ApiError) -> int | None:
    """Return the index of the tool that an error is about; None for other errors."""
    found = _TOOL.match(error.param or "") if error.status == 400 else None
    return None if found is None else int(found[1])


def client_index(index: int, removed: list[int]) -> int:
    """Return the index of a tool in the client's list; `removed` has those of the tools that are left out already.

    >>> client_index(0, [0, 1]), client_index(1, [1]), client_index(0, [1])
    (2, 2, 0)
    """
    for one in sorted(removed):
        index += one <= index
    return index


def _without_tool(body: bytes, error: ApiError, facts: dict[str, Any], removed: list[int]) -> bytes:
    """Return a body without the tool that an error is about, if it wants invalid tools to be left out.

    `removed` gets its index in the client's list, by which a tool without a name is noted.

    Raises:
        ApiError: the error, if the body does not want that or the error is about something else.
    """
    index = refused_tool(error)
    if index is None or _SKIPPING not in body:
        raise error
    members = _members.decode(body)
    tools = _tools.decode(members["tools"])
    if bytes(members.get("x_skip_invalid_tools", b"")) != b"true" or index >= len(tools):
        raise error
    original = client_index(index, removed)
    removed.append(original)
    if not note_skipped(facts, _tool_name(read_back(Any, bytes(tools.pop(index)))) or f"tools[{original}]"):
        raise error
    members["tools"] = msgspec.Raw(msgspec.json.encode(tools))
    if not tools:
        del members["tools"]
    return msgspec.json.encode(members)


def _tool_name(tool: Any) -> str | None:
    """Return the name of a tool of any API, valid or not."""
    parts = [tool, tool.get("function"), tool.get("custom")] if isinstance(tool, dict) else []
    names = [part.get("name") for part in parts if isinstance(part, dict)]
    return next((name for name in names if isinstance(name, str)), None)


_TOOL = re.compile(r"tools\[([0-9]{1,5})\]")
_SKIPPING = b'"x_skip_invalid_tools"'
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_tools = msgspec.json.Decoder(list[msgspec.Raw])


def as_sent(error: ApiError, request: Request[Any, Any, Any]) -> ApiError:
    """Return an error of what follows `read` in terms of the body that the client sent."""
    read_before = request.scope["state"].get(_READ)
    if read_before is None:
        return error
    root, body, lenient = read_before
    return error_of_body(error, root, body, lenient=lenient)


def error_of_body(error: ApiError, root: type[msgspec.Struct], body: bytes, *, lenient: bool) -> ApiError:
    """Return an error of a body that was decoded: with the client's spelling of the field, and perhaps with a hint.

    Args:
        error: why the request is refused.
        root: the generated Struct of the request.
        body: the body. A large one is not read again, so its error stays as it is.
        lenient: whether the body was decoded leniently. If not, the error says so where `--lenient` would accept it.
    """
    if len(body) > _LONGEST_READ_AGAIN:
        return error
    return as_spelled(error if lenient else with_hint(error, root, body), root, body)


def _request_name(decoded: msgspec.Struct) -> str | None:
    """Return the id that a body gives its request."""
    name = getattr(decoded, "request_id", None)
    return name if isinstance(name, str) else None
