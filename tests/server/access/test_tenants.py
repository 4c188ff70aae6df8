"""A key is a tenant: nothing of one key is seen, counted or held up by another, whatever the three of them do.

- No answer has a text, an id, a hidden model or a path of others, and none differs from that of a server without them:
  what belongs to another key is answered as what does not exist.
- Lists, pages and limits are those of the key alone, and so is what the prefix cache tells.
- A key that asks for all that it can get keeps no other from its share.
- Every operation of the contract, and every other route, is driven, or there is a reason why not.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from support.laws import EXPLORED
from support.servers.asgi import Answer
from support.servers.tenants import PATHS, Tenant, World, alike, invented, until, world

from plumbline.server.page.routes import OPEN_PATHS

Json = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])

SELF = {
    "getHealth": "has nothing of a key and needs none",
    "getHealthLive": "has nothing of a key and needs none",
    "getHealthReady": "has nothing of a key and needs none",
}
"""Operations that no rule drives, and why."""
DRIVEN: set[str] = set()
WHO = st.integers(0, 2)
NUMBER = st.integers(0, 3)
YES = st.booleans()
LONG = {"max_output_tokens": 300, "ignore_eos": True}
CHANGES: dict[str, Json | None] = {
    "updateChatCompletion": {"metadata": {"changed": "yes"}},
    "updateConversation": {"metadata": {"changed": "yes"}},
    "createConversationItems": {"items": [{"role": "user", "content": "changed"}]},
    "cancelResponse": None,
}
"""The bodies of operations that change a record, by their ids."""
KINDS = ("response_id", "completion_id", "conversation_id")
OWNED = [name for name, each in PATHS.items() if "{" in each.path and name != "retrieveModel"]


def drives(*operations: str) -> Callable[[F], F]:
    """Say which operations a rule requests."""
    DRIVEN.update(operations)
    return lambda function: function


class Tenants(RuleBasedStateMachine):
    """Three keys that do all that keys can do, one step after the other; what runs goes on meanwhile."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        self.world = self.run(self.stack.enter_async_context(world(Path(folder))))
        self.people = self.world.people

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.loop.close()

    # Answers

    @drives("createChatCompletion", "createCompletion", "createMessage")
    @rule(who=WHO, model=NUMBER, topic=NUMBER, api=NUMBER, stream=YES)
    def generate(self, who: int, model: int, topic: int, api: int, stream: bool) -> None:
        """Answers have nothing of others, and find cached only what the same key has sent."""
        me = self.people[who]
        name = me.models[model % 2]
        words = f"{me.text(topic)} {me.word}"
        messages = [{"role": "user", "content": words}]
        operation, body = (
            ("createChatCompletion", {"messages": messages, "max_tokens": 8}),
            ("createCompletion", {"prompt": words, "max_tokens": 8}),
            ("createMessage", {"messages": messages, "max_tokens": 8}),
        )[api % 3]
        found = self.run(self.world.want(me, operation, {"model": name, "stream": stream, **body}))
        self._cached(me, name, topic, {} if stream else found.json["usage"])

    @drives("createChatCompletion")
    @rule(who=WHO, model=NUMBER, topic=NUMBER)
    def keep(self, who: int, model: int, topic: int) -> None:
        """Chats that are kept belong to their key."""
        me = self.people[who]
        body = {
            "model": me.models[model % 2],
            "messages": [{"role": "user", "content": f"{me.text(topic)} {me.word}"}],
            "max_tokens": 4,
            "store": True,
            "metadata": {"shared": "value"},
        }
        found = self.run(self.world.want(me, "createChatCompletion", body)).json
        self.world.note(me, found)
        me.records["completion_id"].append(found["id"])
        self._cached(me, body["model"], topic, found["usage"])

    def _cached(self, me: Tenant, model: str, topic: int, usage: Json) -> None:
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
        cached = details.get("cached_tokens", usage.get("cache_read_input_tokens")) or 0
        served = "tiny" if model in ("alphaone", "betatwo") else model
        if not {(served, topic)} & me.prompts:
            assert cached == 0, f"{me.name} has never sent topic {topic}, and {cached} tokens are cached"
        me.prompts.add((served, topic))

    @drives("createResponse")
    @rule(who=WHO, model=NUMBER, topic=NUMBER, past=NUMBER, number=NUMBER, stream=YES)
    def respond(self, who: int, model: int, topic: int, past: int, number: int, stream: bool) -> None:
        """Responses continue what their key has, and are kept for it."""
        me = self.people[who]
        response, conversation = me.own("response_id", number), me.own("conversation_id", number)
        more: Json = {}
        if past == 1 and response:
            more = {"previous_response_id": response}
        if past == 2 and conversation:
            more = {"conversation": conversation}
        body = {
            "model": me.models[model % 2],
            "input": f"{me.word} {topic}",
            "max_output_tokens": 16,
            "include": ["reasoning.encrypted_content"],
            "stream": stream,
            "truncation": "auto",
        }
        answer = self.run(self.world.ask(me, "createResponse", {**body, **more}))
        if answer.status != 200:
            assert self._may_fail(answer, more), answer.body
            return
        found = answer.events[-2].json["response"] if stream else answer.json
        self.world.note(me, found)
        me.records["response_id"].append(found["id"])
        me.sealed += [item for item in found["output"] if item.get("encrypted_content")][:1]

    @staticmethod
    def _may_fail(answer: Any, more: Json) -> bool:
        """Whether this is the error of a context that is too long, or of one that is not whole yet."""
        return bool(more) and answer.error["code"] in (
            "context_length_exceeded",
            "previous_response_in_progress",
            "conversation_locked",
        )

    @drives("compactResponse", "createResponse")
    @rule(who=WHO, other=WHO, compact=YES)
    def seal(self, who: int, other: int, compact: bool) -> None:
        """What is sealed for a key opens for it, and for no other."""
        me, you = self.people[who], self.people[other]
        if compact:
            body = {"model": "plainest", "input": f"{me.word} to remember"}
            found = self.run(self.world.want(me, "compactResponse", body)).json
            me.sealed += [item for item in found["output"] if item.get("encrypted_content")]
        if me.sealed:
            item = {name: value for name, value in me.sealed[-1].items() if name != "id"}
            sent = {
                "model": "plainest",
                "input": [item, {"role": "user", "content": "go on"}],
                "store": False,
            }
            answer = self.run(self.world.ask(you, "createResponse", {**sent, "max_output_tokens": 16}))
            assert answer.status == (200 if me is you else 400), answer.body

    @drives("countResponseInputTokens", "countMessageTokens", "tokenize", "detokenize", "getTokenizerInfo")
    @rule(who=WHO, model=NUMBER)
    def count(self, who: int, model: int) -> None:
        """Counts are of the request alone, and of models of the key."""
        me = self.people[who]
        name = me.models[model % 2]
        messages = [{"role": "user", "content": me.word}]
        ask = self.world.want
        self.run(ask(me, "countResponseInputTokens", {"model": name, "input": me.word}))
        self.run(ask(me, "countMessageTokens", {"model": name, "messages": messages}))
        tokens = self.run(ask(me, "tokenize", {"model": name, "prompt": me.word})).json["tokens"]
        self.run(ask(me, "detokenize", {"model": name, "tokens": tokens}))
        self.run(ask(me, "getTokenizerInfo", None, f"?model={name}"))

    # Records

    @drives("createConversation", "createConversationItems")
    @rule(who=WHO, other=WHO, number=NUMBER, add=YES)
    def converse(self, who: int, other: int, number: int, add: bool) -> None:
        """Conversations belong to their key, also with items that have the ids of others' items."""
        me, you = self.people[who], self.people[other]
        item: Json = {"type": "message", "role": "user", "content": f"hello {me.word}"}
        theirs = you.own(you.own("conversation_id", number) or "", number)
        if theirs and you is not me and theirs not in me.words:
            answers = [
                self.run(self.world.ask(me, "createConversation", {"items": [{**item, "id": name}]}))
                for name in (theirs, invented(theirs))
            ]
            assert answers[0].status == answers[1].status, answers[0].body
        conversation = me.own("conversation_id", number) if add else None
        if conversation is None:
            made = self.run(self.world.want(me, "createConversation", {"items": [item]})).json
            conversation = made["id"]
            me.records["conversation_id"].append(conversation)
            self.world.note(me, made)
        else:
            self.run(
                self.world.want(
                    me, "createConversationItems", {"items": [item]}, conversation_id=conversation
                )
            )
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
        assert answer.status == 200 or operation == "cancelResponse", answer.body
        if operation.startswith("delete") or operation == "createConversationItems":
            if "item_id" in names:
                me.records[names["conversation_id"]].remove(names["item_id"])
            elif operation.startswith("delete"):
                me.forget(kinds[0], names[kinds[0]])

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
                self._as_unknown(theirs, lambda name, ask=ask, kind=kind: ask(**{kind: name}))

    @drives("getConversationItem", "deleteConversationItem", "listConversationItems", "listChatCompletions")
    @rule(who=WHO, other=WHO, number=NUMBER)
    def borrow(self, who: int, other: int, number: int) -> None:
        """The items and chats of another key are in no conversation, and at no place of a list, of one's own."""
        me, you = self.people[who], self.people[other]
        if me is you:
            return
        conversation = me.own("conversation_id", number)
        theirs = you.own(you.own("conversation_id", number) or "", number)
        if conversation and theirs and theirs not in me.words:
            for operation in ("getConversationItem", "deleteConversationItem"):
                ask = partial(self.world.ask, me, operation, conversation_id=conversation)
                self._as_unknown(theirs, lambda name, ask=ask: ask(item_id=name))
            ask = partial(self.world.ask, me, "listConversationItems", None, conversation_id=conversation)
            self._as_unknown(theirs, lambda name: ask(f"?after={name}"))
        if chat := you.own("completion_id", number):
            ask = partial(self.world.ask, me, "listChatCompletions", None)
            self._as_unknown(chat, lambda name: ask(f"?after={name}"), statuses=(200, 400, 404))

    def _as_unknown(
        self,
        theirs: str,
        ask: Callable[[str], Coroutine[Any, Any, Answer]],
        statuses: tuple[int, ...] = (400, 404),
    ) -> None:
        """Ask with an id of another key and with one that nobody has: the answers are the same."""
        none = invented(theirs)
        found, unknown = (self.run(ask(name)) for name in (theirs, none))
        assert found.status in statuses, found.body
        alike(found, theirs, unknown, none)

    @drives("createResponse", "countResponseInputTokens", "compactResponse")
    @rule(who=WHO, other=WHO, number=NUMBER, stream=YES)
    def refer(self, who: int, other: int, number: int, stream: bool) -> None:
        """A request that names what another key has is answered as one that names nothing."""
        me, you = self.people[who], self.people[other]
        if me is you:
            return
        for operation in ("createResponse", "countResponseInputTokens", "compactResponse"):
            for kind, fields in (
                ("response_id", lambda name: {"previous_response_id": name, "input": "hi"}),
                ("conversation_id", lambda name: {"conversation": name, "input": "hi"}),
                ("item", lambda name: {"input": [{"type": "item_reference", "id": name}]}),
            ):
                if kind == "conversation_id" and operation == "compactResponse":
                    continue
                if kind == "item":
                    theirs = you.own(you.own("conversation_id", number) or "", number)
                else:
                    theirs = you.own(kind, number)
                if theirs is None or theirs in me.words:
                    continue
                more = {"model": "plainest", **({"stream": stream} if operation == "createResponse" else {})}
                ask = partial(self.world.ask, me, operation)
                self._as_unknown(
                    theirs, lambda name, ask=ask, fields=fields, more=more: ask({**fields(name), **more})
                )

    # Work that goes on

    @drives("createResponse", "getResponse", "cancelResponse", "deleteResponse")
    @rule(who=WHO, other=WHO, number=NUMBER, end=YES)
    def run_behind(self, who: int, other: int, number: int, end: bool) -> None:
        """Nobody else sees, follows, cancels or deletes a response in the background, or its conversation's lock."""
        me, you = self.people[who], self.people[other]
        conversation = me.own("conversation_id", number)
        body = {"model": me.models[1], "input": me.word, "background": True, "truncation": "auto", **LONG}
        if conversation:
            body["conversation"] = conversation
        answer = self.run(self.world.ask(me, "createResponse", body))
        if answer.status != 200:
            assert answer.status == 429 or self._may_fail(answer, body), answer.body
            return
        name = answer.json["id"]
        self.world.note(me, answer.json)
        if me is not you:
            for operation, query in (
                ("getResponse", ""),
                ("getResponse", "?stream=true"),
                ("cancelResponse", ""),
                ("deleteResponse", ""),
            ):
                ask = partial(self.world.ask, you, operation, None, query)
                self._as_unknown(name, lambda each, ask=ask: ask(response_id=each))
            if conversation:
                ask = partial(self.world.ask, you, "createResponse")
                self._as_unknown(
                    conversation, lambda each: ask({"model": "plainest", "input": "x", "conversation": each})
                )
        if end:
            found = self.run(self.world.want(me, "cancelResponse", response_id=name)).json
            assert found["status"] in ("cancelled", "completed", "incomplete"), found
            self.run(self.world.want(me, "deleteResponse", response_id=name))
        else:
            me.records["response_id"].append(name)

    @drives("createResponse")
    @rule(who=WHO, stream=YES)
    def leave(self, who: int, stream: bool) -> None:
        """A client that leaves changes nothing for the others."""
        me = self.people[who]

        async def left() -> None:
            body = {"model": me.models[1], "input": me.word, "stream": stream, "store": False, **LONG}
            exchange = self.world.open(me, "createResponse", body)
            await asyncio.sleep(0.002)
            exchange.leave()
            await exchange.finished()

        self.run(left())

    @drives("createResponse", "createChatCompletion", "getResponse", "deleteResponse")
    @rule(who=WHO, behind=YES)
    def crowd(self, who: int, behind: bool) -> None:
        """A key that asks for all that it can get keeps no other from beginning, or from ending before it."""
        me = self.people[who]
        self.run(self._settled())

        async def crowded() -> None:
            body = {"model": me.models[1], "input": me.word, "background": True, **LONG}
            taken = []
            for _ in range(20):
                answer = await self.world.ask(me, "createResponse", body)
                if answer.status == 429:
                    break
                taken.append(answer.json["id"])
                self.world.note(me, answer.json)
            else:
                raise AssertionError("one key may have everything")
            try:
                for you in self.people:
                    if you is not me:
                        await self._turn_of(you, behind=behind)
                running = [
                    (await self.world.want(me, "getResponse", response_id=name)).json for name in taken
                ]
                assert any(each["status"] in ("queued", "in_progress") for each in running), (
                    "it was not crowded"
                )
            finally:
                for name in taken:
                    await self.world.want(me, "deleteResponse", response_id=name)

        self.run(crowded())

    async def _turn_of(self, you: Tenant, *, behind: bool) -> None:
        if not behind:
            body = {"model": you.models[1], "messages": [{"role": "user", "content": "1"}], "max_tokens": 4}
            await self.world.want(you, "createChatCompletion", body)
            return
        body = {"model": you.models[1], "input": you.word, "background": True, "max_output_tokens": 16}
        name = (await self.world.want(you, "createResponse", body)).json["id"]
        you.words.add(name)

        async def ended() -> bool:
            found = (await self.world.want(you, "getResponse", response_id=name)).json
            return found["status"] not in ("queued", "in_progress")

        await until(ended)
        await self.world.want(you, "deleteResponse", response_id=name)

    async def _settled(self) -> None:
        """Wait until nothing runs any more."""
        for who in self.people:
            for name in who.records["response_id"]:
                answer = await self.world.want(who, "getResponse", response_id=name)
                if answer.json["status"] in ("queued", "in_progress"):
                    await self.world.want(who, "cancelResponse", response_id=name)

    @rule(who=WHO, other=WHO, number=NUMBER, kept=YES)
    def talk(self, who: int, other: int, number: int, kept: bool) -> None:
        """Turns of a WebSocket see what their key has; turns that are not kept end with their connection."""
        me, you = self.people[who], self.people[other]

        async def talked() -> None:
            async with self.world.socket(me) as turn:
                body = {"model": "plainest", "input": me.word, "max_output_tokens": 16, "store": kept}
                first = (await turn(body))[-1]["response"]
                self.world.note(me, first)
                again = (await turn({**body, "previous_response_id": first["id"]}))[-1]
                assert again["type"] != "error", again
                self.world.note(me, again)
                if kept:
                    me.records["response_id"] += [first["id"], again["response"]["id"]]
                theirs = you.own("response_id", number)
                if me is not you and theirs is not None:
                    none = invented(theirs)
                    found, unknown = [
                        json.dumps((await turn({**body, "previous_response_id": name}))[-1]).replace(
                            name, "?"
                        )
                        for name in (theirs, none)
                    ]
                    assert found == unknown
            answer = await self.world.ask(
                you, "createResponse", {**body, "previous_response_id": first["id"]}
            )
            assert answer.status == (200 if me is you and kept else 400), answer.body
            if answer.status == 200:
                self.world.note(you, answer.json)
                me.records["response_id"].append(answer.json["id"])

        self.run(talked())

    # The server

    @drives("listModels", "listRouterModels", "listFolderModels", "getCurrentModel", "retrieveModel")
    @rule(who=WHO, anthropic=YES)
    def models(self, who: int, anthropic: bool) -> None:
        """Models are those of the key, in both forms, and no others exist."""
        me = self.people[who]
        headers = {"anthropic-version": "2023-06-01"} if anthropic else {}
        expected = {"plainest", "alphaone", "betatwo", *self.world.adapters} & set(me.models)
        for operation in ("listModels", "listRouterModels", "listFolderModels"):
            found = self.run(self.world.want(me, operation, headers=headers)).json["data"]
            assert {each["id"] for each in found} == expected, operation
        for name in ("plainest", "alphaone", "betatwo", "annsadapter", "bobsadapter"):
            answer = self.run(self.world.ask(me, "retrieveModel", model=name, headers=headers))
            assert answer.status == (200 if name in expected else 404), (name, answer.body)
            if name not in expected:
                unknown = self.run(
                    self.world.ask(me, "retrieveModel", model="x" * len(name), headers=headers)
                )
                alike(answer, name, unknown, "x" * len(name))
        current = self.run(self.world.ask(me, "getCurrentModel"))
        assert current.status == 200 or current.error["code"] == "model_not_loaded"

    @drives(
        "loadLoraAdapter", "unloadLoraAdapter", "loadModel", "unloadModel", "streamModelLoad", "unloadModels"
    )
    @rule(who=WHO, adapter=st.sampled_from(["annsadapter", "bobsadapter"]))
    def load(self, who: int, adapter: str) -> None:
        """Only the admin loads and unloads; what was loaded exists for the keys that may use it."""
        me = self.people[who]
        load = {"lora_name": adapter, "lora_path": adapter}
        wanted = [
            ("loadLoraAdapter", load),
            ("unloadLoraAdapter", {"lora_name": adapter}),
            ("loadModel", {"model": "alphaone"}),
            ("unloadModel", {"model": "alphaone"}),
            ("streamModelLoad", {"name": "alphaone"}),
            ("unloadModels", None),
        ]
        for operation, body in wanted:
            answer = self.run(self.world.ask(me, operation, body))
            assert answer.status in (401, 403), (operation, answer.status, answer.body)
        for operation, body in wanted[2], wanted[4]:
            self.run(self.world.want(None, operation, body))
        if adapter in self.world.adapters:
            self.run(self.world.want(None, "unloadLoraAdapter", {"lora_name": adapter}))
            self.world.adapters.discard(adapter)
        else:
            self.run(self.world.want(None, "loadLoraAdapter", load))
            self.world.adapters.add(adapter)
            answer = self.run(
                self.world.ask(None, "loadLoraAdapter", {**load, "lora_name": "x", "lora_path": ".."})
            )
            assert answer.status == 400
            assert str(self.world.folder) not in answer.body.decode()

    @drives("getMetrics", "getVersion", "getOpenapiJson", "getOpenapiYaml")
    @rule(who=WHO)
    def look(self, who: int) -> None:
        """What counts the work of all keys is the operator's."""
        me = self.people[who]
        assert self.run(self.world.ask(me, "getMetrics")).status == 403
        seen = self.run(self.world.want(None, "getMetrics")).body
        assert b"plumbline_http_requests_total" in seen
        for operation in ("getVersion", "getOpenapiJson", "getOpenapiYaml"):
            self.run(self.world.want(me, operation))
        for path in ("/page/status", "/docs", "/", *OPEN_PATHS):
            answer = self.run(self.world.server.get(path, headers=me.headers))
            assert answer.status == 200
            if path == "/page/status":
                self.world.check(me, answer, "")
                assert answer.json["requests"] == []
                assert answer.json["memory_bytes"] is None


def test_a_key_is_a_tenant() -> None:
    """Each rule for each key, once the others have something of each kind."""
    machine = Tenants()
    try:
        for who in range(3):
            machine.keep(who=who, model=0, topic=who)
            machine.converse(who=who, other=(who + 2) % 3, number=0, add=False)
            for past in range(3):
                machine.respond(who=who, model=past, topic=who, past=past, number=0, stream=bool(past))
            machine.run_behind(who=who, other=(who + 1) % 3, number=0, end=who == 0)
        for who in range(3):
            pair = {"who": who, "other": (who + 1) % 3}
            machine.load(who=who, adapter="annsadapter")
            machine.models(who=who, anthropic=who == 1)
            machine.count(who=who, model=1)
            machine.look(who=who)
            for api in range(3):
                machine.generate(who=who, model=1, topic=3, api=api, stream=who == 1)
            machine.seal(**pair, compact=True)
            machine.probe(**pair, number=0, query=who)
            machine.borrow(**pair, number=0)
            machine.refer(**pair, number=0, stream=who == 1)
            machine.talk(**pair, number=0, kept=who == 1)
            machine.leave(who=who, stream=who == 1)
            machine.crowd(who=who, behind=who == 1)
        for who in range(3):
            machine.lists(who=who, number=0)
            for operation in OWNED:
                machine.use(who=who, operation=operation, number=1, stream=who == 1)
        assert not PATHS.keys() - machine.world.asked.keys() - SELF.keys()
    finally:
        machine.teardown()


@pytest.mark.long
def test_a_key_stays_a_tenant_for_two_thousand_steps() -> None:
    chosen = settings(
        phases=[Phase.generate],  # Steps that run beside each other shrink badly.
        max_examples=20,
        stateful_step_count=100,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        derandomize=not EXPLORED,
    )
    run_state_machine_as_test(Tenants, settings=chosen)


def test_every_operation_is_driven() -> None:
    assert DRIVEN | SELF.keys() == PATHS.keys()
    assert not DRIVEN & SELF.keys()
    changing = {name for name in OWNED if PATHS[name].method == "POST"}
    assert changing == CHANGES.keys()
    assert inspect.getsource(Tenants).count("@rule") >= 15
