"""Write errors in the form of the API that a path belongs to: OpenAI's envelope, or that of Messages (MSG-11)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from plumbline.contract.wire.errors import ApiError, envelope
from plumbline.contract.wire.sse import frame

__all__ = [
    "ANTHROPIC_VERSION",
    "THREAD_UNSUPPORTED",
    "error_answer",
    "is_messages",
    "is_model_list",
    "message_error",
    "message_error_frame",
]

ANTHROPIC_VERSION = "anthropic-version"
"""The header by which Anthropic's clients are known at paths that OpenAI's clients use as well."""
_PATH = "/v1/messages"
_MODELS = "/v1/models"
_OVERLOADED = 529
"""The status of Messages for a server that cannot answer now, where OpenAI's API has 503."""
THREAD_UNSUPPORTED = "thread_unsupported_request"
"""The code of a 400 after which Anthropic's clients send the whole conversation."""
_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        408: "timeout_error",
        413: "request_too_large",
        429: "rate_limit_error",
        _OVERLOADED: "overloaded_error",
    }
)


def is_messages(path: str) -> bool:
    """Return whether a path belongs to Messages."""
    return path == _PATH or path.startswith(f"{_PATH}/")


def is_model_list(path: str) -> bool:
    """Return whether a path is one at which Anthropic's clients ask for models, as OpenAI's do."""
    return path == _MODELS or path.startswith(f"{_MODELS}/")


def error_answer(
    error: ApiError, path: str, request_id: str | None, *, is_anthropic: bool = False
) -> tuple[int, bytes]:
    """Return the status and the body of an error response.

    Args:
        error: the error.
        path: of the request.
        request_id: of the request, if it has one.
        is_anthropic: whether the request has the header `ANTHROPIC_VERSION`, which decides for the list of models.
    """
    if not (is_messages(path) or (is_anthropic and is_model_list(path))):
        return error.status, envelope(error)
    return _status(error), message_error(error, request_id)


def message_error(error: ApiError, request_id: str | None) -> bytes:
    """Return the body of an error of Messages. Its message names the field, because there is no member for it."""
    status = _status(error)
    named = error.param is None or f"'{error.param}'" in error.message
    message = error.message if named else f"'{error.param}': {error.message}"
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    found: dict[str, Any] = {"type": kind, "message": message}
    if error.code == THREAD_UNSUPPORTED:
        found["details"] = {"error_code": error.code}
    body = {"type": "error", "error": found, "request_id": request_id}
    return msgspec.json.encode(body)


def message_error_frame(error: ApiError, request_id: str | None) -> bytes:
    """Frame an error as the last event of a stream of Messages."""
    return frame(message_error(error, request_id), "error")


def _status(error: ApiError) -> int:
    return _OVERLOADED if error.status == 503 else error.status
