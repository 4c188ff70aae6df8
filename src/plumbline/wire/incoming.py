"""Decode the body of a request, and report its unknown fields."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import msgspec
from litestar import Request

from .call import CLIENT_NAMED
from .decode import decode
from .errors import unknown_parameter
from .unknown import header_value, unknown_fields

__all__ = ["IGNORED", "STRICT", "read"]

IGNORED = "ignored_fields"
"""Key of the request's state: the value of the header `x-plumbline-ignored`."""
STRICT = "strict_fields"
"""Key of the application's state: whether an unknown field is an error."""

_log = logging.getLogger("plumbline.server")

T = TypeVar("T", bound=msgspec.Struct)


def read(root: type[T], body: bytes, request: Request[Any, Any, Any]) -> T:
    """Decode a body, and take the request id that it may have.

    Unknown fields (HTTP-09) are logged and named in a header of the answer, or refused.

    Args:
        root: the generated Struct of the request.
        body: JSON in UTF-8.
        request: Litestar's request; its state gets the names of the unknown fields.

    Raises:
        ApiError: 400 naming the field that is wrong or, if the server is strict, unknown.
    """
    decoded = decode(root, body)
    state = request.scope["state"]
    name = _request_name(decoded)
    if name is not None and not state.get(CLIENT_NAMED):  # As in vLLM, the header wins.
        state["request_id"], state[CLIENT_NAMED] = name, True
    unknown = unknown_fields(decoded, body)
    if unknown:
        if request.app.state.get(STRICT, False):
            raise unknown_parameter(unknown[0])
        state[IGNORED] = header_value(unknown)
        _log.warning("request %s: ignored unknown fields: %s", state.get("request_id"), state[IGNORED])
    return decoded


def _request_name(decoded: msgspec.Struct) -> str | None:
    """Return the id that a body gives its request: vLLM's field or SGLang's."""
    names = (getattr(decoded, field, None) for field in ("request_id", "rid"))
    return next((name for name in names if isinstance(name, str)), None)
