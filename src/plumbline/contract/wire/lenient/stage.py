"""Decode a body by the contract or, with `--lenient`, by the forms of other servers.

A body is decoded as it stands first. Only if that fails, or if it names a member that a reader may refuse, its JSON is
rewritten by the forms of its request and decoded again. Without `--lenient`, the same forms tell whether an error can
end with the hint that the option accepts the body.
"""

from __future__ import annotations

import functools
import re
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from plumbline.contract.wire.decode import decode, encode, read_back
from plumbline.contract.wire.errors import ApiError

from .forms import FORMS, MAX_STOPS, READ_LATER, Json

__all__ = ["HINT", "Rewritten", "decode_leniently", "rewrite", "with_hint"]

T = TypeVar("T", bound=msgspec.Struct)

HINT = "`--lenient` accepts this form."
_MANY_STOPS = "vllm_many_stops"
_NAMED_BY = {_MANY_STOPS: "stop", "vllm_echo": "echo"}
"""Fields that errors name and that the form leaves in place: `vllm_echo` may change `logprobs` instead."""
_STEP = re.compile(r"[^.\[\]]+")


class Rewritten(NamedTuple):
    """A body in the words of the contract."""

    body: bytes
    forms: tuple[str, ...]
    """The names of the forms that it had."""


def decode_leniently(root: type[T], body: bytes) -> tuple[T, Rewritten]:
    """Decode a body that may have forms of other servers.

    Args:
        root: the generated Struct of the request.
        body: JSON in UTF-8.

    Returns:
        The request, and what it was decoded from: the body as it stands unless it had forms.

    Raises:
        ApiError: as for `decode`, and 400 for members of a `generation_config` that have no counterpart.
    """
    try:
        decoded = decode(root, body)
    except ApiError as error:
        rewritten = rewrite(root, body) if error.status == 400 else None
        if rewritten is None:
            raise
    else:
        rewritten = rewrite(root, body) if any(name in body for name in READ_LATER) else None
        if rewritten is None:
            return decoded, Rewritten(body, ())
    return decode(_relaxed(root), rewritten.body), rewritten


def rewrite(root: type[msgspec.Struct], body: bytes) -> Rewritten | None:
    """Apply the forms of a request; None if the body has none of them, or is not a JSON object.

    Raises:
        ApiError: 400 for members of a `generation_config` that have no counterpart.
    """
    document = _object(body)
    if document is None:
        return None
    changed, names = _apply(root, document)
    return Rewritten(encode(changed), names) if names else None


def with_hint(error: ApiError, root: type[msgspec.Struct], body: bytes) -> ApiError:
    """Return an error with the hint that `--lenient` accepts the body, if a form changes what the error names.

    Args:
        error: why the body was refused, by decoding or by a reader.
        root: the generated Struct of the request.
        body: the body as it was sent.
    """
    if error.status != 400 or error.param is None:
        return error
    document = _object(body)
    if document is None:
        return error
    try:
        changed, names = _apply(root, document)
        is_named = any(_NAMED_BY.get(form) == error.param for form in names)
        if not is_named and _at(document, error.param) == _at(changed, error.param):
            return error
        decode(_relaxed(root), encode(changed))
    except (ApiError, RecursionError):
        return error
    message = f"{error.message} {HINT}"
    return ApiError(error.status, message, error.type, error.param, error.code, error.headers)


def _object(body: bytes) -> Json | None:
    try:
        found = read_back(Any, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _apply(root: type[msgspec.Struct], document: Json) -> tuple[Json, tuple[str, ...]]:
    """Return a document in the words of the contract, and the names of the forms that it had."""
    names: list[str] = []
    for form in FORMS.get(root.__name__, ()):
        changed = form(document)
        if changed is not document:
            document = changed
            names.append(form.__name__)
    if _has_many_stops(root, document):
        names.append(_MANY_STOPS)
    return document, tuple(names)


def _has_many_stops(root: type[msgspec.Struct], document: Json) -> bool:
    """Return whether a request has more stop strings than the contract allows; `_relaxed` accepts up to `MAX_STOPS`."""
    stop = document.get("stop")
    return "stop" in root.__struct_encode_fields__ and isinstance(stop, list) and len(stop) > 4


@functools.cache
def _relaxed(root: type[T]) -> type[T]:
    """Return the type of a request with more stop strings.

    It is a subclass with the same name, so nothing else notices: the bound is a matter of the contract, and readers
    take any number.
    """
    if "stop" not in root.__struct_encode_fields__:
        return root
    text = Annotated[str, Meta(max_length=4096)]
    several = Annotated[list[text], Meta(min_length=1, max_length=MAX_STOPS)]
    stop = ("stop", text | several | None | UnsetType, UNSET)
    made = msgspec.defstruct(root.__name__, [stop], bases=(root,), kw_only=True, module=root.__module__)
    return cast(type[T], made)


def _at(document: Any, param: str) -> Any:
    """Return the value at a path such as `messages[0].content`; the class of nothing if there is none."""
    value = document
    for step in _STEP.findall(param):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return UnsetType
    return value
