"""Check details of legacy completions: logprobs, offsets, streams, stop strings, prompts of token ids."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.chat.logprobs import added_up
from plumbline_conformance.checks.chat.shared_laws import UNNAMED
from plumbline_conformance.checks.common import accepted, at, done_last, framing, usage_adds_up, usage_count
from plumbline_conformance.checks.common import whole_shapes as shapes_of
from plumbline_conformance.checks.completions.basics import CHUNKS
from plumbline_conformance.checks.identity import distinct_ids
from plumbline_conformance.checks.laws import STREAM, WHOLE, stream, whole
from plumbline_conformance.checks.request_reader import request_fields
from plumbline_conformance.checks.stopped_text import same_answer, texts_of
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    Problem,
    Request,
    Target,
    Unsteady,
    check,
    scenario,
)
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["first"]

Steps = Generator[Request, Exchange, None]
NEEDS = ("completions",)
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
TOP = 2


def _body(target: Target, **fields: object) -> dict[str, object]:
    given = {"prompt": "One two", "max_tokens": 6, "temperature": 0, "seed": 1, **fields}
    return {"model": target.model, **given}


def first(exchange: Exchange) -> dict[str, Any]:
    """Return the first choice."""
    body = accepted(exchange).json
    found = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(found, list) or not found or not isinstance(found[0], dict):
        raise Inconclusive("there is no choice; another check reports this")
    return found[0]


@scenario(
    "completions/logprobs",
    "A completion with logprobs, without and with streaming, and one of token ids",
    needs=NEEDS,
)
def logprobs(target: Target) -> Steps:
    yield Request(name=WHOLE, path="/completions", json=_body(target, logprobs=TOP))
    yield Request(name=STREAM, path="/completions", json=_body(target, logprobs=TOP, stream=True))
    yield Request(name="token_ids", path="/completions", json=_body(target, prompt=[1, 2, 3]))


shapes_of("completions/logprobs", "CreateCompletionResponse", WHOLE, "token_ids", rules=("CMP-01",))


def _lists(choice: dict[str, Any]) -> dict[str, list[Any]]:
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict) or not all(isinstance(logprobs.get(name), list) for name in LISTS):
        raise Inconclusive("there are no lists; another check reports this")
    return {name: logprobs[name] for name in LISTS}


@whole("completions/logprobs/given", "Give four lists of one length", "CMP-05")
def _given(exchange: Exchange) -> Iterator[Problem]:
    logprobs = first(exchange).get("logprobs")
    lengths = (
        [len(logprobs[name]) if isinstance(logprobs.get(name), list) else None for name in LISTS]
        if isinstance(logprobs, dict)
        else []
    )
    if len(set(lengths)) != 1 or None in lengths:
        yield Problem(
            expected="four lists of one length", actual=as_json(lengths), pointer="choices[0].logprobs"
        )


@whole("completions/logprobs/offsets", "Give the offsets of the tokens in the text", "CMP-05")
def _offsets(exchange: Exchange) -> Iterator[Problem]:
    choice = first(exchange)
    lists = _lists(choice)
    offsets = lists["text_offset"]
    if not all(isinstance(offset, int) for offset in offsets) or offsets != sorted(offsets):
        yield Problem(expected="ascending offsets", actual=as_json(offsets), pointer="text_offset")
    elif offsets and not 0 <= offsets[-1] - offsets[0] <= len(str(choice.get("text"))):
        yield Problem(expected="offsets within the text", actual=as_json(offsets), pointer="text_offset")
    elif len(offsets) == len(lists["tokens"]):
        yield from _steps(lists["tokens"], offsets)


def _steps(tokens: list[Any], offsets: list[Any]) -> Iterator[Problem]:
    """Check that each offset is the one before it and the characters of the token between them.

    The first may be 0 or the length of the prompt. A token that is a part of a character has no text to count.
    """
    wanted = offsets[:1]
    for token in tokens[:-1]:
        if not isinstance(token, str) or "\ufffd" in token or "bytes:" in token:
            return
        wanted = [*wanted, wanted[-1] + len(token)]
    if wanted != offsets:
        yield Problem(expected=as_json(wanted)[:200], actual=as_json(offsets)[:200], pointer="text_offset")


@whole("completions/logprobs/probable", "Give probabilities that add up to 1 at most", "CMP-05")
def _probable(exchange: Exchange) -> Iterator[Problem]:
    for number, top in enumerate(_lists(first(exchange))["top_logprobs"]):
        if isinstance(top, dict):
            yield from added_up(top, number)


@whole("completions/echo/offsets", "Give the offsets of the tokens in the text with its prompt", "CMP-05")
def _echoed_offsets(exchange: Exchange) -> Iterator[Problem]:
    for choice in objects_in(exchange.json.get("choices")):
        lists = _lists(choice)
        # A start token, which has no text, may come first.
        if len(lists["text_offset"]) == len(lists["tokens"]) and "".join(
            map(str, lists["tokens"])
        ) == choice.get("text"):
            if lists["text_offset"][:1] != [0]:
                shown = as_json(lists["text_offset"][:1])
                yield Problem(expected="[0], where the prompt begins", actual=shown, pointer="text_offset")
            yield from _steps(lists["tokens"], lists["text_offset"])


@whole("completions/logprobs/sampled", "List the sampled token among the alternatives", "CMP-05")
def _sampled(exchange: Exchange) -> Iterator[Problem]:
    lists = _lists(first(exchange))
    values = lists["token_logprobs"]
    if values and all(value is None for value in values):
        where = "choices[0].logprobs.token_logprobs"
        yield Problem(expected="logprobs of the tokens", actual=as_json(values)[:200], pointer=where)
    rows = zip(lists["tokens"], values, lists["top_logprobs"], strict=False)
    for number, (token, value, top) in enumerate(rows):
        if not isinstance(top, dict) or not isinstance(token, str) or not isinstance(value, int | float):
            continue
        where = f"choices[0].logprobs.top_logprobs[{number}]"
        most = request_fields(exchange).get("logprobs")
        if isinstance(most, int) and len(top) > most + 1:
            yield Problem(expected=f"at most {most + 1}", actual=str(len(top)), pointer=where)
        # Tokens that are parts of characters share one text, and so one key of the object.
        if "\ufffd" not in token and token not in top:
            yield Problem(expected=as_json(token), actual=as_json(list(top))[:200], pointer=where)


@whole("completions/logprobs/join", "Give tokens that join to the text", "CMP-05")
def _join(exchange: Exchange) -> Iterator[Problem]:
    choice = first(exchange)
    joined = "".join(map(str, _lists(choice)["tokens"]))
    if "\ufffd" in joined or "bytes:" in joined:
        raise Inconclusive("tokens that are parts of characters have no text")
    if str(choice.get("text")) not in joined:
        yield Problem(
            expected=as_json(choice.get("text")), actual=as_json(joined), pointer="choices[0].logprobs.tokens"
        )


def _streamed(exchange: Exchange) -> list[dict[str, Any]]:
    return [chunk for chunk in accepted(exchange).chunks if isinstance(chunk, dict)]


def _choices(chunks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for chunk in chunks:
        choices = chunk.get("choices")
        yield from (one for one in choices if isinstance(one, dict)) if isinstance(choices, list) else ()


def _text(chunks: list[dict[str, Any]]) -> str:
    return "".join(one["text"] for one in _choices(chunks) if isinstance(one.get("text"), str))


@stream(
    "completions/logprobs/stream-wire",
    "Frame one JSON object per event, and end with one [DONE]",
    *UNNAMED,
    "SSE-07",
)
def _wire(exchange: Exchange) -> Iterator[Problem]:
    yield from framing(exchange, named=False)
    yield from done_last(exchange)


@stream("completions/logprobs/stream-shape", "Send chunks as the contract requires", *CHUNKS)
def _stream_shape(exchange: Exchange) -> Iterator[Problem]:
    for number, chunk in enumerate(_streamed(exchange)):
        yield from violations("CreateCompletionStreamResponse", chunk, f"event {number}, ")


@check(
    "completions/logprobs/stream-tokens",
    "Stream the same tokens as without streaming",
    "CMP-05",
    request=STREAM,
)
def logprobs_stream_tokens(seen: Transcript) -> Iterator[Problem]:
    whole = first(at(seen, WHOLE))
    chunks = _streamed(at(seen, STREAM))
    logprobs = [one["logprobs"] for one in _choices(chunks) if isinstance(one.get("logprobs"), dict)]
    found = [
        token for lists in logprobs if isinstance(lists.get("tokens"), list) for token in lists["tokens"]
    ]
    wanted = _lists(whole)["tokens"]
    if _text(chunks) != whole.get("text"):
        if found != wanted or not found:
            raise Unsteady
        # The same tokens were drawn, so the same text is due.
        shown = as_json(_text(chunks))[:200]
        yield Problem(expected=as_json(whole.get("text"))[:200], actual=shown, pointer="choices[0].text")
    elif found != wanted:
        yield Problem(
            expected=as_json(wanted)[:200], actual=as_json(found)[:200], pointer="choices[0].logprobs.tokens"
        )


@stream("completions/logprobs/stream-offsets", "Continue the offsets from chunk to chunk", "CMP-05")
def _stream_offsets(exchange: Exchange) -> Iterator[Problem]:
    offsets: dict[str, list[object]] = {}
    tokens: dict[str, list[object]] = {}
    for one in _choices(_streamed(exchange)):
        lists = one.get("logprobs")
        if isinstance(lists, dict) and isinstance(lists.get("text_offset"), list):
            # Chunks of several choices can come in any order; each choice has its own offsets.
            offsets.setdefault(as_json(one.get("index")), []).extend(lists["text_offset"])
            tokens.setdefault(as_json(one.get("index")), []).extend(lists.get("tokens") or [])
    for place, found in offsets.items():
        numbers = [offset for offset in found if isinstance(offset, int)]
        if numbers != sorted(numbers):
            yield Problem(expected="ascending offsets", actual=as_json(found)[:200], pointer="text_offset")
        elif len(numbers) == len(tokens[place]):
            yield from _steps(tokens[place], numbers)


@check(
    "completions/logprobs/token-ids", "Count a prompt of token ids as its ids", "CMP-09", request="token_ids"
)
def logprobs_ids(seen: Transcript) -> Iterator[Problem]:
    count = usage_count(at(seen, "token_ids"), "prompt_tokens")
    if count != 3:
        yield Problem(expected="3", actual=str(count), pointer="usage.prompt_tokens")


@scenario(
    "completions/stop", "A completion, the same with a stop string, and streamed with usage", needs=NEEDS
)
def stop(target: Target) -> Steps:
    plain = yield Request(name="plain", path="/completions", json=_body(target, max_tokens=12))
    word = _stop_of(plain)
    if word:
        body = _body(target, max_tokens=12, stop=[word])
        yield Request(name=WHOLE, path="/completions", json=body)
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        yield Request(name=STREAM, path="/completions", json={**body, **streaming})


def _stop_of(exchange: Exchange) -> str:
    try:
        text = exchange.json["choices"][0]["text"]
    except (LookupError, TypeError):
        return ""
    return text[3:5] if isinstance(text, str) and "\ufffd" not in text and len(text) > 5 else ""


shapes_of("completions/stop", "CreateCompletionResponse", "plain", rules=("CMP-01",))
check("completions/stop/ids", "Give each answer a unique id", "CMP-01")(distinct_ids)


def _stop_and_texts(seen: Transcript) -> tuple[str, str, str]:
    """Return the stop string, the text before it, and the complete text."""
    plain = str(first(at(seen, "plain")).get("text"))
    word = _stop_of(at(seen, "plain"))
    if not word:
        raise Inconclusive("the answer is too short for a stop string")
    return word, plain[: plain.find(word)], plain


def _stopped_text(seen: Transcript, name: str) -> Any:
    """Return the text of one of the two answers that a stop string cut."""
    found = at(seen, name)
    return first(found).get("text") if name == WHOLE else _text(_streamed(found))


def _cut(seen: Transcript, name: str, other: str) -> Iterator[Problem]:
    word, wanted, plain = _stop_and_texts(seen)
    found = _stopped_text(seen, name)
    if not isinstance(found, str) or found == wanted:
        return
    if not same_answer(plain, word, found, texts_of([lambda: _stopped_text(seen, other)])):
        raise Unsteady
    yield Problem(expected=as_json(wanted), actual=as_json(found), pointer="choices[0].text", exchange=name)


@check("completions/stop/prefix", "Keep exactly the text before the stop string", "CHAT-20")
def stop_prefix(seen: Transcript) -> Iterator[Problem]:
    yield from _cut(seen, WHOLE, STREAM)


@check("completions/stop/stream-prefix", "Stream exactly the text before the stop string", "CHAT-20")
def stop_stream_prefix(seen: Transcript) -> Iterator[Problem]:
    yield from _cut(seen, STREAM, WHOLE)


@check("completions/stop/stream-shape", "Send chunks as the contract requires", *CHUNKS, request=STREAM)
def stop_stream_shape(seen: Transcript) -> Iterator[Problem]:
    _stop_and_texts(seen)
    for number, chunk in enumerate(_streamed(at(seen, STREAM))):
        yield from violations("CreateCompletionStreamResponse", chunk, f"event {number}, ")


@check("completions/stop/stream-usage", "Send the usage alone in the last chunk", "CMP-08", request=STREAM)
def stop_stream_usage(seen: Transcript) -> Iterator[Problem]:
    _stop_and_texts(seen)
    found = _streamed(at(seen, STREAM))
    places = [number for number, chunk in enumerate(found) if chunk.get("usage") is not None]
    if places != [len(found) - 1] or found[-1].get("choices") != []:
        yield Problem(expected="only in the last chunk", actual=as_json(places), pointer="usage")
        return
    yield from usage_adds_up(found[-1].get("usage"), prompt="prompt_tokens", completion="completion_tokens")


@check("completions/stop/same-prompt", "Count the same prompt in a stream", "CMP-08", request=STREAM)
def stop_same_prompt(seen: Transcript) -> Iterator[Problem]:
    _stop_and_texts(seen)
    usage = _streamed(at(seen, STREAM))[-1].get("usage")
    found = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    wanted = usage_count(at(seen, WHOLE), "prompt_tokens")
    if not isinstance(found, int):
        raise Inconclusive("the stream has no usage; another check reports this")
    if found != wanted:
        expected, where = f"{wanted}, as without streaming", "usage.prompt_tokens"
        yield Problem(expected=expected, actual=str(found), pointer=where)


@check(
    "completions/stop/stream-finish",
    "Finish the streamed choice exactly once, at its end",
    "CMP-08",
    request=STREAM,
)
def stop_stream_finish(seen: Transcript) -> Iterator[Problem]:
    _stop_and_texts(seen)
    reasons = [one.get("finish_reason") for one in _choices(_streamed(at(seen, STREAM)))]
    if [reason for reason in reasons if reason is not None] != reasons[-1:]:
        yield Problem(expected="one, the last", actual=as_json(reasons), pointer="choices[0].finish_reason")
