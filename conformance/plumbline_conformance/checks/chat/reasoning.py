"""Check reasoning on chat completions, an extension with different names in different servers."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.answers import THINKING_MARKS, choice, deltas, finished
from plumbline_conformance.checks.chat.shared_laws import SHAPE, pair, shape
from plumbline_conformance.checks.chat.tools import chat_with_tools
from plumbline_conformance.checks.common import (
    accepted,
    at,
    follow_up_accepted,
    longer_prompt,
    whole_shapes,
)
from plumbline_conformance.checks.laws import STREAM, WHOLE, both, either, stream, whole
from plumbline_conformance.checks.request_reader import request_fields, requested_choices, requested_limit
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import REASONING_KEYS
from plumbline_conformance.transcript.exchange import Exchange, Transcript

NEEDS = ("reasoning",)


def _with_reasoning(target: Target) -> dict[str, object]:
    return chat(target, max_tokens=256, temperature=0, seed=1, reasoning_effort="low")


pair("chat/reasoning", "An answer with reasoning", _with_reasoning, needs=NEEDS)


@both(
    "chat/reasoning/not-in-content",
    ("Keep reasoning and its markers out of the content", "CS-17"),
    ("Keep reasoning out of the streamed content", "CS-17"),
)
def _separate(exchange: Exchange) -> Iterator[Problem]:
    found = choice(exchange)
    for mark in THINKING_MARKS:
        if mark in found.content or mark in found.reasoning:
            yield Problem(expected=f"no {mark}", actual=as_json(found)[:300], pointer="choices[0]")
    if len(found.reasoning) > 20 and found.reasoning in found.content:
        yield Problem(expected="reasoning once", actual="again in the content", pointer="content")


@stream("chat/reasoning/stream-first", "Stream reasoning before the content", "CS-17")
def _first(exchange: Exchange) -> Iterator[Problem]:
    with_content: set[object] = set()
    for number, one, delta in deltas(exchange):
        with_content |= {as_json(one.get("index"))} if delta.get("content") else set()
        late = any(delta.get(key) for key in REASONING_KEYS) and not delta.get("content")
        if late and as_json(one.get("index")) in with_content:
            yield Problem(expected="the answer alone", actual="more reasoning", pointer=f"event {number}")


@whole("chat/reasoning/counted", "Count the tokens of reasoning in the usage", "ST-19")
def _counted(exchange: Exchange) -> Iterator[Problem]:
    if not choice(exchange).reasoning:
        raise Inconclusive("the model did not reason")
    usage = exchange.json.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    count = details.get("reasoning_tokens") if isinstance(details, dict) else None
    if not isinstance(count, int) or count < 1:
        where = "usage.completion_tokens_details.reasoning_tokens"
        yield Problem(expected="at least 1", actual=as_json(count), pointer=where)


def _without_reasoning(target: Target) -> dict[str, object]:
    return {**_with_reasoning(target), "reasoning_effort": "none"}


pair("chat/reasoning-off", "An answer with reasoning off", _without_reasoning, needs=NEEDS)


@both(
    "chat/reasoning-off/content",
    ("Put the answer into the content if reasoning is off", "CS-17"),
    ("Stream the answer as content if reasoning is off", "CS-17"),
)
def _answered(exchange: Exchange) -> Iterator[Problem]:
    """Detect a parser that treats the whole answer as reasoning although reasoning is off (CS-17).

    A model that reasons nevertheless, until the token limit, is inconclusive.
    """
    if request_fields(exchange).get("reasoning_effort") != "none":
        raise NotRequested("reasoning is not off")
    found = finished(choice(exchange))
    if found.reasoning and not found.content and not found.calls:
        if found.finish_reason == "length":
            raise Inconclusive("the limit may have cut the answer of a model that reasons nevertheless")
        shown = f"none, and reasoning {as_json(found.reasoning[:150])}"
        yield Problem(expected="content", actual=shown, pointer="choices[0]")


@scenario(
    "chat/stop-thinking", "An answer with reasoning, and the same with a stop string from that", needs=NEEDS
)
def stop_thinking(target: Target) -> Generator[Request, Exchange, None]:
    body = _with_reasoning(target)
    plain = yield Request(name="plain", path="/chat/completions", json=body)
    if word := _thought_word(plain):
        yield Request(name=WHOLE, path="/chat/completions", json={**body, "stop": word})


def _thought_word(exchange: Exchange) -> str:
    """Return a word of the reasoning that the answer does not have; nothing if there is none."""
    try:
        message = exchange.json["choices"][0]["message"]
    except (LookupError, TypeError):
        return ""
    thought = next((message[key] for key in REASONING_KEYS if isinstance(message.get(key), str)), "")
    content = str(message.get("content") or "")
    words = [word for word in re.findall(r"\w{2,}", thought) if word not in content]
    return words[len(words) // 2] if words else ""


@check("chat/stop-thinking/goes-on", "End no turn at a stop string in the reasoning", "CHAT-23")
def stop_thinking_goes_on(seen: Transcript) -> Iterator[Problem]:
    """Detect an answer that ends before a word of its own reasoning, which the client has as a stop string."""
    word = _thought_word(accepted(at(seen, "plain")))
    if not word:
        raise Inconclusive("the reasoning has no word that the answer lacks")
    without, found = choice(at(seen, "plain")), choice(accepted(at(seen, WHOLE)))
    ends_there = without.reasoning.startswith(found.reasoning) and word not in found.reasoning
    if ends_there and found.finish_reason == "stop" and not (found.content or found.calls):
        shown = f"an end before {as_json(word)} of the reasoning"
        yield Problem(expected="an answer", actual=shown, pointer="choices[0]", exchange=WHOLE)


EFFORTS = ("none", "high")


@scenario("chat/reasoning-effort", "One question with the least and with a high effort", needs=NEEDS)
def reasoning_effort(target: Target) -> Generator[Request, Exchange, None]:
    for effort in EFFORTS:
        body = {**_with_reasoning(target), "reasoning_effort": effort}
        yield Request(name=effort, path="/chat/completions", json=body)


@check("chat/reasoning-effort/effect", "Let the effort change the prompt or the answer", "ST-19")
def effort_effect(seen: Transcript) -> Iterator[Problem]:
    """Detect a server that ignores the effort: with temperature 0 and one seed, everything is then the same."""
    least, high = (accepted(at(seen, effort)) for effort in EFFORTS)
    one, other = choice(least), choice(high)
    if one.calls or other.calls:
        raise Inconclusive("the answer is a call")
    if (one.content, one.reasoning) == (other.content, other.reasoning) and _usage(least) == _usage(high):
        shown = as_json(other)[:200]
        yield Problem(
            expected="another prompt or answer than with `none`",
            actual=shown,
            pointer="choices[0]",
            exchange=EFFORTS[1],
        )


def _usage(exchange: Exchange) -> Any:
    usage = exchange.json.get("usage") if isinstance(exchange.json, dict) else None
    names = ("prompt_tokens", "completion_tokens")
    return [usage.get(name) for name in names] if isinstance(usage, dict) else None


def _reasoning_and_call(target: Target) -> dict[str, object]:
    question = "Use get_weather with city Paris."
    return chat_with_tools(target, question, tools.weather, reasoning_effort="low", max_tokens=256)


pair(
    "chat/reasoning-tool", "Reasoning that leads to a call", _reasoning_and_call, needs=("tools", "reasoning")
)


whole("chat/reasoning-tool/apart", "Keep reasoning, content and calls apart", "CS-17")(_separate)


@whole("chat/reasoning-tool/finish", "Finish with `tool_calls` if reasoning led to a call", "CHAT-05")
def _finish_of_call(exchange: Exchange) -> Iterator[Problem]:
    found = finished(choice(exchange))
    free = request_fields(exchange).get("tool_choice") in (None, "auto")
    if found.calls and free and found.finish_reason != "tool_calls":
        yield Problem(
            expected="tool_calls", actual=as_json(found.finish_reason), pointer="choices[0].finish_reason"
        )


def _cut(target: Target) -> dict[str, object]:
    return {**_with_reasoning(target), "max_tokens": 3}


pair("chat/reasoning-cut", "Reasoning that the token limit cuts", _cut, needs=NEEDS)


@whole(
    "chat/reasoning-cut/length", "Finish with `length` if the limit cut the reasoning", "CHAT-06", "CHAT-05"
)
def _length(exchange: Exchange) -> Iterator[Problem]:
    limit = requested_limit(exchange)
    found = choice(exchange)
    usage = exchange.json.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if not isinstance(tokens, int):
        raise Inconclusive("the answer has no usage; another check reports this")
    if requested_choices(exchange) > 1:
        raise NotRequested("the usage counts several choices")
    ended = ("stop", "tool_calls", "content_filter")
    if tokens > limit or (
        (found.finish_reason == "length") != (tokens == limit) and found.finish_reason not in ended
    ):
        shown = f"{tokens}, {found.finish_reason}"
        # CHAT-06: too many tokens, or too few for `length`. CHAT-05: the limit was reached, with another reason.
        rule = "CHAT-06" if tokens > limit or found.finish_reason == "length" else "CHAT-05"
        yield Problem(expected=f"{limit} tokens and `length`", actual=shown, pointer="usage", rule=rule)


either("chat/reasoning-cut/not-in-content", "Keep cut reasoning out of the content", "CS-17")(_separate)


@scenario("chat/reasoning-round", "An answer with reasoning, sent back unchanged", needs=NEEDS)
def reasoning_round(target: Target) -> Generator[Request, Exchange, None]:
    first = yield Request(name="first", path="/chat/completions", json=_with_reasoning(target))
    try:
        message: Any = first.json["choices"][0]["message"]
    except (LookupError, TypeError):
        return
    if isinstance(message, dict):
        messages = [*user("Hi"), message, *user("Thanks")]
        body = {**_with_reasoning(target), "messages": messages}
        yield Request(name="sent_back", path="/chat/completions", json=body)


whole_shapes(
    "chat/reasoning-round", "CreateChatCompletionResponse", "first", "sent_back", rules=SHAPE, law=shape
)


@check("chat/reasoning-round/taken", "Accept the server's own message with its reasoning", "CHAT-13")
def round_taken(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, "first", "sent_back")


@check("chat/reasoning-round/prompt", "Count more tokens for a longer conversation", "CHAT-08")
def round_prompt(seen: Transcript) -> Iterator[Problem]:
    yield from longer_prompt(seen, "first", "sent_back", "prompt_tokens")


@scenario(
    "chat/prefill",
    "A continued message of a model that can reason",
    needs=("reasoning", "continuation"),
)
def prefill(target: Target) -> Generator[Request, Exchange, None]:
    messages = [*user("What is 2 + 2?"), {"role": "assistant", "content": "The answer is"}]
    fields = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    body = {**_with_reasoning(target), **fields, "max_tokens": 24}
    yield Request(name=WHOLE, path="/chat/completions", json=body)
    yield Request(name=STREAM, path="/chat/completions", json={**body, "stream": True})


@both(
    "chat/prefill/content",
    ("Put the continuation of a message into the content", "CS-17"),
    ("Stream the continuation of a message as content", "CS-17"),
)
def _continued(exchange: Exchange) -> Iterator[Problem]:
    """Detect a parser or template that treats the continuation of a message as reasoning (CS-17)."""
    if request_fields(exchange).get("continue_final_message") is not True:
        raise NotRequested("the request continues no message")
    found = choice(exchange)
    if found.reasoning and not found.content and not found.calls:
        shown = f"none, and reasoning {as_json(found.reasoning[:150])}"
        yield Problem(expected="content", actual=shown, pointer="choices[0]")
