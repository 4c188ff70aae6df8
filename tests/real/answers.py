"""Ask a served model what its reference can check: perplexity, greedy answers, a schema, a tool, a needle."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .files import Model
from .http import get, post
from .reference import LlamaCpp, logits_by_llama_cpp
from .vocabulary import Verdict

__all__ = ["answers"]

ROOT = Path(__file__).parents[2]
TEXTS = {
    "prose": ROOT / "docs" / "guides" / "sampling.md",
    "code": ROOT / "src" / "plumbline" / "engines" / "native" / "core.py",
    "data": ROOT / "openapi" / "plumbline.yaml",
}
"""Texts of this repository, by kind."""
_LENGTH = 512
"""Tokens of a text."""
_MOST_RATIO = 1.005
"""Of our perplexity and llama.cpp's."""
_MOST_GAP = 0.2
"""Between llama.cpp's best logit and that of our token: where it is smaller, rounding decides."""
_NEEDLE = 16_000
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Water boils at",
    "1, 2, 3, 4,",
    "import json\n\nwith open(",
    "The three primary colours are",
    "In 1969, the first",
    '{"name": "Ada", "age":',
    "A haiku about the sea:\n",
    "SELECT name FROM users WHERE",
    "The opposite of hot is",
    "class Stack:\n    def __init__(self):",
    "Die Hauptstadt von Deutschland ist",
    "Once upon a time",
    "The chemical formula of water is",
    "for i in range(10):\n",
    "Q: What is 7 times 8?\nA:",
    "To make bread you need",
    "The planets of the solar system are",
    "git commit -m",
    "Roses are red,",
    "#include <stdio.h>\n\nint main(",
    "The largest ocean is",
    "Monday, Tuesday,",
    "Dear Sir or Madam,\n",
    "try:\n    value = int(text)\nexcept",
    "The speed of light is",
    "Step 1: open the",
    "Shakespeare wrote",
    "<html>\n<head>\n",
)
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


def answers(base: str, model: Model, file: Path) -> Verdict:
    """Ask a server of this repository about one model.

    Args:
        base: its URL, with `/v1`.
        model: the model.
        file: of the model, for llama.cpp.
    """
    served = get(f"{base}/models")["data"][0]
    asking = _Asking(base, served["id"])
    parts, problems = [], []
    with logits_by_llama_cpp(file) as reference:
        if reference is None:
            parts.append("no llama.cpp")
        else:
            for found, wrong in (_perplexity(asking, reference), _greedy(asking, reference)):
                parts.append(found)
                problems += wrong
    problems += _needle(asking, int(served.get("max_model_len") or _NEEDLE))
    if model.talks:
        problems += _schema(asking)
    if model.calls:
        problems += _tool(asking)
    parts.append("needle" + ", schema" * model.talks + ", tool loop" * model.calls)
    return Verdict("; ".join(parts), problems)


class _Asking:
    def __init__(self, base: str, name: str) -> None:
        self._base, self._name = base, name

    def tokens(self, text: str) -> list[int]:
        path = f"{self._base.removesuffix('/v1')}/tokenize"
        found: list[int] = post(path, {"model": self._name, "prompt": text})["tokens"]
        return found

    def complete(self, **fields: Any) -> dict[str, Any]:
        found: dict[str, Any] = post(
            f"{self._base}/completions", {"model": self._name, "temperature": 0, **fields}
        )
        return found["choices"][0]  # type: ignore[no-any-return]

    def chat(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        body = {"model": self._name, "temperature": 0, "messages": messages, **fields}
        return post(f"{self._base}/chat/completions", body)["choices"][0]  # type: ignore[no-any-return]


def _perplexity(asking: _Asking, reference: LlamaCpp) -> tuple[str, list[str]]:
    """Compare the mean log probability of texts."""
    shown, problems = [], []
    for kind, path in TEXTS.items():
        ids = asking.tokens(path.read_text("utf-8")[: 12 * _LENGTH])[:_LENGTH]
        answer = asking.complete(prompt=ids, max_tokens=0, echo=True, logprobs=1)
        ours = math.exp(-np.mean(answer["logprobs"]["token_logprobs"][1:]))
        logits = reference(ids)[:-1].astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        taken = np.take_along_axis(logits, np.array(ids[1:])[:, None], axis=-1)[:, 0]
        theirs = math.exp(np.mean(np.log(np.exp(logits).sum(axis=-1)) - taken))
        shown.append(f"{kind} {ours:.3f} / {theirs:.3f}")
        if ours > theirs * _MOST_RATIO:
            problems.append(
                f"the perplexity of {kind} is {ours:.3f}, more than 0.5 % above llama.cpp's {theirs:.3f}"
            )
    return f"perplexity of {', '.join(shown)}", problems


def _greedy(asking: _Asking, reference: LlamaCpp) -> tuple[str, list[str]]:
    """Compare greedy answers, each token behind the same ones."""
    same, problems, largest = 0, [], 0.0
    for prompt in PROMPTS:
        before = asking.tokens(prompt)
        answer = asking.complete(
            prompt=before, max_tokens=24, ignore_eos=True, logprobs=0, return_tokens_as_token_ids=True
        )
        ids = [int(text.removeprefix("token_id:")) for text in answer["logprobs"]["tokens"]]
        logits = reference([*before, *ids])[len(before) - 1 : -1]
        gaps = logits.max(axis=-1) - np.take_along_axis(logits, np.array(ids)[:, None], axis=-1)[:, 0]
        first = next((float(gap) for gap in gaps if gap > 0), 0.0)
        same += first == 0.0
        largest = max(largest, first)
        if first >= _MOST_GAP:
            problems.append(f"the answer to {prompt!r} differs where llama.cpp's gap is {first:.2f}")
    return f"{same} of {len(PROMPTS)} greedy answers are llama.cpp's, gap {largest:.2f} at most", problems


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
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
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
