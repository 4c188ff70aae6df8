"""Chat completions that are not streamed."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.case import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.checks.common import accepted, content_type, last, request_id, usage_adds_up
from plumbline_conformance.checks.errors import chat
from plumbline_conformance.schema import violations
from plumbline_conformance.transcript import Exchange, Transcript

LIMIT = 8


@scenario("chat/text", "A short answer", core=True)
def chat_text(target: Target) -> Generator[Request, Exchange, None]:
    yield Request(path="/chat/completions", json=chat(target, max_tokens=LIMIT))


@check("chat/text/shape", "Answer as the contract says", "CHAT-01", "CHAT-03", "CHAT-04")
def chat_text_shape(seen: Transcript) -> Iterator[Problem]:
    yield from violations("CreateChatCompletionResponse", accepted(last(seen)).json)


@check("chat/text/content-type", "Send application/json", "HTTP-01")
def chat_text_content_type(seen: Transcript) -> Iterator[Problem]:
    yield from content_type(accepted(last(seen)), "application/json")


@check("chat/text/request-id", "Carry an x-request-id", "HTTP-03")
def chat_text_request_id(seen: Transcript) -> Iterator[Problem]:
    yield from request_id(accepted(last(seen)))


@check("chat/text/one", "Give one choice, with index 0, where n is not said", "CHAT-02")
def chat_text_one(seen: Transcript) -> Iterator[Problem]:
    yield from _indexes(accepted(last(seen)), 1)


@check("chat/text/usage", "Count tokens so that the total is the sum", "CHAT-08")
def chat_text_usage(seen: Transcript) -> Iterator[Problem]:
    answer = accepted(last(seen)).json
    yield from usage_adds_up(answer.get("usage"), prompt="prompt_tokens", completion="completion_tokens")


@check("chat/text/length", "Say `length` only when the limit was reached, and never exceed it", "CHAT-06")
def chat_text_length(seen: Transcript) -> Iterator[Problem]:
    answer = accepted(last(seen)).json
    reason = _choice(accepted(last(seen))).get("finish_reason")
    tokens = (answer.get("usage") or {}).get("completion_tokens")
    if not isinstance(tokens, int):
        raise Inconclusive("the answer has no usage; another check says so")
    if tokens > LIMIT or (reason == "length" and tokens != LIMIT):
        yield Problem(expected=f"{LIMIT} tokens for `length`", actual=f"{tokens}, {reason}", pointer="usage")


@scenario("chat/choices", "Two choices")
def chat_choices(target: Target) -> Generator[Request, Exchange, None]:
    yield Request(path="/chat/completions", json=chat(target, n=2, temperature=1, seed=1))


@check("chat/choices/n", "Give exactly n choices with indexes from 0", "CHAT-02")
def chat_choices_n(seen: Transcript) -> Iterator[Problem]:
    yield from _indexes(accepted(last(seen)), 2)


def _indexes(exchange: Exchange, wanted: int) -> Iterator[Problem]:
    choices = exchange.json.get("choices") if isinstance(exchange.json, dict) else None
    found = (
        [choice.get("index") for choice in choices if isinstance(choice, dict)]
        if isinstance(choices, list)
        else []
    )
    if sorted(map(repr, found)) != sorted(map(repr, range(wanted))):
        yield Problem(expected=repr(list(range(wanted))), actual=repr(found), pointer="choices[].index")


@scenario("chat/logprobs", "A short answer with the logprobs of its tokens")
def chat_logprobs(target: Target) -> Generator[Request, Exchange, None]:
    yield Request(
        path="/chat/completions", json=chat(target, max_tokens=LIMIT, logprobs=True, top_logprobs=2)
    )


@check("chat/logprobs/shape", "Write logprobs as the contract says", "LP-02")
def chat_logprobs_shape(seen: Transcript) -> Iterator[Problem]:
    choice = _choice(accepted(last(seen)))
    if choice.get("logprobs") is not None:
        yield from violations("ChatCompletionLogprobs", choice["logprobs"], "choices[0].logprobs.")


@check("chat/logprobs/given", "Give an entry for each token of the content", "LP-01")
def chat_logprobs_given(seen: Transcript) -> Iterator[Problem]:
    choice = _choice(accepted(last(seen)))
    content = (choice.get("logprobs") or {}).get("content")
    if not content and choice["message"].get("content"):
        yield Problem(expected="entries", actual=repr(content), pointer="choices[0].logprobs.content")


@check("chat/logprobs/alternatives", "Give at most as many alternatives as asked for, best first", "LP-02")
def chat_logprobs_alternatives(seen: Transcript) -> Iterator[Problem]:
    choice = _choice(accepted(last(seen)))
    for number, entry in enumerate((choice.get("logprobs") or {}).get("content") or []):
        found = [other["logprob"] for other in entry["top_logprobs"]]
        # A drawn token outside the best k may be listed after them, or before: no document says where it stands.
        best = found[1:] if found and entry["top_logprobs"][0].get("token") == entry.get("token") else found
        if len(found) > 3 or best[:2] != sorted(best[:2], reverse=True) or entry["logprob"] > 0:
            where = f"choices[0].logprobs.content[{number}]"
            yield Problem(expected="2 alternatives, descending, at most 0", actual=repr(found), pointer=where)


@check("chat/logprobs/join", "Give entries whose bytes join to the content", "LP-03")
def chat_logprobs_join(seen: Transcript) -> Iterator[Problem]:
    choice = _choice(accepted(last(seen)))
    message = choice["message"]
    entries = (choice.get("logprobs") or {}).get("content") or []
    if not entries or any(entry["bytes"] is None for entry in entries):
        raise Inconclusive("there are no bytes to join")
    if message.get("reasoning") or message.get("reasoning_content") or message.get("tool_calls"):
        raise Inconclusive("the entries cover more than the content")
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise Inconclusive("the content is no text; another check says so")
    if any(byte not in range(256) for entry in entries for byte in entry["bytes"]):
        yield Problem(
            expected="numbers from 0 to 255", actual="others", pointer="choices[0].logprobs.content"
        )
        return
    found = [bytes(entry["bytes"]) for entry in entries]
    # The token that ended the answer may have an entry, and no text.
    candidates = [found] if choice.get("finish_reason") == "length" else [found, found[:-1]]
    if not any(_whole(b"".join(parts)) == _whole(content.encode()) for parts in candidates):
        yield Problem(
            expected=repr(content), actual=repr(b"".join(found)), pointer="choices[0].logprobs.content"
        )


def _choice(exchange: Exchange) -> dict[str, Any]:
    """The first choice, with a message that can be looked at. Whether it is right is for `chat/text/shape` to say."""
    choices = exchange.json.get("choices") if isinstance(exchange.json, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise Inconclusive("there is no choice with a message; another check says so")
    return choice


def _whole(text: bytes) -> str:
    """Without a character that the token limit cut, of which servers send nothing or U+FFFD."""
    return text.decode("utf-8", "replace").rstrip("\ufffd")
