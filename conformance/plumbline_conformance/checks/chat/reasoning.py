"""Reasoning on chat completions: an extension that every server has, and none writes alike."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answer_fold import choice, deltas, finished
from plumbline_conformance.checks.capabilities import REASONING_KEYS
from plumbline_conformance.checks.chat.shared_laws import pair
from plumbline_conformance.checks.chat.tools import chat_with_tools
from plumbline_conformance.checks.common import at, counted, taken, whole_shapes
from plumbline_conformance.checks.laws import both, either, stream, whole
from plumbline_conformance.checks.request_reader import request_fields, requested_choices, requested_limit
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.model import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.transcript.model import Exchange, Transcript

NEEDS = ("reasoning",)
MARKS = ("<think", "</think", "<|channel|>", "[THINK]", "<seed:think>", "◁think▷")


def _thinks(target: Target) -> dict[str, object]:
    return chat(target, max_tokens=256, temperature=0, seed=1, reasoning_effort="low")


pair("chat/reasoning", "An answer with reasoning", _thinks, needs=NEEDS)


@both(
    "chat/reasoning/not-in-content",
    ("Keep reasoning and its markers out of the content", "CS-17"),
    ("Keep reasoning out of the streamed content", "CS-17"),
)
def _apart(exchange: Exchange) -> Iterator[Problem]:
    found = choice(exchange)
    for mark in MARKS:
        if mark in found.content or mark in found.reasoning:
            yield Problem(expected=f"no {mark}", actual=repr(found)[:300], pointer="choices[0]")
    if len(found.reasoning) > 20 and found.reasoning in found.content:
        yield Problem(expected="reasoning once", actual="again in the content", pointer="content")


@stream("chat/reasoning/stream-first", "Stream reasoning before the content that it led to", "CS-17")
def _first(exchange: Exchange) -> Iterator[Problem]:
    said: set[object] = set()
    for number, one, delta in deltas(exchange):
        said |= {repr(one.get("index"))} if delta.get("content") else set()
        late = any(delta.get(key) for key in REASONING_KEYS) and not delta.get("content")
        if late and repr(one.get("index")) in said:
            yield Problem(expected="the answer alone", actual="more reasoning", pointer=f"event {number}")


@whole("chat/reasoning/counted", "Count the tokens of reasoning in the usage", "ST-19")
def _counted(exchange: Exchange) -> Iterator[Problem]:
    if not choice(exchange).reasoning:
        raise Inconclusive("the model did not think")
    usage = exchange.json.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    count = details.get("reasoning_tokens") if isinstance(details, dict) else None
    if not isinstance(count, int) or count < 1:
        where = "usage.completion_tokens_details.reasoning_tokens"
        yield Problem(expected="at least 1", actual=repr(count), pointer=where)


def _thinks_not(target: Target) -> dict[str, object]:
    return {**_thinks(target), "reasoning_effort": "none"}


pair(
    "chat/reasoning-off", "An answer without reasoning, of a model that can reason", _thinks_not, needs=NEEDS
)


@both(
    "chat/reasoning-off/content",
    ("Put the answer into the content where reasoning is off", "CS-17"),
    ("Stream the answer as content where reasoning is off", "CS-17"),
)
def _answered(exchange: Exchange) -> Iterator[Problem]:
    """A parser that takes the beginning for a thought calls the whole answer one, and the client gets none.

    The rule keeps the two apart, and this is its other half. A model that thinks all the same is not accused.
    """
    if request_fields(exchange).get("reasoning_effort") != "none":
        raise NotRequested("reasoning is not off")
    found = finished(choice(exchange))
    if found.reasoning and not found.content and not found.calls:
        if found.reason == "length":
            raise Inconclusive("the limit may have cut the answer of a model that thinks all the same")
        shown = f"none, and reasoning {found.reasoning[:150]!r}"
        yield Problem(expected="content", actual=shown, pointer="choices[0]")


def _thinks_and_calls(target: Target) -> dict[str, object]:
    question = "Use get_weather with city Paris."
    return chat_with_tools(target, question, tools.weather, reasoning_effort="low", max_tokens=256)


pair("chat/reasoning-tool", "Reasoning that leads to a call", _thinks_and_calls, needs=("tools", "reasoning"))


whole("chat/reasoning-tool/apart", "Keep reasoning, content and calls apart", "CS-17")(_apart)


@whole("chat/reasoning-tool/finish", "Say `tool_calls` where thinking led to a call", "CHAT-05")
def _led_to_a_call(exchange: Exchange) -> Iterator[Problem]:
    found = finished(choice(exchange))
    free = request_fields(exchange).get("tool_choice") in (None, "auto")
    if found.calls and free and found.reason != "tool_calls":
        yield Problem(expected="tool_calls", actual=repr(found.reason), pointer="choices[0].finish_reason")


def _cut(target: Target) -> dict[str, object]:
    return {**_thinks(target), "max_tokens": 3}


pair("chat/reasoning-cut", "Reasoning that the token limit cuts", _cut, needs=NEEDS)


@whole("chat/reasoning-cut/length", "Say `length` where the limit cut the reasoning", "CHAT-06", "CHAT-05")
def _length(exchange: Exchange) -> Iterator[Problem]:
    limit = requested_limit(exchange)
    found = choice(exchange)
    usage = exchange.json.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if not isinstance(tokens, int):
        raise Inconclusive("the answer has no usage; another check says so")
    if requested_choices(exchange) > 1:
        raise NotRequested("the tokens are those of several choices")
    ended = ("stop", "tool_calls", "content_filter")
    if tokens > limit or ((found.reason == "length") != (tokens == limit) and found.reason not in ended):
        shown = f"{tokens}, {found.reason}"
        # Too many tokens, or too few for its `length`; or the limit was met, and the reason is another one.
        rule = "CHAT-06" if tokens > limit or found.reason == "length" else "CHAT-05"
        yield Problem(expected=f"{limit} tokens and `length`", actual=shown, pointer="usage", rule=rule)


either("chat/reasoning-cut/not-in-content", "Keep cut reasoning out of the content", "CS-17")(_apart)


@scenario("chat/reasoning-round", "An answer with reasoning, sent back as it came", needs=NEEDS)
def reasoning_round(target: Target) -> Generator[Request, Exchange, None]:
    first = yield Request(path="/chat/completions", json=_thinks(target))
    try:
        message: Any = first.json["choices"][0]["message"]
    except (LookupError, TypeError):
        return
    if isinstance(message, dict):
        messages = [*user("Hi"), message, *user("Thanks")]
        yield Request(path="/chat/completions", json={**_thinks(target), "messages": messages})


whole_shapes("chat/reasoning-round", "CreateChatCompletionResponse", 0, 1)


@check("chat/reasoning-round/taken", "Take the server's own message back, reasoning and all", "CHAT-13")
def round_taken(seen: Transcript) -> Iterator[Problem]:
    yield from taken(seen, 1)


@check("chat/reasoning-round/prompt", "Count the tokens of a longer conversation as more", "CHAT-08")
def round_prompt(seen: Transcript) -> Iterator[Problem]:
    counts = [counted(at(seen, place), "prompt_tokens") for place in (0, 1)]
    if counts[1] <= counts[0]:
        yield Problem(expected=f"more than {counts[0]}", actual=str(counts[1]), pointer="usage.prompt_tokens")


@scenario(
    "chat/prefill",
    "An answer that goes on with an open message, of a model that can reason",
    needs=("reasoning", "continuation"),
)
def prefill(target: Target) -> Generator[Request, Exchange, None]:
    said = [*user("What is 2 + 2?"), {"role": "assistant", "content": "The answer is"}]
    fields = {"messages": said, "continue_final_message": True, "add_generation_prompt": False}
    body = {**_thinks(target), **fields, "max_tokens": 24}
    yield Request(path="/chat/completions", json=body)
    yield Request(path="/chat/completions", json={**body, "stream": True})


@both(
    "chat/prefill/content",
    ("Put what goes on with an answer into the content", "CS-17"),
    ("Stream what goes on with an answer as content", "CS-17"),
)
def _goes_on(exchange: Exchange) -> Iterator[Problem]:
    """The open message is the answer. A parser or a template that begins inside of a thought calls its rest one."""
    if request_fields(exchange).get("continue_final_message") is not True:
        raise NotRequested("no message was left open")
    found = choice(exchange)
    if found.reasoning and not found.content and not found.calls:
        shown = f"none, and reasoning {found.reasoning[:150]!r}"
        yield Problem(expected="content", actual=shown, pointer="choices[0]")
