"""Keep a conversation, ask for the next answer, and yield it piece by piece."""

from __future__ import annotations

import base64
import json
import mimetypes
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx2
import msgspec

__all__ = ["ChatSession", "Piece", "RefusedError"]

_PICTURE = re.compile(r"(?<!\S)(?:'([^']+)'|\"([^\"]+)\"|((?:\\ |\S)+))(?!\S)")
_KINDS = (".gif", ".jpeg", ".jpg", ".png", ".webp")
_MOST = 20 * 1024**2
"""Bytes of a picture."""
_NO_TEMPLATE = "no chat template"
_FIRST_BYTE = 600.0
"""Seconds for the next piece of an answer: a long prompt on a slow machine."""


class RefusedError(Exception):
    """The server did not answer; the message is its own, or says what is wrong."""


class _NoTemplateError(RefusedError):
    """The server refused messages, because the model has no chat template."""


class Piece(NamedTuple):
    """A piece of an answer."""

    kind: Literal["thinking", "text"]
    text: str


class ChatSession(msgspec.Struct, kw_only=True):
    """Messages of one conversation, and the fields that each request has."""

    model: str
    messages: list[dict[str, Any]] = []
    fields: dict[str, Any] = {}
    """Further fields of requests, such as temperature or tools."""
    usage: dict[str, Any] = {}
    """The usage of the last answer, as the server wrote it."""
    ignored: str = ""
    """The fields that the server did not know in the last request, as its header names them."""

    @property
    def system(self) -> str:
        """The instructions that come first; setting an empty text removes them."""
        first = self.messages[0] if self.messages else {}
        return str(first["content"]) if first.get("role") == "system" else ""

    @system.setter
    def system(self, text: str) -> None:
        if self.system:
            del self.messages[0]
        if text:
            self.messages.insert(0, {"role": "system", "content": text})

    def clear(self) -> None:
        """Forget all messages but the system's."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]

    def say(self, text: str) -> None:
        """Add a message of the user. Paths of pictures in it, also in quotes, become pictures.

        Raises:
            RefusedError: a picture cannot be read.
        """
        pictures = [path for path in map(_path, _PICTURE.finditer(text)) if path is not None]
        content: Any = text
        if pictures:
            content = [
                {"type": "text", "text": text},
                *({"type": "image_url", "image_url": {"url": _data(path)}} for path in pictures),
            ]
        self.messages.append({"role": "user", "content": content})

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls of the last answer that have no result yet."""
        answered = set()
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                return [call for call in message.get("tool_calls", ()) if call["id"] not in answered]
            answered.add(message.get("tool_call_id"))
        return []

    def result(self, call: dict[str, Any], text: str) -> None:
        """Add the result of a call."""
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    def answers(self, client: httpx2.Client) -> Generator[Piece]:
        """Ask for an answer and yield its pieces. What came of it is kept, even if the caller stops in the middle.

        A base model, which has no chat template, continues the last message instead.

        Raises:
            RefusedError: the server refuses the request, ends its answer with an error, or cannot be reached; the last
                message is taken back if nothing of an answer came.
        """
        answer = _Answer()
        try:
            try:
                yield from self._stream(client, "chat/completions", {"messages": self.messages}, answer)
            except _NoTemplateError:
                text = {"prompt": _text(self.messages[-1])}
                yield from self._stream(client, "completions", text, answer)
        except httpx2.HTTPError as error:
            raise RefusedError(f"the server cannot be reached: {error}") from error
        finally:
            self.usage = answer.usage
            if answer.text or answer.calls:
                self.messages.append(answer.message())
            elif self.messages and self.messages[-1]["role"] == "user":
                self.messages.pop()

    def _stream(
        self, client: httpx2.Client, path: str, prompt: dict[str, Any], answer: _Answer
    ) -> Iterator[Piece]:
        more = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        body, timeout = {**self.fields, **prompt, **more}, httpx2.Timeout(10, read=_FIRST_BYTE)
        with client.stream("POST", path, json=body, timeout=timeout) as got:
            if not got.is_success:
                reason = _error(got.read()) or f"the server answered {got.status_code}"
                raise (_NoTemplateError if _NO_TEMPLATE in reason else RefusedError)(reason)
            self.ignored = got.headers.get("x-plumbline-ignored", "")
            for line in got.iter_lines():
                if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
                    yield from answer.take(data)


class _Answer:
    """An answer that comes piece by piece."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: dict[int, dict[str, Any]] = {}
        self.usage: dict[str, Any] = {}

    def take(self, data: str) -> Iterator[Piece]:
        chunk = _object(data)
        if error := chunk.get("error"):
            raise RefusedError(_error(json.dumps({"error": error}).encode()))
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {"content": choice.get("text")}
            if thinking := delta.get("reasoning_content") or delta.get("reasoning"):
                yield Piece("thinking", thinking)
            if text := delta.get("content") or delta.get("refusal"):
                self.text += text
                yield Piece("text", text)
            for part in delta.get("tool_calls") or ():
                self._call(part)

    def _call(self, part: dict[str, Any]) -> None:
        call = self.calls.setdefault(
            part.get("index", 0), {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] += part.get("id") or ""
        for key, text in (part.get("function") or {}).items():
            call["function"][key] = call["function"].get(key, "") + (text or "")

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if self.calls:
            message["tool_calls"] = list(self.calls.values())
        return message


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else str(content[0]["text"])


def _object(data: str | bytes) -> dict[str, Any]:
    """Return a JSON object of a server, or an empty one for anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _error(body: bytes) -> str:
    error = _object(body).get("error")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error or "")


def _path(found: re.Match[str]) -> Path | None:
    text = (found[1] or found[2] or found[3]).replace("\\ ", " ")
    if not text.lower().endswith(_KINDS):
        return None
    try:
        path = Path(text).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _data(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST:
            raise RefusedError(f"{path} has more than {_MOST >> 20} MiB")
        kind = mimetypes.guess_type(path.name)[0] or "image/png"
        return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    except OSError as error:
        raise RefusedError(f"{path} cannot be read: {error.strerror}") from error
