"""Say what a path that nobody serves was probably meant to be."""

from __future__ import annotations

__all__ = ["advice"]

_SERVED = ("/chat/completions", "/completions", "/responses", "/conversations", "/models", "/messages")
"""Paths below `/v1`; what follows them does not matter."""
_NOT_SERVED = {
    "/v1/messages/batches": "Batches of messages are not served: send each as a request of its own.",
    "/v1/embeddings": "Embeddings are not served: this API is chat completions, completions, Responses and Messages.",
    "/v1/batches": "Batches are not served: send each request by itself.",
    "/v1/files": "Files are not kept: send their content in the request.",
    "/v1/assistants": "Assistants are not served: Responses and conversations replace them.",
    "/v1/threads": "Assistants are not served: Responses and conversations replace them.",
    "/v1/realtime": "The Realtime API is not served: /v1/responses takes WebSockets of text.",
    "/v1/audio": "Audio is not served: chat completions take `input_audio` where the model hears.",
    "/v1/images": "Images are not made: chat completions and Responses read them where the model sees.",
    "/api/chat": "This is the path of another API: use /v1/chat/completions.",
    "/api/generate": "This is the path of another API: use /v1/completions.",
}
"""Advice by what a path begins with."""


def advice(path: str) -> str:
    """Return a sentence about an unknown path, with a space before it, or an empty text."""
    for start, text in _NOT_SERVED.items():
        if _below(path, start):
            return f" {text}"
    once = path.removeprefix("/v1")
    if once != path and _is_served(once.removeprefix("/v1")) and once.startswith("/v1/"):
        return " The base URL of a client ends in /v1, and its paths begin after that: /v1 is here twice."
    if _is_served(path):
        return f" Did you mean /v1{path}? The base URL of a client ends in /v1."
    return ""


def _is_served(path: str) -> bool:
    return any(_below(path, start) for start in _SERVED)


def _below(path: str, start: str) -> bool:
    return path == start or path.startswith(f"{start}/")
