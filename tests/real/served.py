"""Serve a published model, and ask it over HTTP."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from own_server.launch import DidNotStart, launched_server
from plumbline.answer.text.gguf.vocabulary import read_tokenizer

from .answers import answers
from .files import Model
from .http import get, post
from .texts import drawn
from .vocabulary import Verdict

__all__ = ["serve"]


def serve(model: Model, file: Path) -> Verdict:
    """Start the server on our own engine, by default options, and compare tokens, an answer and its repetition."""
    began, problems = time.monotonic(), []
    try:
        with launched_server(None, "--model", str(file)) as base:
            seconds = time.monotonic() - began
            name = get(f"{base}/models")["data"][0]["id"]
            tokenizer = read_tokenizer(file)
            for text in drawn(40, sorted(tokenizer.added)[:40]):
                found = post(f"{base.removesuffix('/v1')}/tokenize", {"model": name, "prompt": text})
                if found["tokens"] != tokenizer.encode_prompt(text):
                    problems.append(f"/tokenize gives other ids of {text!r:.60}")
            asked: dict[str, Any] = {"model": name, "temperature": 0, "max_tokens": 16}
            path, asked = (
                ("chat/completions", asked | {"messages": [{"role": "user", "content": "Name a colour."}]})
                if model.talks
                else ("completions", asked | {"prompt": "The capital of France is"})
            )
            first, second = (_text(post(f"{base}/{path}", asked)) for _ in range(2))
            if not first.strip() or first != second:
                problems.append(f"two greedy answers are {first!r} and {second!r}")
            asked_more = answers(base, model, file)
    except DidNotStart:
        return Verdict("the server did not start", ["the server did not start"])
    line = f"ready after {seconds:.1f} s; answered {first!r:.60}; {asked_more.line}"
    return Verdict(line, [*problems, *asked_more.problems])


def _text(answer: dict[str, Any]) -> str:
    choice = answer["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])
