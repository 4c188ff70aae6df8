"""Ask a served model what the protocol and its file decide: templates, ends, seeds, a schema, a tool, a needle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from plumbline.answer.text.gguf.vocabulary import read_tokenizer
from plumbline.base.end_tokens import file_ends
from plumbline.base.gguf_file import read_metadata

from .closeness import Adapted, Served, compare
from .files import Model
from .http import get, post
from .texts import PROMPTS
from .vocabulary import Verdict

__all__ = ["ADAPTER", "answers"]

ADAPTER = "drawn"
"""The name of the server's adapter."""
_NEEDLE = 16_000
_CROWD = 12
"""Requests beside the one whose seed is tried."""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 40}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
_QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
_DIALOGS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Two  spaces\n\n世界 "}],
    [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "And 2 + 2?"},
    ],
)
_WITH_TOOLS: tuple[list[dict[str, Any]], ...] = (
    [_QUESTION],
    [
        _QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"weather": "sunny"}'},
    ],
)


def answers(base: str, model: Model, file: Path, adapted: Adapted) -> Verdict:
    """Ask a server of this repository about one model.

    Args:
        base: its URL, with `/v1`.
        model: the model.
        file: of the model, for the references.
        adapted: what the adapter `ADAPTER` of the server does.
    """
    served = get(f"{base}/models")["data"][0]
    asking = _Asking(base, served["id"])
    found = compare(asking, file)
    tried: dict[str, list[str]] = {
        "ends": [*_ends(asking, file)],
        "LoRA": [*adapted.judge(_Asking(base, ADAPTER))],
        "seed in a crowd": [*_crowd(asking)],
        "needle": [*_needle(asking, int(served.get("max_model_len") or _NEEDLE))],
    }
    if model.talks:
        tried["templates"] = [*_templates(asking, model, file)]
        tried["schema"] = [*_schema(asking)]
    if model.calls:
        tried["tool loop"] = [*_tool(asking)]
    row = {name: "no" if wrong else "yes" for name, wrong in tried.items()}
    line = f"{found.line}; tried {', '.join(tried)}"
    return Verdict(line, [*found.problems, *chain.from_iterable(tried.values())], row={**found.row, **row})


class _Asking(Served):
    def __init__(self, base: str, name: str) -> None:
        self._base, self._name = base, name

    def tokens(self, text: str) -> list[int]:
        return self.tokenize(prompt=text)

    def tokenize(self, **fields: Any) -> list[int]:
        path = f"{self._base.removesuffix('/v1')}/tokenize"
        found: list[int] = post(path, {"model": self._name, **fields})["tokens"]
        return found

    def scores(self, ids: list[int]) -> list[float]:
        answer = self.complete(prompt=ids, max_tokens=0, echo=True, logprobs=1)
        found: list[float] = answer["logprobs"]["token_logprobs"][1:]
        return found

    def greedy(self, ids: list[int], count: int) -> list[int]:
        return self.drawn(prompt=ids, max_tokens=count, ignore_eos=True)

    def drawn(self, **fields: Any) -> list[int]:
        answer = self.complete(**fields, logprobs=0, return_tokens_as_token_ids=True)
        return [int(text.removeprefix("token_id:")) for text in answer["logprobs"]["tokens"]]

    def complete(self, **fields: Any) -> dict[str, Any]:
        found: dict[str, Any] = post(
            f"{self._base}/completions", {"model": self._name, "temperature": 0, **fields}
        )
        return found["choices"][0]  # type: ignore[no-any-return]

    def chat(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        body = {"model": self._name, "temperature": 0, "messages": messages, **fields}
        return post(f"{self._base}/chat/completions", body)["choices"][0]  # type: ignore[no-any-return]


def _templates(asking: _Asking, model: Model, file: Path) -> Iterator[str]:
    """Compare prompts of conversations with those that transformers renders by the template of the file."""
    metadata = read_metadata(file, lambda key: key.startswith("tokenizer."))
    tokenizer = read_tokenizer(file)
    template = metadata["tokenizer.chat_template"]
    named = {"bos_token": tokenizer.bos_token or "", "eos_token": tokenizer.eos_token or ""}
    cases = [(dialog, None) for dialog in _DIALOGS]
    cases += [(dialog, [TOOL]) for dialog in _WITH_TOOLS if model.calls]  # type: ignore[misc]
    for dialog, tools in cases:
        (wanted,), _ = render_jinja_template(
            [dialog], tools=tools, chat_template=template, add_generation_prompt=True, **named
        )
        fields = {"messages": _as_sent(dialog)} | ({"tools": tools} if tools else {})  # type: ignore[redundant-expr]
        if asking.tokenize(**fields) != tokenizer.encode_rendered(wanted):
            yield f"the prompt of {dialog!r:.80} is not the one that transformers renders"


def _as_sent(dialog: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as clients send them, with arguments as JSON texts."""
    found: list[dict[str, Any]] = json.loads(json.dumps(dialog))
    for message in found:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return found


def _ends(asking: _Asking, file: Path) -> Iterator[str]:
    """Try that each end that the file names ends an answer, and is no part of its text, unless it is ignored."""
    for end in sorted(file_ends(read_metadata(file, lambda key: key.startswith("tokenizer.")))):
        forced = {"prompt": "Hello", "max_tokens": 4, "logit_bias": {str(end): 100}}
        answer = asking.complete(**forced)
        if (answer["finish_reason"], answer["text"]) != ("stop", ""):
            yield f"the end {end} gives {answer['text']!r:.40}, {answer['finish_reason']}"
        if asking.complete(**forced, ignore_eos=True)["finish_reason"] != "length":
            yield f"the end {end} ends an answer that ignores it"


def _crowd(asking: _Asking) -> Iterator[str]:
    """Try that a seed gives the same tokens alone and beside requests with others."""
    fields = {"prompt": PROMPTS[0], "max_tokens": 32, "temperature": 1.0, "ignore_eos": True}
    alone = asking.drawn(**fields, seed=7)
    with ThreadPoolExecutor(_CROWD + 1) as threads:
        crowd = [
            threads.submit(asking.drawn, **fields | {"prompt": PROMPTS[1 + each]}, seed=each)
            for each in range(_CROWD)
        ]
        amid = threads.submit(asking.drawn, **fields, seed=7).result()
        for each in crowd:
            each.result()
    if amid != alone:
        yield f"seed 7 gives {alone} alone and {amid} beside {_CROWD} requests"


def _needle(asking: _Asking, context: int) -> Iterator[str]:
    """Ask for a number that a long text has in its middle."""
    filler = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
    needle = "The pass key of the old tower is 48271. Remember it. "
    each, length = len(asking.tokens(filler)), min(_NEEDLE, context - 64)
    times = (length - 64) // each
    text = filler * (times // 2) + needle + filler * (times - times // 2) + "The pass key of the old tower is"
    found = asking.complete(prompt=text, max_tokens=8)["text"]
    if "48271" not in found.replace(" ", ""):
        yield f"the needle in {length:,} tokens was not found: {found!r}"


def _schema(asking: _Asking) -> Iterator[str]:
    form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}
    question = [{"role": "user", "content": "Name a city and how many people live there."}]
    found = asking.chat(question, response_format=form, max_tokens=200)["message"]["content"]
    try:
        value = json.loads(found)
    except ValueError:
        yield f"the answer to a schema is no JSON: {found!r:.80}"
        return
    if set(value) != {"city", "people"} or not isinstance(value["people"], int):
        yield f"the answer breaks its schema: {found!r:.80}"


def _tool(asking: _Asking) -> Iterator[str]:
    """Make one round with a tool."""
    messages: list[dict[str, Any]] = [_QUESTION]
    first = asking.chat(messages, tools=[TOOL], tool_choice="required", max_tokens=200)
    calls = first["message"].get("tool_calls") or []
    if first["finish_reason"] != "tool_calls" or not calls:
        yield f"no tool was called: {first!r:.120}"
        return
    if calls[0]["function"]["name"] != "weather" or "city" not in json.loads(
        calls[0]["function"]["arguments"]
    ):
        yield f"another call was made: {calls!r:.120}"
    messages += [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": '{"weather": "sunny, 21 degrees"}'},
    ]
    last = asking.chat(messages, tools=[TOOL], tool_choice="none", max_tokens=60)
    if not (last["message"]["content"] or "").strip():
        yield "there is no answer to the result of a tool"
