"""Provide transcripts of the reference for all scenarios, and our server over a scripted engine."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from functools import cache
from typing import Any

import uvicorn

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from example_servers.reference import application
from example_servers.reference.names import KEY, MODEL
from example_servers.transcript_cache import cached
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import EngineInfo, GenerateRequest, TokenChunk, TokenLogprob
from plumbline.server.app import create_app
from plumbline.server.loading.catalog import only
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.protocols.common.sampling.parameters import Defaults
from plumbline.server.settings import Settings
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.scenario import SCENARIOS, Target
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["KEY", "MODEL", "app", "serving", "target_at", "transcripts"]

WORDS = "Grüße! 🌊 It is 21 °C."


def tokenizer() -> TextTokenizer:
    """A tokenizer with one token per byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return TextTokenizer(
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": {
                "type": "BPE",
                "vocab": {alphabet[byte]: byte for byte in range(256)},
                "merges": [],
            },
        }
    )


def script(request: GenerateRequest) -> Iterable[TokenChunk]:
    """Return the sentence as tokens, or as many of a token that `logit_bias` forces; with logprobs if requested."""
    wanted = request.sampling.logprobs
    forced = [token for token, bias in request.sampling.logit_bias.items() if bias >= 100]
    for byte in forced[:1] * len(WORDS) or WORDS.encode():
        logprobs = None if wanted is None else (_entry(byte, wanted),)
        yield TokenChunk(token_ids=(byte,), logprobs=logprobs)


class Engine(ScriptedEngine):
    """Scripted engine that also returns logprobs of prompts."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        count = request.sampling.prompt_logprobs
        if count is not None:
            entries = [_entry(token, count) for token in request.prompt_token_ids]
            yield TokenChunk(prompt_logprobs=(None, *entries[1:]))
        async with aclosing(super().generate(request)) as chunks:
            async for chunk in chunks:
                yield chunk


def _entry(token: int, count: int) -> TokenLogprob:
    top = [((token + rank) % 128, math.log(0.5) * (1 + rank)) for rank in range(count)]
    return TokenLogprob(token, math.log(0.5), tuple(top))


def app() -> Any:
    """Return the ASGI application."""
    text = tokenizer()
    info = EngineInfo(
        name="scripted",
        model=MODEL,
        vocab_size=text.vocab_size,
        max_model_len=4096,
        eos_token_ids=frozenset(),
        features=frozenset({"logprobs", "prompt_logprobs"}),
    )
    template = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
    )
    model = ServedModel(
        engine=Engine(info, script),
        renderer=Renderer(text, ChatTemplate(template)),
        names=(MODEL,),
        defaults=Defaults(vocab_size=text.vocab_size),
        created=1_764_000_000,
        fingerprint="fp_0",
    )
    return create_app(only(model), Settings(allowed_hosts=("testserver",)))


@contextmanager
def serving(application: Any, port: int = 0) -> Iterator[str]:
    """Serve an ASGI application on a port, by default a free one; yield the base URL."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        config = uvicorn.Config(application, log_level="critical", access_log=False, lifespan="on")
        server = uvicorn.Server(config)
        ended = threading.Event()

        def run() -> None:
            try:
                asyncio.run(server.serve([listener]))
            finally:
                ended.set()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            while not server.started and not ended.wait(0.01):
                pass
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join()


@cache
def transcripts() -> dict[str, Transcript]:
    """Return the transcripts of the reference for all scenarios."""
    return {transcript.scenario: transcript for transcript in cached(_recorded)}


def target_at(base_url: str) -> Target:
    """Return the reference at this address as the target of a run that has all scenarios."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return Target(base_url=base_url, model=MODEL, api_key=KEY, mcp=f"127.0.0.1:{port}")


def _recorded() -> list[Transcript]:
    with serving(application()) as base_url:
        target = target_at(base_url)
        return asyncio.run(record(list(SCENARIOS.values()), target))
