"""Store chat completions and conversations."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from example_servers.reference.refusals import Refused

__all__ = ["Completions", "Conversations"]

Json = dict[str, Any]


def _listed(data: list[Json], *, more: bool = False) -> Json:
    ends = (
        {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        if data
        else {"first_id": None, "last_id": None}
    )
    return {"object": "list", "data": data, **ends, "has_more": more}


def _page(found: list[Json], query: dict[str, str]) -> Json:
    names = [item["id"] for item in found]
    found = found[names.index(query["after"]) + 1 :] if "after" in query else found
    limit = int(query.get("limit", 20))
    return _listed(found[:limit], more=len(found) > limit)


class Completions:
    """The stored chat completions (CHAT-16)."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Json, Json]] = {}
        """By id: the request and the answer."""

    def keep(self, body: Json, answer: Json) -> None:
        """Store an answer if the request has `store`."""
        self._kept[answer["id"]] = (body, answer)

    def route(self, method: str, name: str, action: str, body: Any, query: dict[str, str]) -> Json:
        """Handle every operation except creation."""
        if method == "GET" and not name:
            wanted = {key[9:-1]: value for key, value in query.items() if key.startswith("metadata[")}
            found = [answer for _, answer in self._kept.values()]
            found = [one for one in found if wanted.items() <= (one.get("metadata") or {}).items()]
            return _page(found[::-1] if query.get("order") == "desc" else found, query)
        if name not in self._kept:
            raise Refused(
                f"Completion {name} not found.", "completion_id", "completion_not_found", status=404
            )
        asked, answer = self._kept[name]
        match method, action:
            case "GET", "messages":
                messages = [{"id": f"{name}-{place}", **one} for place, one in enumerate(asked["messages"])]
                return _listed(messages)
            case "POST", "":
                self._kept[name] = (asked, {**answer, "metadata": body["metadata"]})
            case "DELETE", "":
                del self._kept[name]
                return {"id": name, "object": "chat.completion.deleted", "deleted": True}
        return self._kept[name][1]


@dataclass
class Conversation:
    """The items of a conversation, oldest first."""

    name: str
    items: list[Json] = field(default_factory=list)
    metadata: Json = field(default_factory=dict)
    made: int = field(default_factory=lambda: int(time.time()))
    deleted: set[str] = field(default_factory=set)

    @property
    def context(self) -> list[Json]:
        """Return the items as they were sent and made, without deleted ones."""
        named = zip(self._named(), self.items, strict=True)
        return [item for shown, item in named if shown["id"] not in self.deleted]

    @property
    def resource(self) -> Json:
        """Return the conversation as an answer has it."""
        head = {"id": self.name, "object": "conversation", "created_at": self.made}
        return {**head, "metadata": self.metadata}

    def page(self, query: dict[str, str]) -> Json:
        """List the items, newest first by default (ST-08)."""
        found = self.stored()
        if query.get("order") != "asc":
            found.reverse()
        return _page(found, query)

    def item(self, method: str, name: str) -> Json:
        """Return an item, or delete it."""
        found = next((item for item in self.stored() if item["id"] == name), None)
        if found is None:
            raise Refused(f"Item {name} not found.", "item_id", "item_not_found", status=404)
        if method == "DELETE":
            self.deleted.add(name)
            return self.resource
        return found

    def stored(self) -> list[Json]:
        """Return the items with their ids, without deleted ones."""
        return [item for item in self._named() if item["id"] not in self.deleted]

    def _named(self) -> list[Json]:
        return [_as_stored(f"in_{self.name}_{place}", item) for place, item in enumerate(self.items)]


class Conversations:
    """The conversations (ST-09)."""

    def __init__(self) -> None:
        self._begun = 0
        self._kept: dict[str, Conversation] = {}

    def of(self, body: Json) -> Conversation | None:
        """Return the conversation of a request, given by id or as an object."""
        named = body.get("conversation")
        name = named["id"] if isinstance(named, dict) else named
        return None if name is None else self._found(name)

    def _found(self, name: str) -> Conversation:
        if name not in self._kept:
            raise Refused(
                f"Conversation {name} not found.", "conversation", "conversation_not_found", status=404
            )
        return self._kept[name]

    def route(self, method: str, name: str, action: str, body: Any, query: dict[str, str]) -> Json:
        """Create a conversation, update it, list its items, or delete it."""
        if method == "POST" and not name:
            self._begun += 1
            name = f"conv_{self._begun}"
            given = body or {}
            made = Conversation(name, list(given.get("items") or ()), given.get("metadata") or {})
            self._kept[name] = made
            return made.resource
        found = self._found(name)
        if action.startswith("items/"):
            return found.item(method, action.removeprefix("items/"))
        if method == "DELETE":
            del self._kept[name]
            return {"id": name, "object": "conversation.deleted", "deleted": True}
        if action == "items" and method == "POST":
            found.items += body["items"]
            return _listed(found.stored()[-len(body["items"]) :])
        if action == "items":
            return found.page(query)
        if method == "POST":
            found.metadata = body["metadata"]
        return found.resource


def _as_stored(name: str, item: Json) -> Json:
    if not isinstance(item.get("content"), str):
        return {"id": name, **item}
    part = {"type": "input_text", "text": item["content"]}
    return {"id": name, **item, "content": [part], "status": "completed"}
