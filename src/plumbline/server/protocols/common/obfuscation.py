"""Pad the deltas of a stream, so that their sizes on the wire do not show the lengths of the tokens (SSE-11).

An observer of encrypted traffic who sees the size of each event can guess the words of an answer (Weiss et al.,
"What Was Your Prompt? A Remote Keylogging Attack on AI Assistants", 2024).
"""

from __future__ import annotations

import secrets

from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract._generated.shared_fields import CompletionFields
from plumbline.server.protocols.common.fields import or_default

__all__ = ["BLOCK", "obfuscated", "wants_obfuscation"]

BLOCK = 128
"""Padded events have a multiple of this many bytes."""

_MEMBER = b',"obfuscation":"'
_END = b'"}'


def wants_obfuscation(request: CompletionFields | CreateResponse) -> bool:
    """Return whether the client asked for padding; the default is no padding."""
    options = or_default(request.stream_options, None)
    return options is not None and options.include_obfuscation is True


def obfuscated(event: bytes) -> bytes:
    """Add the member `obfuscation` to an encoded JSON object with at least one member.

    The padding is random text, so that compression does not undo it, and has at least one character.
    """
    size = len(event) - 1 + len(_MEMBER) + len(_END)
    padding = BLOCK - size % BLOCK
    text = secrets.token_urlsafe(padding)[:padding].encode()
    return event[:-1] + _MEMBER + text + _END
