"""Write chat completions and legacy completions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

from example_servers.reference.model_output import Output, entry, output, pieces
from example_servers.reference.refusals import names_of

__all__ = ["answer", "chunks", "complete", "completion_chunks"]

Json = dict[str, Any]
_MADE = count(1)
_CALLS = count(1)


def _head(prefix: str, body: Json) -> Json:
    """Return a new id and the time (CHAT-01)."""
    named = {"id": f"{prefix}-{next(_MADE)}", "created": int(time.time()), "system_fingerprint": "fp_1"}
    return {**named, "model": body["model"]}


def _tools(body: Json) -> list[Json]:
    return [{"kind": tool["type"], **tool[tool["type"]]} for tool in body.get("tools") or []]


def _schema(body: Json) -> Json | None:
    output_format = body.get("response_format") or {}
    if output_format.get("type") == "json_schema":
        return output_format["json_schema"].get("schema") or {}
    if output_format.get("type") == "json_object":
        return {"properties": {"city": {"type": "string"}}}
    structured = body.get("structured_outputs")
    return None if structured is None else structured.get("json") or structured


def _question(body: Json) -> str:
    message = body["messages"][-1]
    content = message.get("content")
    return content if message["role"] == "user" and isinstance(content, str) else ""


def _output(body: Json) -> Output:
    if 100 in (body.get("logit_bias") or {}).values():
        return Output(
            text="a" * int(body.get("max_completion_tokens") or body["max_tokens"]), finish="length"
        )
    choice = body.get("tool_choice")
    stop = body.get("stop")
    return output(
        _question(body),
        tools=_tools(body),
        choice=names_of(choice) if isinstance(choice, dict) else choice,
        parallel=body.get("parallel_tool_calls") is not False,
        # A continued answer has its reasoning behind it.
        thinks=body.get("reasoning_effort") not in (None, "none") and not body.get("continue_final_message"),
        constraint=_schema(body),
        stop=[stop] if isinstance(stop, str) else stop,
        limit=body.get("max_completion_tokens") or body.get("max_tokens"),
    )


def _prompt(body: Json) -> int:
    calls = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
    called = sum(len(call.get("function", {}).get("arguments") or "") for call in calls)
    texts = [
        _text(message.get("content")) or (not message.get("tool_calls")) * "x" for message in body["messages"]
    ]
    return called + sum(map(len, texts))


def _text(content: Any) -> str:
    if not isinstance(content, list):
        return str(content or "")
    return "".join(str(part.get("text", part.get("refusal", ""))) for part in content)


def _usage(prompt: int, completion: int, thought: int = 0) -> Json:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def _total(body: Json, found: Output) -> Json:
    number = body.get("n") or 1
    return _usage(_prompt(body), found.tokens * number, len(found.reasoning) * number)


def _logprobs(body: Json, text: str) -> Json | None:
    if not body.get("logprobs"):
        return None
    top = body.get("top_logprobs") or 0
    return {"content": [entry(char, top) for char in text], "refusal": None}


def _calls(found: Output, choice: int) -> Iterator[Json]:
    for place, call in enumerate(found.calls):
        kind = call.kind
        function = {"name": call.name, "input" if kind == "custom" else "arguments": call.arguments}
        yield {"id": f"call_{next(_CALLS)}_{choice}_{place}", "type": kind, kind: function}


def answer(body: Json) -> Json:
    """Return a non-streaming chat completion."""
    found = _output(body)
    choices = []
    for index in range(body.get("n") or 1):
        message: Json = {"role": "assistant", "content": found.text or None, "refusal": None}
        if found.reasoning:
            message["reasoning_content"] = found.reasoning
        if found.calls:
            message["tool_calls"] = list(_calls(found, index))
        elif not found.reasoning:
            message["content"] = found.text
        logprobs = _logprobs(body, found.text)
        choices.append(
            {"index": index, "message": message, "logprobs": logprobs, "finish_reason": found.finish}
        )
    return {
        **_head("chatcmpl", body),
        **({"service_tier": "default"} if body.get("service_tier") else {}),
        **({"metadata": body["metadata"]} if body.get("metadata") else {}),
        "object": "chat.completion",
        "choices": choices,
        "usage": _total(body, found),
    }


def chunks(body: Json) -> Iterator[Json]:
    """Return the chunks of a stream: roles, then the choices interleaved, then their ends."""
    found = _output(body)
    head = {**_head("chatcmpl", body), "object": "chat.completion.chunk"}
    asked = (body.get("stream_options") or {}).get("include_usage")
    more = {"usage": None} if asked else {}

    def one(index: int, delta: Json, reason: str | None = None) -> Json:
        logprobs = _logprobs(body, delta.get("content") or "")
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**head, "choices": [choice], **more}

    places = range(body.get("n") or 1)
    yield from (one(index, {"role": "assistant", "content": ""}) for index in places)
    for piece in pieces(found.reasoning):
        yield from (one(index, {"reasoning_content": piece}) for index in places)
    for piece in pieces(found.text):
        yield from (one(index, {"content": piece}) for index in places)
    for index in places:
        for place, call in enumerate(_calls(found, index)):
            yield from (one(index, {"tool_calls": [delta]}) for delta in _call_deltas(place, call))
    yield from (one(index, {}, found.finish) for index in places)
    if asked:
        yield {**head, "choices": [], "usage": _total(body, found)}


def _call_deltas(place: int, call: Json) -> Iterator[Json]:
    """Return the fragments of a call: id, type and name only in the first (CS-10)."""
    kind = call["type"]
    key = "input" if kind == "custom" else "arguments"
    yield {"index": place, "id": call["id"], "type": kind, kind: {"name": call[kind]["name"], key: ""}}
    for piece in pieces(call[kind][key]):
        yield {"index": place, kind: {key: piece}}


def _prompts(body: Json) -> list[str]:
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return ["".join(chr(97 + token % 26) for token in prompt)]
    return [one if isinstance(one, str) else _prompts({"prompt": one})[0] for one in prompt]


def _completion(body: Json, prompt: str) -> tuple[str, Output]:
    if 100 in (body.get("logit_bias") or {}).values():
        return "a" * body["max_tokens"], Output(text="a" * body["max_tokens"], finish="length")
    stop = body.get("stop")
    found = output(
        "", tools=[], stop=[stop] if isinstance(stop, str) else stop, limit=body.get("max_tokens", 16)
    )
    return (prompt if body.get("echo") else "") + found.text, found


def _lists(body: Json, text: str, start: int = 0, worse: float = 0.0) -> Json | None:
    if body.get("logprobs") is None:
        return None
    top = [
        {each["token"]: each["logprob"] for each in entry(c, body["logprobs"])["top_logprobs"]} for c in text
    ]
    lists: Json = {
        "tokens": list(text),
        "token_logprobs": [-0.5 - worse] * len(text),
        "top_logprobs": top,
        "text_offset": list(range(start, start + len(text))),
    }
    if body.get("echo") and start == 0 and text:
        lists["token_logprobs"][0] = lists["top_logprobs"][0] = None
    return lists


def _candidates(body: Json, text: str) -> list[tuple[str, float]]:
    """Return equally long texts, each with the logprob that its tokens lack to the best (CMP-06)."""
    number, best = body.get("n") or 1, body.get("best_of") or 1
    found = [(text[place:] + text[:place], 0.1 * (3 - place) % 0.4) for place in range(max(number, best))]
    if len(found) == 1:
        return [(text, 0.0)]
    return sorted(found, key=lambda one: one[1]) if best > number else found


def complete(body: Json) -> Json:
    """Return a non-streaming legacy completion."""
    choices: list[Json] = []
    prompts = _prompts(body)
    for prompt in prompts:
        text, found = _completion(body, prompt)
        echo = text[: len(text) - len(found.text)]
        for answer, worse in _candidates(body, found.text)[: body.get("n") or 1]:
            one_text = echo + answer
            logprobs = _lists(body, one_text, worse=worse)
            one = {
                "index": len(choices),
                "text": one_text,
                "logprobs": logprobs,
                "finish_reason": found.finish,
            }
            choices.append(one)
    tokens = found.tokens * len(prompts) * max(body.get("n") or 1, body.get("best_of") or 1)
    usage = _usage(sum(map(len, prompts)), tokens)
    head = {**_head("cmpl", body), "object": "text_completion"}
    return {**head, "choices": choices, "usage": usage}


def completion_chunks(body: Json) -> Iterator[Json]:
    """Return the chunks of a streaming legacy completion."""
    whole = complete(body)
    usage = whole.pop("usage")
    asked = (body.get("stream_options") or {}).get("include_usage")
    more = {"usage": None} if asked else {}
    for choice in whole["choices"]:
        at = 0
        for piece in pieces(choice["text"]):
            one = {**choice, "text": piece, "logprobs": _lists(body, piece, at), "finish_reason": None}
            yield {**whole, "choices": [one], **more}
            at += len(piece)
        yield {**whole, "choices": [{**choice, "text": "", "logprobs": None}], **more}
    if asked:
        yield {**whole, "choices": [], "usage": usage}
