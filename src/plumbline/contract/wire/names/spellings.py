"""Give fields that have several spellings the one that readers know."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec
from msgspec import UNSET

from plumbline.contract.wire.errors import ApiError, invalid_request

__all__ = ["SPELLINGS", "as_spelled", "with_one_spelling"]

SPELLINGS = {
    "add_bos_token": "add_special_tokens",
    "allowed_tokens": "allowed_token_ids",
    "ban_eos_token": "ignore_eos",
    "dry_range": "dry_penalty_last_n",
    "max_length": "max_tokens",
    "min_length": "min_tokens",
    "mirostat_mode": "mirostat",
    "no_stop_trim": "include_stop_str_in_output",
    "penalty_range": "repeat_last_n",
    "reasoning_budget_tokens": "thinking_token_budget",
    "regex_pattern": "regex",
    "rep_pen": "repetition_penalty",
    "repeat_penalty": "repetition_penalty",
    "repetition_range": "repeat_last_n",
    "rid": "request_id",
    "stop_sequence": "stop",
    "temp_exponent": "dynatemp_exponent",
    "template_vars": "chat_template_kwargs",
    "typical": "typical_p",
}
"""Names that llama.cpp, SGLang and TabbyAPI have for fields, and ours. The contract has all of them."""
_WHOLE = {"dry_range": {0: -1}}
"""Values that mean something else under another name: TabbyAPI writes 0 where llama.cpp writes -1 for all tokens."""


def with_one_spelling(request: Any) -> None:
    """Move values that came under another spelling to the field that is read.

    Args:
        request: what a body was decoded to; a Struct of the contract is changed.

    Raises:
        ApiError: 400 if two spellings have different values.
    """
    root: Any = type(request)
    for name, ours in _pairs(root):
        value = getattr(request, name)
        if value is UNSET:
            continue
        setattr(request, name, UNSET)
        if value is None:
            continue
        value = _WHOLE.get(name, {}).get(value, value) if isinstance(value, int) else value
        known = getattr(request, ours)
        if known is not UNSET and known is not None and known != value:
            raise invalid_request(
                f"'{name}' and '{ours}' are the same field and have different values; leave one out.", name
            )
        setattr(request, ours, value)


def as_spelled(error: ApiError, root: type[msgspec.Struct], body: bytes) -> ApiError:
    """Return an error of a reader with the spelling that the client used for the field: readers know ours only.

    Args:
        error: why the request was refused after `with_one_spelling`.
        root: the generated Struct of the request.
        body: JSON of the request, which was decoded before.
    """
    if error.status != 400 or error.param is None:
        return error
    ours = error.param.split(".")[0].split("[")[0]
    names = [name for name, known in _pairs(root) if known == ours]
    if not names:
        return error
    sent = {name for name, value in _members.decode(body).items() if bytes(value) != b"null"}
    for name in names:
        if name in sent and ours not in sent:
            message = re.sub(rf"'{ours}\b", f"'{name}", error.message)
            param = name + error.param.removeprefix(ours)
            return ApiError(error.status, message, error.type, param, error.code, error.headers)
    return error


_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


@cache
def _pairs(root: Any) -> tuple[tuple[str, str], ...]:
    """Return the spellings that a type has, each with the name that is read."""
    names = {*getattr(root, "__struct_fields__", ())}
    return tuple((name, ours) for name, ours in SPELLINGS.items() if {name, ours} <= names)
