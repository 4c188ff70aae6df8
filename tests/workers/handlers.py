"""Handlers that keep or break the bounds of a worker."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any


def make(data: bytes) -> Any:
    """Return a handler that follows the first word of its payload."""

    def handle(payload: bytes) -> bytes:
        match payload.split():
            case [b"echo", *rest]:
                return data + b" ".join(rest)
            case [b"pid"]:
                return str(os.getpid()).encode()
            case [b"spin"]:
                while True:
                    pass
            case [b"sleep"]:
                time.sleep(60)
                return b""
            case [b"native"]:  # One call of C that holds the interpreter lock.
                return str(pow(3, 10**9)).encode()
            case [b"take", size]:
                kept = bytearray(int(size))
                return str(len(kept)).encode()
            case [b"give", size]:
                return bytes(int(size))
            case [b"segfault"]:
                return ctypes.string_at(0)
            case [b"abort"]:
                os.abort()
            case [b"exit"]:
                os._exit(0)
            case _:
                raise ValueError("no such order")

    return handle
