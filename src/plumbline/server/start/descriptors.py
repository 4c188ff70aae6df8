"""Take as many file descriptors as connections may need, or allow fewer connections."""

from __future__ import annotations

import logging

import msgspec

from plumbline.server.settings import Settings

__all__ = ["with_descriptors"]

_log = logging.getLogger("plumbline.server")

_OWN = 64
"""Descriptors of the process besides connections: libraries, the log, the database, pipes."""


def with_descriptors(settings: Settings) -> Settings:
    """Raise this process's limit of descriptors, and return settings with no more connections than it has room for.

    A system that is out of descriptors accepts no connection, and the client learns nothing; `--max-connections`
    answers 503. Many systems start processes with 1,024 and allow a million.
    """
    try:
        import resource
    except ImportError:  # Windows
        return settings
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + _OWN
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return settings
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    if limit == wanted:
        return settings
    most = max(1, limit - _OWN)
    _log.warning(
        "--max-connections is %d, and the system gives this process %d descriptors: it takes %d connections (raise "
        "the limit with ulimit -n or LimitNOFILE)",
        settings.max_connections,
        limit,
        most,
    )
    return msgspec.structs.replace(settings, max_connections=most)
