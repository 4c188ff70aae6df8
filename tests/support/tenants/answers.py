"""Rules of answers: what a key generates, seals and counts."""

from __future__ import annotations

from hypothesis.stateful import rule

from support.tenants.machine import NUMBER, WHO, YES, TenantMachine, drives
from support.tenants.world import Json, Tenant

__all__ = ["AnswerRules"]


class AnswerRules(TenantMachine):
    """Rules of answers: what a key generates, seals and counts."""

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
        self._cached(me, body["model"], topic, found["usage"])  # type: ignore[arg-type]

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
            assert self.may_fail(answer, more), answer.body
            return
        found = answer.events[-2].json["response"] if stream else answer.json
        self.world.note(me, found)
        me.records["response_id"].append(found["id"])
        me.sealed += [item for item in found["output"] if item.get("encrypted_content")][:1]

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
