"""Decide how much of a bounded room one client may have while others have some of it."""

from __future__ import annotations

__all__ = ["within_share"]


def within_share(own: int, more: int, used: int, limit: int) -> bool:
    """Return whether a client may take more of a room that cannot be taken back.

    Beside others it may have twice what it leaves free, and the last place goes only to a client that has none. So
    however many clients take all that they can get, the next one finds room. (Switches share the memory of their ports
    in this way: dynamic thresholds, Choudhury and Hahne 1998.)

    Args:
        own: what the client has.
        more: what it wants.
        used: what all clients have, this one included.
        limit: what all may have.

    >>> within_share(own=20, more=1, used=50, limit=64)
    True
    >>> within_share(own=26, more=1, used=52, limit=64)
    False
    """
    free = limit - used - more
    return free >= 0 and (own in (0, used) or own + more <= 2 * free)
