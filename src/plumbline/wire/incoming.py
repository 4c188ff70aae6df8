"""Decode the body of a request, and report its unknown fields and its forms of other servers."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import msgspec
from litestar import Request

from .call import CLIENT_NAMED
from .decode import decode
from .errors import ApiError, unknown_parameter
from .lenient.stage import decode_leniently, with_hint
from .unknown import header_value, nearest_field, unknown_fields

__all__ = ["FORMS", "IGNORED", "LENIENT", "STRICT", "hinted", "read"]

IGNORED = "ignored_fields"
"""Key of the request's state: the value of the header `x-plumbline-ignored`."""
FORMS = "lenient_forms"
"""Key of the request's state: the value of the header `x-plumbline-lenient`."""
STRICT = "strict_fields"
"""Key of the application's state: whether an unknown field is an error."""
LENIENT = "lenient"
"""Key of the application's state: whether requests may have the forms of other servers."""
_READ = "read_body"
"""Key of the request's state: the type and the body that `read` has decoded, for the hint of an error."""

_log = logging.getLogger("plumbline.server")

T = TypeVar("T", bound=msgspec.Struct)


def read(root: type[T], body: bytes, request: Request[Any, Any, Any]) -> T:
    """Decode a body, and take the request id that it may have.

    Unknown fields (HTTP-09) are logged and named in a header of the answer, or refused. Forms of other servers are
    named in a header, too.

    Args:
        root: the generated Struct of the request.
        body: JSON in UTF-8.
        request: Litestar's request; its state gets the names of the unknown fields and of the forms.

    Raises:
        ApiError: 400 naming the field that is wrong or, if the server is strict, unknown.
    """
    state = request.scope["state"]
    if request.app.state.get(LENIENT, False):
        decoded, (body, forms) = decode_leniently(root, body)
        if forms:
            state[FORMS] = ", ".join(forms)
    else:
        state[_READ] = root, body
        decoded = decode(root, body)
    name = _request_name(decoded)
    if name is not None and not state.get(CLIENT_NAMED):  # As in vLLM, the header wins.
        state["request_id"], state[CLIENT_NAMED] = name, True
    unknown = unknown_fields(decoded, body)
    if unknown:
        if request.app.state.get(STRICT, False):
            raise unknown_parameter(unknown[0], nearest_field(root, unknown[0]))
        state[IGNORED] = header_value(root, unknown)
        _log.warning("request %s: ignored unknown fields: %s", state.get("request_id"), state[IGNORED])
    return decoded


def hinted(error: ApiError, request: Request[Any, Any, Any]) -> ApiError:
    """Return an error of a request, with a hint if `--lenient` would accept what the error names."""
    read_body = request.scope["state"].get(_READ)
    return error if read_body is None else with_hint(error, *read_body)


def _request_name(decoded: msgspec.Struct) -> str | None:
    """Return the id that a body gives its request: vLLM's field or SGLang's."""
    names = (getattr(decoded, field, None) for field in ("request_id", "rid"))
    return next((name for name in names if isinstance(name, str)), None)
