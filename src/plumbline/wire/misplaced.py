"""Fields of one API in the body of another that would lose what they promise.

Unknown fields are passed over (HTTP-09), because most say nothing that an answer depends on. A form that is asked for
by the name of another API is different: the client would get an answer without it and could not tell. So these few are
refused with the name that is right, as the real service does.
"""

from __future__ import annotations

import msgspec

from .errors import unsupported_parameter

__all__ = ["check_places"]

_OURS = "'structured_outputs'"
_PLACES = {
    "CreateChatCompletionRequest": {"text.format": "'response_format'"},
    "CreateCompletionRequest": {"response_format": _OURS, "text.format": _OURS},
    "CreateResponse": {
        "response_format": "'text.format'",
        **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), _OURS),
    },
}
"""For each request: the field, and what to use in its place."""
_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_places(root: type, body: bytes) -> None:
    """Look for such fields in a body that has been decoded.

    Raises:
        ApiError: 400 naming the field, and the right one.
    """
    for param, right in _PLACES.get(root.__name__, {}).items():
        name, _, inner = param.partition(".")
        # Nearly every body is done with after these searches.
        if f'"{name}"'.encode() not in body or (inner and f'"{inner}"'.encode() not in body):
            continue
        value = _decoder.decode(body).get(name)
        if value is None or bytes(value) == b"null":
            continue
        if inner and not (isinstance(found := msgspec.json.decode(value), dict) and found.get(inner)):
            continue
        raise unsupported_parameter(param, f"is not a field of this API; use {right}")
