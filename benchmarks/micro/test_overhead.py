"""Measure the overhead of server and engine without a model: CPU time of one process, no sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from plumbline.answer.text.assemble import TextAssembler
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.engines.native.core import EngineCore
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.null_runner import NullRunner
from plumbline.engines.scripted import ScriptedEngine
from plumbline.pocket import MODEL_DIR
from plumbline.port.engine import EngineInfo, GenerateRequest, SamplingParams, TokenChunk, TokenLogprob
from plumbline.server.app import create_app
from plumbline.server.loading.catalog import only
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.protocols.common.sampling.parameters import Defaults
from plumbline.server.settings import Settings

EVENTS = 1000
TEXT = "The quick brown fox counts 1, 2, 3 and jumps over the lazy dog. " * 50


def scripted_app(num_tokens: int, room: int = 1_000_000, **settings: Any) -> tuple[Any, ScriptedEngine]:
    """Build the whole server over an engine that replays `num_tokens` tokens at once."""
    folder: Path = MODEL_DIR
    tokenizer = TextTokenizer.from_folder(folder)
    token = tokenizer.encode_text("a")[0]
    info = EngineInfo(
        name="scripted",
        model="scripted",
        vocab_size=tokenizer.vocab_size,
        max_model_len=100_000,
        eos_token_ids=frozenset(),
    )

    def script(_: GenerateRequest) -> Iterable[TokenChunk]:
        return [TokenChunk(token_ids=(token,)) for _ in range(num_tokens)]

    engine = ScriptedEngine(info, script, max_inflight=room)
    model = ServedModel(
        engine=engine,
        renderer=Renderer(tokenizer, ChatTemplate.from_folder(folder)),
        names=("scripted",),
        defaults=Defaults(vocab_size=tokenizer.vocab_size),
        created=0,
        fingerprint="fp_0",
    )
    return create_app(only(model), Settings(**settings)), engine


async def call(app: Any, path: str, body: dict[str, Any], status: int = 200) -> int:
    """Send one request to the ASGI application; returns the number of body messages."""
    payload = json.dumps(body).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(payload)).encode()),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    done = asyncio.Event()
    sent = 0
    read = False

    async def receive() -> dict[str, Any]:
        nonlocal read
        if not read:
            read = True
            return {"type": "http.request", "body": payload, "more_body": False}
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal sent
        if message["type"] == "http.response.start":
            assert message["status"] == status
        elif not message.get("more_body", False):
            done.set()
        sent += 1

    await app(scope, receive, send)
    return sent


CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
BODIES = {
    "chat": ("/v1/chat/completions", CHAT),
    "completions": ("/v1/completions", {"model": "scripted", "prompt": "hello", "max_tokens": EVENTS}),
    "responses": ("/v1/responses", {"model": "scripted", "input": "hello"}),
}


@pytest.mark.parametrize("surface", BODIES)
def test_server_per_streamed_event(benchmark: Any, surface: str) -> None:
    """Seconds per call divided by 1000 events; `extra_info` has microseconds per event."""
    app, _ = scripted_app(EVENTS)
    path, body = BODIES[surface]
    loop = asyncio.new_event_loop()

    def stream() -> int:
        return loop.run_until_complete(call(app, path, {**body, "stream": True}))

    assert benchmark(stream) > EVENTS
    benchmark.extra_info["us_per_event"] = benchmark.stats.stats.median / EVENTS * 1e6
    loop.close()


@pytest.mark.parametrize("surface", BODIES)
def test_server_per_request(benchmark: Any, surface: str) -> None:
    """A request that is answered with one token, not streamed."""
    app, _ = scripted_app(1)
    path, body = BODIES[surface]
    loop = asyncio.new_event_loop()
    benchmark(lambda: loop.run_until_complete(call(app, path, body)))
    benchmark.extra_info["us_per_request"] = benchmark.stats.stats.median * 1e6
    loop.close()


@pytest.mark.parametrize("traces", ["off", "on"])
def test_traces_per_request(benchmark: Any, traces: str) -> None:
    """Without the option the application has no layer for traces; with it, a collector that refuses connections."""
    endpoint = "http://127.0.0.1:1/v1/traces" if traces == "on" else ""
    app, _ = scripted_app(1, **({"otlp_traces_endpoint": endpoint} if endpoint else {}))
    path, body = BODIES["chat"]
    loop = asyncio.new_event_loop()
    benchmark(lambda: loop.run_until_complete(call(app, path, body)))
    benchmark.extra_info["us_per_request"] = benchmark.stats.stats.median * 1e6
    loop.close()


@pytest.mark.parametrize("surface", BODIES)
def test_server_per_refused_request(benchmark: Any, surface: str) -> None:
    """A request that a full server refuses before it reads it."""
    app, _ = scripted_app(1, room=0)
    loop = asyncio.new_event_loop()
    # The pool has the model only once it is loaded.
    loop.run_until_complete(app.models.start())
    path, body = BODIES[surface]
    benchmark(lambda: loop.run_until_complete(call(app, path, body, 429)))
    benchmark.extra_info["us_per_request"] = benchmark.stats.stats.median * 1e6
    loop.run_until_complete(app.models.close())
    loop.close()


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_engine_per_token(benchmark: Any, batch: int) -> None:
    """Scheduler and slots: 200 steps with a runner that draws random tokens. Goal: 20 us or less at batch 8."""
    steps = 200
    prompt = list(range(10, 74))

    def setup() -> tuple[tuple[EngineCore], dict[str, Any]]:
        config = EngineConfig(max_model_len=4096, num_blocks=4096, max_num_seqs=64)
        core = EngineCore(config, NullRunner(1024), frozenset())
        for index in range(batch):
            core.add(
                GenerateRequest(
                    request_id=str(index),
                    prompt_token_ids=prompt,
                    sampling=SamplingParams(max_tokens=steps + 10),
                )
            )
        core.step()
        return (core,), {}

    def run(core: EngineCore) -> None:
        for _ in range(steps):
            core.step()

    benchmark.pedantic(run, setup=setup, rounds=15)
    benchmark.extra_info["us_per_token"] = benchmark.stats.stats.median / steps / batch * 1e6


@pytest.mark.parametrize(("stop", "logprobs"), [((), False), (("END", "###"), False), ((), True)])
def test_detokenise_per_token(benchmark: Any, stop: tuple[str, ...], logprobs: bool) -> None:
    """Detokenising, stop strings and logprobs per token. Goal: 0.5 us or less without stop strings and logprobs."""
    tokenizer = TextTokenizer.from_folder(MODEL_DIR)
    ids = tokenizer.encode_text(TEXT)

    entries = [(TokenLogprob(token_id, -0.5),) for token_id in ids] if logprobs else None

    def run() -> None:
        push = TextAssembler(tokenizer, stop=stop, logprobs=logprobs).push
        if entries is None:
            for token_id in ids:
                push((token_id,))
        else:
            for token_id, entry in zip(ids, entries, strict=True):
                push((token_id,), entry)

    benchmark(run)
    benchmark.extra_info["us_per_token"] = benchmark.stats.stats.median / len(ids) * 1e6


def test_decode_stream_per_token(benchmark: Any) -> None:
    """The decode stream of the tokenizers library over the same tokens, which other servers use; no stop strings."""
    library = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    ids = library.encode(TEXT, add_special_tokens=False).ids

    def run() -> None:
        stream = DecodeStream(skip_special_tokens=True)
        for token_id in ids:
            stream.step(library, token_id)

    benchmark(run)
    benchmark.extra_info["us_per_token"] = benchmark.stats.stats.median / len(ids) * 1e6
