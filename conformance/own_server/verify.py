"""Tell apart servers with one fault each by `plumbline compare` (`nox -s verify`).

The baseline is our server with the pocket model. Each other server has one fault: another template, tools left out,
another parser, a temperature that is ignored, a lower limit of tokens, weights that are quantised too far. The one
without a fault must be found to be the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx2
from safetensors.torch import load_file, save_file

from own_server.launch import MODEL, launched_server
from plumbline.answer.dialects.raw_text import raw_text_reader
from plumbline.pocket import MODEL_DIR
from plumbline_conformance.suite.scenario import Target
from plumbline_conformance.verify.formats import lines
from plumbline_conformance.verify.verification import VerifiedRows, verify
from plumbline_training.texts import corpus
from plumbline_training.texts.words import Lexicon

Json = dict[str, Any]
FAULTS = ("none", "template", "tools", "parser", "sampling", "limit", "weights")
_CAUSES = {"none": set[str](), "tools": {"template"}}
"""The causes that a fault is found by, if not by its own name."""
_LEVELS = 2
"""On each side of zero, of the quantised weights: rounding to nearest in less than 3 bits. With 7 (4 bits)
the pocket model begins all of 90 greedy answers as before, so that 60 rows do not show it."""


def samples(count: int, seed: int) -> list[Json]:
    """Return requests that the pocket model was trained for and has not seen: half need a tool."""
    lexicon = Lexicon(random.Random(seed), "eval")
    found = []
    for number in range(count):
        sample = (corpus.tool_call if number % 2 else corpus.no_tool)(lexicon)
        messages = [
            {**message, "tool_calls": [_written(call) for call in message["tool_calls"]]}
            if "tool_calls" in message
            else message
            for message in sample.messages
        ]
        thinking = {"chat_template_kwargs": {"enable_thinking": False}}
        # Strict schemas restrict what can be written, so that some faults would not show.
        tools = [{**tool, "function": {**tool["function"], "strict": False}} for tool in sample.tools]
        body: Json = {"messages": messages, "tools": tools, "max_tokens": 96, **thinking}
        # As many greedy rows as drawn ones: each shows other faults.
        found.append({**body, "temperature": 0 if number % 4 < 2 else 1})
    return found


def _written(call: Json) -> Json:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"])}}


@contextmanager
def changing(upstream: str, change: Callable[[Json], Json]) -> Iterator[str]:
    """Run a proxy that changes the bodies of chat completions."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass(None)

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.path.endswith("/chat/completions"):
                data = json.dumps(change(json.loads(data))).encode()
            self._pass(data)

        def _pass(self, data: bytes | None) -> None:
            url = upstream.removesuffix("/v1") + self.path
            headers = {"content-type": "application/json"}
            answer = httpx2.request(self.command, url, content=data, headers=headers, timeout=60.0)
            self.send_response(answer.status_code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def quantised(folder: Path) -> Path:
    """Write the pocket model with matrices that are rounded to a few levels a row."""
    copy = folder / "quantised"
    shutil.copytree(MODEL_DIR, copy)
    for file in copy.glob("*.safetensors"):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if tensor.dim() == 2 and "embed" not in name:
                step = tensor.float().abs().amax(1, keepdim=True) / _LEVELS
                tensors[name] = ((tensor.float() / step).round() * step).to(tensor.dtype)
        save_file(tensors, file, {"format": "pt"})
    return copy


@contextmanager
def faulty(fault: str, upstream: str, folder: Path) -> Iterator[str]:
    """Run a server with a fault; those whose requests are changed are before the right one."""
    changes: dict[str, Callable[[Json], Json]] = {
        "sampling": lambda body: {**body, "temperature": 0},
        "limit": lambda body: {**body, "max_tokens": min(12, body.get("max_tokens", 12))},
        "tools": lambda body: {**body, "tools": (body.get("tools") or [])[:-1] or None},
    }
    options: list[str] = []
    if fault == "template":
        template = (MODEL_DIR / "chat_template.jinja").read_text("utf-8")
        path = folder / "template.jinja"
        # The default instructions of another model.
        path.write_text(
            template.replace("system\\n'", "system\\nYou are a helpful assistant.\\n'", 1), "utf-8"
        )
        options = ["--chat-template", str(path)]
    elif fault == "parser":
        options = ["--tool-parser", "mistral"]
    elif fault == "weights":
        options = ["--model", str(quantised(folder)), "--served-model-name", MODEL]
    if fault in changes:
        with changing(upstream, changes[fault]) as url:
            yield url
    elif fault == "none":
        yield upstream
    else:
        with launched_server(None, *options) as url:
            yield url


def main() -> int:
    """Verify each server; return 1 if a fault is not found, or is found where there is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", default=FAULTS, help="the faults to try (default: all)")
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory() as name, launched_server(None) as upstream:
        folder = Path(name)
        path, baseline = folder / "rows.jsonl", folder / "baseline.jsonl"
        path.write_text("\n".join(map(json.dumps, samples(arguments.rows, arguments.seed))), "utf-8")
        first = VerifiedRows(results=baseline, repeats=1)
        asyncio.run(verify(Target(base_url=upstream, model=MODEL), path, first, None))
        for fault in arguments.faults:
            with faulty(fault, upstream, folder) as url:
                target, asked = Target(base_url=url, model=MODEL), VerifiedRows(baselines=(baseline,))
                found = asyncio.run(verify(target, path, asked, raw_text_reader))
            causes = {cause.kind for cause in found.causes}
            right = causes == _CAUSES.get(fault, {fault}) and found.status == (fault != "none")
            print(f"== {fault}: {'right' if right else 'WRONG'}, status {found.status}", flush=True)
            print(
                "\n".join(line for line in lines(found) if not line.startswith(("  row", "    again"))),
                flush=True,
            )
            if not right:
                wrong.append(fault)
    print(f"wrong: {', '.join(wrong)}" if wrong else f"all {len(arguments.faults)} servers are told apart")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
