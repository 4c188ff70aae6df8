"""Rules of records: what a key stores, and what others get of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from support.tenants.machine import CHANGES, KINDS, NUMBER, OWNED, WHO, YES, TenantMachine, drives
from support.tenants.world import PATHS, Json, Tenant, invented

__all__ = ["RecordRules"]


def _by_name(ask: Callable[..., Any], kind: str, name: str) -> Any:
    """Ask for a record by its id, in the path's parameter of its kind."""
    return ask(**{kind: name})


def _by_fields(ask: Callable[..., Any], fields: Callable[[str], Json], more: Json, name: str) -> Any:
    """Send a request whose fields name a record."""
    return ask({**fields(name), **more})


class RecordRules(TenantMachine):
    """Rules of records: what a key stores, and what others get of it."""

    @drives("createConversation", "createConversationItems")
    @rule(who=WHO, other=WHO, number=NUMBER, add=YES)
    def converse(self, who: int, other: int, number: int, add: bool) -> None:
        """Conversations belong to their key, also with items that have the ids of others' items."""
        me, you = self.people[who], self.people[other]
        item: Json = {"type": "message", "role": "user", "content": f"hello {me.word}"}
        theirs = you.own(you.own("conversation_id", number) or "", number)
        if theirs and you is not me and theirs not in me.adopted:
            answers = [
                self.run(self.world.ask(me, "createConversation", {"items": [{**item, "id": name}]}))
                for name in (theirs, invented(theirs))
            ]
            assert answers[0].status == answers[1].status, answers[0].body
            me.adopted.add(theirs)
        conversation = me.own("conversation_id", number) if add else None
        if conversation is None:
            made = self.run(self.world.want(me, "createConversation", {"items": [item]})).json
            conversation = made["id"]
            me.records["conversation_id"].append(conversation)
            self.world.note(me, made)
        else:
            added = self.run(
                self.world.ask(me, "createConversationItems", {"items": [item]}, conversation_id=conversation)
            )
            assert added.status == 200 or added.error["code"] == "conversation_locked", added.body
        found = self.run(self._all(me, "listConversationItems", conversation_id=conversation))
        me.records[conversation] = [each["id"] for each in found]
        self.world.note(me, found)

    async def _all(self, me: Tenant, operation: str, query: str = "", **ids: str) -> list[Json]:
        """Read a list page by page; `has_more` and the ends of each page have to fit."""
        found: list[Json] = []
        while True:
            after = f"&after={found[-1]['id']}" if found else ""
            page = (
                await self.world.want(me, operation, None, f"?order=asc&limit=2{query}{after}", **ids)
            ).json
            found += page["data"]
            assert len(page["data"]) == 2 or not page["has_more"], page
            if not page["has_more"]:
                return found

    @drives("listChatCompletions", "listInputItems", "listConversationItems")
    @rule(who=WHO, number=NUMBER)
    def lists(self, who: int, number: int) -> None:
        """Lists have what the key has, and end where that ends."""
        me = self.people[who]
        for query in ("", "&metadata[shared]=value"):
            chats = self.run(self._all(me, "listChatCompletions", query))
            assert {each["id"] for each in chats} <= set(me.records["completion_id"])
            if not query:
                assert [each["id"] for each in chats] == me.records["completion_id"]
        if (response := me.own("response_id", number)) is not None:
            self.run(self._all(me, "listInputItems", response_id=response))

    @drives(*OWNED)
    @rule(who=WHO, operation=st.sampled_from(OWNED), number=NUMBER, stream=YES)
    def use(self, who: int, operation: str, number: int, stream: bool) -> None:
        """Whatever the others do, a key reads, changes and deletes what it has."""
        me = self.people[who]
        path = PATHS[operation].path
        kinds = [
            each for each in ("response_id", "completion_id", "conversation_id") if f"{{{each}}}" in path
        ]
        names = {kind: me.own(kind, number) for kind in kinds}
        if "{item_id}" in path:
            names["item_id"] = me.own(names["conversation_id"] or "", number)
        if None in names.values():
            return
        query = "?stream=true" if operation == "getResponse" and stream else ""
        answer = self.run(self.world.ask(me, operation, CHANGES.get(operation), query, **names))
        if answer.status == 409:  # A response of its own in the background works on the conversation.
            assert answer.error["code"] == "conversation_locked", answer.body
            return
        assert answer.status == 200 or operation == "cancelResponse", answer.body
        if operation.startswith("delete") or operation == "createConversationItems":
            if "item_id" in names:
                me.records[names["conversation_id"] or ""].remove(names["item_id"] or "")
            elif operation.startswith("delete"):
                me.forget(kinds[0], names[kinds[0]] or "")

    @drives(*OWNED)
    @rule(who=WHO, other=WHO, number=NUMBER, query=NUMBER)
    def probe(self, who: int, other: int, number: int, query: int) -> None:
        """What another key has is answered as what nobody has, whatever a request would do with it."""
        me, you = self.people[who], self.people[other]
        for operation in OWNED if me is not you else ():
            path, method = PATHS[operation].path, PATHS[operation].method
            (kind,) = [each for each in KINDS if f"{{{each}}}" in path]
            theirs = you.own(kind, number)
            if theirs is not None:
                more = {"item_id": you.own(theirs, number) or "msg_none"} if "{item_id}" in path else {}
                asked = ("", "?stream=true", "?limit=1", "?after=msg_none")[query] if method == "GET" else ""
                ask = partial(self.world.ask, me, operation, CHANGES.get(operation), asked, **more)
                self.as_unknown(theirs, partial(_by_name, ask, kind))

    @drives("getConversationItem", "deleteConversationItem", "listConversationItems", "listChatCompletions")
    @rule(who=WHO, other=WHO, number=NUMBER)
    def borrow(self, who: int, other: int, number: int) -> None:
        """The items and chats of another key are in no conversation, and at no place of a list, of one's own."""
        me, you = self.people[who], self.people[other]
        if me is you:
            return
        conversation = me.own("conversation_id", number)
        theirs = you.own(you.own("conversation_id", number) or "", number)
        if conversation and theirs and theirs not in me.adopted:
            for operation in ("getConversationItem", "deleteConversationItem"):
                ask = partial(self.world.ask, me, operation, conversation_id=conversation)
                self.as_unknown(theirs, partial(_by_name, ask, "item_id"))
            ask = partial(self.world.ask, me, "listConversationItems", None, conversation_id=conversation)
            self.as_unknown(theirs, lambda name: ask(f"?after={name}"))
        if chat := you.own("completion_id", number):
            ask = partial(self.world.ask, me, "listChatCompletions", None)
            self.as_unknown(chat, lambda name: ask(f"?after={name}"), statuses=(200, 400, 404))

    @drives("createResponse", "countResponseInputTokens", "compactResponse")
    @rule(who=WHO, other=WHO, number=NUMBER, stream=YES)
    def refer(self, who: int, other: int, number: int, stream: bool) -> None:
        """A request that names what another key has is answered as one that names nothing."""
        me, you = self.people[who], self.people[other]
        if me is you:
            return
        for operation in ("createResponse", "countResponseInputTokens", "compactResponse"):
            places: tuple[tuple[str, Callable[[str], Json]], ...] = (
                ("response_id", lambda name: {"previous_response_id": name, "input": "hi"}),
                ("conversation_id", lambda name: {"conversation": name, "input": "hi"}),
                ("item", lambda name: {"input": [{"type": "item_reference", "id": name}]}),
            )
            for kind, fields in places:
                if kind == "conversation_id" and operation == "compactResponse":
                    continue
                if kind == "item":
                    theirs = you.own(you.own("conversation_id", number) or "", number)
                else:
                    theirs = you.own(kind, number)
                if theirs is None or theirs in me.adopted:
                    continue
                more = {"model": "plainest", **({"stream": stream} if operation == "createResponse" else {})}
                ask = partial(self.world.ask, me, operation)
                self.as_unknown(theirs, partial(_by_fields, ask, fields, more))
