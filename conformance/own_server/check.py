"""`nox -s conformance`: judge our own server, started as a process of its own, or any other one by its URL."""

from __future__ import annotations

import sys

from own_server.launch import KEY, MODEL, DidNotStart, launched_server
from plumbline_conformance.cli import check, main
from plumbline_conformance.suite.model import Target

__all__ = ["run"]


def run() -> int:
    """With arguments, the same as `plumbline check`; without, our server with the pocket model."""
    if len(sys.argv) > 1:
        return main(["check", *sys.argv[1:]])
    try:
        # With a key, so that what servers do with wrong ones is judged as well (HTTP-06).
        with launched_server(KEY) as base_url:
            return check(Target(base_url=base_url, model=MODEL, api_key=KEY), trials=3)
    except DidNotStart:
        print("the server did not come up", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(run())
