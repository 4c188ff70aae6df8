"""The parsers of other servers behind one interface, where they can be imported.

They are asked about the same outputs as ours, whole and token by token. Nothing of them is used otherwise.
"""

from __future__ import annotations

import contextlib
import logging

from asked import Message, Peer, Stream, cut, message, thought, together
from peer_sglang import Sglang
from peer_vllm import Vllm

__all__ = ["Message", "Peer", "Stream", "cut", "message", "peers", "thought", "together"]


def peers() -> list[Peer]:
    """Those that import."""
    logging.disable(logging.CRITICAL)
    found: list[Peer] = []
    for kind in (Vllm, Sglang):
        with contextlib.suppress(ImportError):
            found.append(kind())
    return found
