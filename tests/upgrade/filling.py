"""Fill a store with everything that clients can keep, and read all of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx2

__all__ = ["Client", "Filled"]

_RESPONSE: dict[str, Any] = {"model": "m", "input": "Hello", "max_output_tokens": 16}
_CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 16,
    "store": True,
    "metadata": {"made": "before"},
}
_TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
_CHAT_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
_DONE = ("completed", "incomplete", "failed", "cancelled")


@dataclass(frozen=True)
class Filled:
    """What is in a store."""

    response: str
    conversation: str
    chat: str
    compacted: list[Any]
    """What only servers with the secret of the store can read."""
    seen: dict[str, Any]
    """What each path answered."""


class Client:
    """A client of one address.

    Args:
        address: the URL of the server.
    """

    def __init__(self, address: str) -> None:
        self._http = httpx2.Client(base_url=address, timeout=60)

    def get(self, path: str) -> Any:
        """Return the JSON, or the status of an error."""
        answer = self._http.get(path)
        return answer.json() if answer.status_code == 200 else answer.status_code

    def post(self, path: str, **body: Any) -> Any:
        """Return the JSON of an answer."""
        answer = self._http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def delete(self, path: str) -> None:
        """Delete something."""
        answer = self._http.delete(path)
        assert answer.status_code == 200, answer.text

    def respond(self, **fields: Any) -> Any:
        """Make a response."""
        return self.post("/v1/responses", **{**_RESPONSE, **fields})

    def chat(self, **fields: Any) -> Any:
        """Make a chat completion that is stored."""
        return self.post("/v1/chat/completions", **{**_CHAT, **fields})

    def begin(self) -> str:
        """Begin a response in the background that takes long."""
        made: str = self.respond(background=True, max_output_tokens=20_000, ignore_eos=True)["id"]
        return made

    def ended(self, name: str) -> str:
        """Wait for the end of a response in the background; return its status."""
        end = time.monotonic() + 60
        while (status := self.get(f"/v1/responses/{name}")["status"]) not in _DONE:
            assert time.monotonic() < end
            time.sleep(0.1)
        return str(status)

    def fill(self) -> Filled:
        """Store something of every kind."""
        conversation = self.post("/v1/conversations", metadata={"made": "before"})["id"]
        message = {"type": "message", "role": "user", "content": "Remember this."}
        self.post(f"/v1/conversations/{conversation}/items", items=[message])
        first = self.respond(metadata={"made": "before"})["id"]
        late = self.respond(background=True)["id"]
        self.ended(late)
        schema = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": False}
        responses = [
            first,
            late,
            self._streamed(),
            self._streamed(background=True),
            *(
                self.respond(**fields)["id"]
                for fields in (
                    {"previous_response_id": first, "instructions": "Be brief."},
                    {"conversation": conversation},
                    {"tools": [_TOOL], "tool_choice": {"type": "function", "name": "look"}},
                    {"text": {"format": schema}},
                    {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]},
                )
            ),
        ]
        chats = [
            self.chat(**fields)["id"]
            for fields in ({}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"tools": [_CHAT_TOOL]})
        ]
        paths = [f"/v1/conversations/{conversation}", f"/v1/conversations/{conversation}/items?limit=100"]
        for name in responses:
            paths += [f"/v1/responses/{name}", f"/v1/responses/{name}/input_items?limit=100"]
        for name in chats:
            paths += [f"/v1/chat/completions/{name}", f"/v1/chat/completions/{name}/messages"]
        paths.append("/v1/chat/completions?limit=100")
        for path, made in (("responses", self.respond), ("chat/completions", self.chat)):
            gone = f"/v1/{path}/{made()['id']}"
            self.delete(gone)
            paths.append(gone)
        compacted = self.post("/v1/responses/compact", model="m", input="A long story.")["output"]
        return Filled(first, conversation, chats[0], compacted, self.read(paths))

    def read(self, paths: Iterable[str]) -> dict[str, Any]:
        """Return what each path answers."""
        return {path: self.get(path) for path in paths}

    def go_on(self, filled: Filled) -> None:
        """Continue, change and delete what another version has stored."""
        made = self.respond(previous_response_id=filled.response)
        assert made["previous_response_id"] == filled.response
        message = {"type": "message", "role": "user", "content": "Go on."}
        self.respond(input=[*filled.compacted, message])  # A 400 if it were sealed for another server.
        path = f"/v1/conversations/{filled.conversation}"
        before = len(self.get(f"{path}/items?limit=100")["data"])
        self.respond(conversation=filled.conversation)
        assert len(self.get(f"{path}/items?limit=100")["data"]) == before + 2
        chat = f"/v1/chat/completions/{filled.chat}"
        for changed in (path, chat):
            assert self.post(changed, metadata={"made": "after"})["metadata"] == {"made": "after"}
        for deleted in (path, chat, f"/v1/responses/{filled.response}"):
            self.delete(deleted)
            assert self.get(deleted) == 404

    def _streamed(self, **fields: Any) -> str:
        body = {**_RESPONSE, **fields, "stream": True}
        with self._http.stream("POST", "/v1/responses", json=body) as answer:
            lines = [line for line in answer.iter_lines() if line.startswith("data: {")]
        name: str = json.loads(lines[0].removeprefix("data: "))["response"]["id"]
        return name
