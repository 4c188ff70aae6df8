"""Reject checks that fail only because the server does not have the operation.

Checks need not handle this case: a problem in such an answer becomes the verdict `rejected`.
"""

from __future__ import annotations

from plumbline_conformance.checks.common import has_no_route
from plumbline_conformance.suite.scenario import Check
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["missing_operation"]

_ABOUT_ROUTES = {"HTTP-08", "HTTP-22", "WS-01"}
"""Rules about methods and paths that a server need not have."""
_ABOUT_404 = {"MOD-03", "ERR-06", "ST-02", "ST-03", "ST-05", *_ABOUT_ROUTES}
"""Rules about requests for objects that do not exist; their checks judge a 404 themselves."""


def missing_operation(found: Check, transcript: Transcript, names: set[str | None]) -> str | None:
    """Return why a check that found problems is rejected, or None if the operations exist.

    Args:
        found: the check.
        transcript: the judged transcript.
        names: the exchanges of its problems.
    """
    exchanges = transcript.exchanges
    broken = [exchange for exchange in exchanges if exchange.name in names]
    for one in broken:
        same = [other for other in exchanges if (other.method, other.url) == (one.method, one.url)]
        if not all(map(has_no_route, same)) or _says_so(found, one):
            return None
    first = broken[0]
    return f"there is no {first.method} {_path(first)}: status {first.status}"


def _says_so(found: Check, exchange: Exchange) -> bool:
    """Return whether the check itself is about this status."""
    return bool(set(found.rules) & (_ABOUT_404 if exchange.status == 404 else _ABOUT_ROUTES))


def _path(exchange: Exchange) -> str:
    path = exchange.path
    return path[path.find("/v1/") + 3 :] if "/v1/" in path else path
