"""Map the `generation_config` of transformers serve to the fields of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from plumbline.contract.wire.errors import invalid_request, invalid_type, unsupported_parameter
from plumbline.contract.wire.size import check_size

__all__ = ["generation_config"]

_PARAM = "generation_config"
_SAME = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")
_RENAMED = {
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
    "num_return_sequences": "n",
}
_WITHOUT_EFFECT = frozenset(
    {"transformers_version", "_from_model_config", "bos_token_id", "pad_token_id", "use_cache", "do_sample"}
)
"""What the file of a model has besides. `do_sample` has an effect only where it is false."""


def generation_config(limit: str, *older: str, has_choices: bool = True) -> Callable[[Any], Any]:
    """Return the form of one API.

    Args:
        limit: the field of the output limit.
        older: its other names; a request that has one keeps it.
        has_choices: whether the API has `n`.
    """
    targets = {name: name for name in _SAME} | _RENAMED | {"max_new_tokens": limit}
    if not has_choices:
        del targets["num_return_sequences"]

    def transformers_generation_config(body: Any) -> Any:
        """Set the fields that a `generation_config` names; those that the request has itself win, as in transformers.

        Raises:
            ApiError: 400 naming a member that has no counterpart here; 413 for JSON text with too many values.
        """
        if body.get(_PARAM) is None:
            return body
        config = {name: value for name, value in _object(body[_PARAM]).items() if value is not None}
        found: dict[str, Any] = {}
        for name, value in config.items():
            if name in targets:
                found[targets[name]] = value
            elif name == "eos_token_id":
                found["stop_token_ids"] = value if isinstance(value, list) else [value]
            elif name not in _WITHOUT_EFFECT:
                raise unsupported_parameter(
                    f"{_PARAM}.{name}", "has no counterpart in this server; leave it out"
                )
        if config.get("do_sample") is False:
            found["temperature"] = 0
        if any(body.get(name) is not None for name in older):
            found.pop(limit, None)
        rest = {name: value for name, value in body.items() if name != _PARAM}
        return rest | {name: value for name, value in found.items() if body.get(name) is None}

    return transformers_generation_config


def _object(value: Any) -> dict[str, Any]:
    """Return the configuration, which transformers' clients send as JSON text."""
    if isinstance(value, str):
        check_size(value.encode())  # The size of the body says nothing of JSON in a string.
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            raise invalid_request(
                f"'{_PARAM}' is a string that is not JSON.", _PARAM, "invalid_value"
            ) from None
    if not isinstance(value, dict):
        raise invalid_type(_PARAM, "an object", value)
    return value
