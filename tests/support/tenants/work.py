"""Rules of work that goes on: in the background, at the same time, over WebSockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis.stateful import rule

from support.tenants.machine import LONG, NUMBER, WHO, YES, TenantMachine, drives
from support.tenants.world import Tenant, invented, until

__all__ = ["WorkRules"]


def _by_id(ask: Callable[..., Any], name: str) -> Any:
    """Ask for a response by its id."""
    return ask(response_id=name)


class WorkRules(TenantMachine):
    """Rules of work that goes on: in the background, at the same time, over WebSockets."""

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
            assert answer.status == 429 or self.may_fail(answer, body), answer.body
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
                self.as_unknown(name, partial(_by_id, ask))
            if conversation:
                ask = partial(self.world.ask, you, "createResponse")
                self.as_unknown(
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
    @rule(who=WHO, behind=YES, both=YES)
    def crowd(self, who: int, behind: bool, both: bool) -> None:
        """Keys that ask for all that they can get keep no other from beginning, or from ending before them.

        Args:
            who: has a crowd of requests.
            behind: whether the others' requests are in the background.
            both: whether the next key has a crowd as well.
        """
        crowds = [self.people[who], *([self.people[(who + 1) % 3]] if both else [])]
        self.run(self._settled())

        async def crowded() -> None:
            taken = [(me, name) for me in crowds for name in await self._all_of(me)]
            try:
                for you in self.people:
                    if you not in crowds:
                        await self._turn_of(you, behind=behind)
                running = [
                    (await self.world.want(me, "getResponse", response_id=name)).json for me, name in taken
                ]
                assert any(each["status"] in ("queued", "in_progress") for each in running), (
                    "it was not crowded"
                )
            finally:
                for me, name in taken:
                    await self.world.want(me, "deleteResponse", response_id=name)

        self.run(crowded())

    async def _all_of(self, me: Tenant) -> list[str]:
        """Begin as many responses as a key may have; return their ids."""
        body = {"model": me.models[1], "input": me.word, "background": True, **LONG}
        taken: list[str] = []
        for _ in range(20):
            answer = await self.world.ask(me, "createResponse", body)
            if answer.status == 429:
                return taken
            taken.append(answer.json["id"])
            self.world.note(me, answer.json)
        raise AssertionError("one key may have everything")

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
