"""Ask a server over HTTP with the standard library alone."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

__all__ = ["get", "post"]


def get(url: str) -> dict[str, Any]:
    """Return the JSON of an answer."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of the answer to a body."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
