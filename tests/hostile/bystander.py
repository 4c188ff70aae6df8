"""Read streams one after the other, and report the longest silence of each tenth of a second on standard output.

Runs in a process of its own, so that making a hostile body cannot delay it. A line has two times of the monotonic
clock: when the last piece came, and the longest wait for a piece since the line before; and the number of events that
came since. A wait in which the server did not run counts only as long as it ran: then other work had the processor.
"""

from __future__ import annotations

import json
import socket
import sys
import time

from processor import own_time

BODY = json.dumps(
    {
        "model": "pocket",
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "stream": True,
        "ignore_eos": True,
        "max_tokens": 3500,
        "priority": -1,
    }
).encode()


def read_streams(port: int, server: int, key: str) -> None:
    """Read until the process is ended.

    Args:
        port: of the server.
        server: its process id.
        key: its API key; empty if it has none.
    """
    last, ran = time.monotonic(), own_time(server)
    reported, longest, events = last, 0.0, 0
    while True:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
                b"authorization: Bearer %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                % (key.encode() or b"none", len(BODY))
                + BODY
            )
            while piece := connection.recv(65536):
                if piece.startswith(b"HTTP/1.1 ") and not piece.startswith(b"HTTP/1.1 200"):
                    raise SystemExit(f"the bystander was refused: {piece[:400]!r}")
                now, running = time.monotonic(), own_time(server)
                longest = max(longest, min(now - last, running - ran))
                last, ran = now, running
                events += piece.count(b"data: ")
                if now - reported > 0.02:
                    print(f"{now:.4f} {longest:.4f} {events}", flush=True)
                    reported, longest, events = now, 0.0, 0


if __name__ == "__main__":
    read_streams(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
