"""Serve a published model, and ask it over HTTP."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

from own_server.launch import KEY, DidNotStart, free_port, launched_server
from plumbline.answer.text.gguf.vocabulary import read_tokenizer
from plumbline_conformance.cli.check import check
from plumbline_conformance.suite.scenario import Target

from .answers import ADAPTER, answers
from .closeness import Adapted, with_adapter
from .files import Model
from .http import get, post
from .texts import drawn
from .vocabulary import Verdict

__all__ = ["judge_served", "serve"]

_PATIENCE = 300.0
"""Seconds for one request of the judge."""
_TEMPLATE = """\
{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}assistant:"""


def serve(model: Model, file: Path) -> Verdict:
    """Start the server on our own engine, with an adapter, and compare tokens, an answer and its repetition."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, ADAPTER)
        return _asked(model, file, folder, with_adapter(file, folder))


def _asked(model: Model, file: Path, folder: Path, adapted: Adapted) -> Verdict:
    began, problems = time.monotonic(), []
    try:
        with launched_server(None, "--model", str(file), "--lora", f"{ADAPTER}={folder}") as base:
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
            asked_more = answers(base, model, file, adapted)
    except DidNotStart:
        return Verdict("the server did not start", ["the server did not start"])
    line = f"ready after {seconds:.1f} s; answered {first!r:.60}; {asked_more.line}"
    return Verdict(line, [*problems, *asked_more.problems], row=asked_more.row)


def _text(answer: dict[str, Any]) -> str:
    choice = answer["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def judge_served(model: Model, file: Path) -> Verdict:
    """Judge the server with a model by all checks; a model without a chat template gets one, to be asked for chats."""
    name, mcp = file.stem, f"127.0.0.1:{free_port()}"
    options = ["--model", str(file), "--served-model-name", name, "--allow-mcp", mcp]
    with tempfile.TemporaryDirectory() as home:
        if not model.talks:
            template = Path(home, "chat_template.jinja")
            template.write_text(_TEMPLATE, "utf-8")
            options += ["--chat-template", str(template)]
        return _judged(name, mcp, options)


def _judged(name: str, mcp: str, options: list[str]) -> Verdict:
    try:
        with launched_server(KEY, *options) as base, tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            with contextlib.redirect_stdout(output):
                failed = check(
                    Target(base_url=base, model=name, api_key=KEY, mcp=mcp), trials=3, timeout=_PATIENCE
                )
            output.seek(0)
            printed = output.read().splitlines()
    except DidNotStart:
        return Verdict("the server did not start", ["the server did not start"])
    line = printed[-1] if printed else "nothing was printed"
    problems = [each for each in printed if each.startswith(("fail", "error"))] if failed else []
    if failed and not problems:
        problems = [line]
    return Verdict(line, problems, row={"judge": line})
