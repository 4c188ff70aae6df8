"""Distinguish answers that never end from slow ones (HTTP-17).

HTTP-17 sets no time limit, because the speeds of servers differ by orders of magnitude. The judge measures the speed on
the server itself: a request that the server answers shows how long its tokens take.
"""

from __future__ import annotations

from typing import Any

from plumbline_conformance.runner.budget import cost_of
from plumbline_conformance.suite.scenario import Request
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["is_too_long", "silence_of"]

_LEAST = 0.5
"""The share of the wait that must have been silent."""
_FACTOR = 3
"""How many times as long as its tokens take an answer may be silent."""


def silence_of(exchange: Exchange, waited: float) -> float:
    """Return the seconds since the last event or byte of an answer; comments that keep a stream alive are neither."""
    arrived = [
        time
        for time, frame in exchange.frames
        if any(line and not line.startswith(b":") for line in frame.splitlines())
    ]
    return waited - max(arrived, default=0.0)


def is_too_long(silence: float, waited: float, request: Request, proof: Exchange, took: float) -> bool:
    """Return whether a silence cannot be the time that the tokens of the request take.

    Args:
        silence: seconds without an event, at the end of the wait.
        waited: seconds until the answer was given up.
        request: what was asked; it is assumed to generate as many tokens as it allows.
        proof: the answer to another request, alone on the same server.
        took: its seconds.
    """
    longest = _FACTOR * took * max(1.0, cost_of(request) / _generated(proof))
    return silence >= _LEAST * waited and silence > longest


def _generated(exchange: Exchange) -> int:
    """Return the tokens that an answer generated, at least 1.

    Those of its prompt do not count: a server reads hundreds of them in the time of one that it generates.
    """
    return max(1, *(_output_tokens(value) for value in (exchange.json, *exchange.chunks)))


def _output_tokens(value: Any) -> int:
    """Return the generated tokens in the usage of an answer or an event; 0 without usage."""
    if not isinstance(value, dict):
        return 0
    within = value.get("response")
    usage = value.get("usage") or (within.get("usage") if isinstance(within, dict) else None)
    if not isinstance(usage, dict):
        return 0
    counts = (usage.get(name) for name in ("completion_tokens", "output_tokens"))
    return max((count for count in counts if isinstance(count, int)), default=0)
