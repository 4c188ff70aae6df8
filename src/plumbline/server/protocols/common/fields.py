"""Read request fields that may be absent or null, and refuse fields that this server does not honour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract._generated.shared_fields import CompletionFields
from plumbline.contract.wire.errors import invalid_request, unsupported_parameter

__all__ = [
    "SERVER_VARIABLES",
    "check_stream_options",
    "given",
    "or_default",
    "refuse_given",
    "tag_of",
    "template_variables",
]

T = TypeVar("T")

SERVER_VARIABLES = frozenset(
    {
        "add_generation_prompt",
        "bos_token",
        "continue_final_message",
        "documents",
        "eos_token",
        "messages",
        "raise_exception",
        "strftime_now",
        "tools",
    }
)
"""Template variables that the server sets from other fields of a request."""


def given(value: T | UnsetType | None) -> bool:
    """Return whether the client sent this field. An explicit null counts as absent (HTTP-10)."""
    return value is not UNSET and value is not None


def or_default(value: T | UnsetType | None, default: T) -> T:
    """Return the client's value, or the default if the client sent none."""
    return default if value is UNSET or value is None else value


def refuse_given(request: msgspec.Struct, reasons: Mapping[str, str]) -> None:
    """Refuse the first field that the client sent and this server does not honour; `false` and `[]` ask for nothing.

    Args:
        request: a decoded request.
        reasons: for each refused field the end of the error message.

    Raises:
        ApiError: 400 `unsupported_parameter` naming the field.
    """
    for name, reason in reasons.items():
        value = getattr(request, name, UNSET)
        if given(value) and value is not False and value != []:
            raise unsupported_parameter(name, reason)


def check_stream_options(request: CompletionFields | CreateResponse) -> None:
    """Check that `stream_options` comes with `stream: true` (CS-09, CMP-08).

    Raises:
        ApiError: 400 naming the field.
    """
    if given(request.stream_options) and request.stream is not True:
        raise invalid_request(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options"
        )


def template_variables(explicit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the client's variables for the chat template.

    Raises:
        ApiError: 400 for a variable that only the server may set.
    """
    for name in explicit:
        if name in SERVER_VARIABLES:
            raise unsupported_parameter(
                f"chat_template_kwargs.{name}", "is set by the server from other fields"
            )
    return dict(explicit)


def tag_of(value: Any) -> str:
    """Return the tag of a tagged Struct as the wire has it in `type`, such as `json_schema`."""
    return str(type(value).__struct_config__.tag)
