"""Clients that send requests all the time, and count those that fail."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx2
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect

from .fleet import MESSAGES

__all__ = ["Load", "load"]

CHAT = {"model": "m", "messages": MESSAGES, "max_tokens": 8, "ignore_eos": True}
TURN = {"type": "response.create", "model": "m", "input": "hi", "max_output_tokens": 16, "store": False}
CLIENTS = 3
"""Of each kind."""
PAUSE = 0.02
"""Seconds between two requests of a client. Their answers take longer."""


class Load:
    """What the clients have seen. A request fails if its client cannot safely send it again.

    Args:
        url: the address.
        headers: of each request.
    """

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        self._headers = headers
        self._stopping = threading.Event()
        self.answered = Counter[str]()
        self.repeated = Counter[str]()
        self.failed: list[str] = []

    def run(self, send: Callable[[Load, httpx2.Client], None]) -> None:
        """Send requests of one kind on connections that are kept."""
        with httpx2.Client(base_url=self._url, headers=self._headers, timeout=60) as client:
            while not self._stopping.is_set():
                try:
                    send(self, client)
                except Exception as error:
                    self.failed.append(f"{time.strftime('%X')} {send.__name__}: {error!r}")
                else:
                    self.answered[send.__name__] += 1
                time.sleep(PAUSE)

    def stop(self) -> None:
        """Let each client finish its request."""
        self._stopping.set()

    def whole(self, client: httpx2.Client) -> None:
        """A chat whose answer comes at once."""
        answer = client.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 200, f"{answer.status_code} {answer.text[:300]}"
        assert answer.json()["choices"][0]["finish_reason"] == "length"

    def streamed(self, client: httpx2.Client) -> None:
        """A chat that is streamed for a second or so."""
        body = {**CHAT, "max_tokens": 300, "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert answer.status_code == 200, f"{answer.status_code} {lines[:3]}"
        assert lines[-1] == "data: [DONE]", lines[-1]
        assert '"error"' not in lines[-2], lines[-2]

    def read(self, client: httpx2.Client) -> None:
        """A GET, which may be sent again, once."""
        for again in (True, False):
            with contextlib.suppress(httpx2.TransportError):
                answer = client.get("/v1/models")
                if answer.status_code == 200:
                    return
            if again:
                self.repeated["read"] += 1
        raise AssertionError("a GET failed twice")

    def socket(self, client: httpx2.Client) -> None:
        """Turns on a WebSocket; one that has not begun may be sent again on another connection."""
        begun = False
        with contextlib.suppress(InvalidHandshake, ConnectionClosed, OSError):
            url = f"{self._url.replace('http', 'ws')}/v1/responses"
            with connect(url, additional_headers=self._headers) as socket:
                for _ in range(20):
                    socket.send(json.dumps(TURN))
                    begun = False
                    while True:
                        event = json.loads(socket.recv(60))
                        if event["type"] == "error" and event["status"] == 503 and not begun:
                            self.repeated["socket"] += 1
                            return
                        assert event["type"] not in ("error", "response.failed"), event
                        begun = True
                        if event["type"] in ("response.completed", "response.incomplete"):
                            begun = False
                            break
                return
        assert not begun, "a turn broke off"
        self.repeated["socket"] += 1


@contextmanager
def load(url: str, **headers: str) -> Iterator[Load]:
    """Send requests of all kinds while the block runs."""
    found = Load(url, headers)
    kinds = (Load.whole, Load.streamed, Load.read, Load.socket)
    threads = [
        threading.Thread(target=found.run, args=(kind,), daemon=True)
        for kind in kinds
        for _ in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        found.stop()
        for thread in threads:
            thread.join(90)
