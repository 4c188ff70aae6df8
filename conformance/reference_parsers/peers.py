"""Find the parsers of other servers that can be imported.

They read the same outputs as ours, whole and token by token, for comparison only.
"""

from __future__ import annotations

import contextlib
import logging

from interface import (
    ParsedMessage,
    ParserStream,
    PeerParsers,
    cut,
    reasoning_and_text,
    reasoning_text_and_calls,
    text_and_calls,
)
from peer_sglang import Sglang
from peer_vllm import Vllm

__all__ = [
    "ParsedMessage",
    "ParserStream",
    "PeerParsers",
    "cut",
    "peers",
    "reasoning_and_text",
    "reasoning_text_and_calls",
    "text_and_calls",
]


def peers() -> list[PeerParsers]:
    """Return the servers whose parsers can be imported."""
    logging.disable(logging.CRITICAL)
    found: list[PeerParsers] = []
    for kind in (Vllm, Sglang):
        with contextlib.suppress(ImportError):
            found.append(kind())
    return found
