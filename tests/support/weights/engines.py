"""Start each engine that is installed on the pocket model, and compute what they have to answer.

`tests/engines/contract` holds the laws. An engine comes up the way the server loads it, in fp32, on an event loop of
its own that lives as long as the tests that use it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer

from plumbline.engines.remote.client import RemoteEngine
from plumbline.engines.remote.host import EngineHost
from plumbline.pocket import MODEL_DIR
from plumbline.port.engine import Engine, GenerateRequest, SamplingParams, TokenChunk
from plumbline.server.loading.served_model import ServedModel, load
from plumbline.server.settings import Settings
from plumbline_training.texts import corpus
from plumbline_training.texts.words import Lexicon
from support.servers.pocket import text_model
from support.weights.adapters import merge, write_adapter
from support.weights.rounded import rounded_model, write_rounded
from support.weights.upcycled import write_experts

__all__ = [
    "ENGINES",
    "NUM_WAITING",
    "Answer",
    "EngineKind",
    "Harness",
    "Reference",
    "decode",
    "encode",
    "pocket_adapter",
    "prompts",
    "started",
    "token_id",
]

NUM_PLACES = 32
"""Requests that run at a time, in engines that let one say it."""
NUM_WAITING = 32
MAX_MODEL_LEN = 1024

Value = TypeVar("Value")
Adjust = Callable[[NDArray[np.float64], list[int], list[int]], NDArray[np.float64]]
"""Change logits fp64 [V], given the prompt and the output so far."""


def _pocket_gguf(folder: Path) -> str:
    """Write the pocket model as a GGUF file in fp32."""
    from plumbline.pocket.to_gguf import write

    write(MODEL_DIR, folder / "pocket.gguf")
    return str(folder / "pocket.gguf")


def pocket_adapter(folder: Path) -> Path:
    """Write an adapter of the pocket model, which changes it little enough that it ends its answers."""
    return write_adapter(
        folder / "small", text_model(), ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"), size=0.1
    )


@dataclass(frozen=True)
class EngineKind:
    """An engine that the contract is tried on."""

    name: str
    needs: tuple[str, ...] = ()
    """The packages that have to be installed."""
    settings: dict[str, Any] = field(default_factory=dict)
    model: Callable[[Path], str] = lambda _: ""
    """Returns the model to serve; the argument is a folder for files that it makes."""
    reference: Callable[[], Any] = text_model
    """Returns the same model in transformers."""
    num_places: int = NUM_PLACES
    tolerance: float = 1e-3
    """The largest difference of a logprob from the reference in fp32."""
    shares_prefixes: bool = True
    adapter: bool = False
    """Whether all requests have an adapter."""
    remote: bool = False
    """Whether it is used over the socket of an `EngineHost`, as API servers do."""

    @property
    def missing(self) -> str:
        """The packages that it needs and that are not there."""
        return ", ".join(each for each in self.needs if importlib.util.find_spec(each) is None)


ENGINES = [
    EngineKind("native", settings={"engine": "plumbline"}),
    EngineKind("native_adapter", settings={"engine": "plumbline", "lora_dir": "."}, adapter=True),
    EngineKind("native_experts", settings={"engine": "plumbline"}, model=write_experts),
    EngineKind(
        "native_quantised",
        # Kernels that keep the weights in 4 bits round inputs to 8, which transformers does not.
        settings={"engine": "plumbline", "quantization": "none"},
        model=write_rounded,
        reference=rounded_model,
    ),
    EngineKind("remote", settings={"engine": "plumbline"}, remote=True),
    EngineKind("transformers", settings={"engine": "transformers"}, shares_prefixes=False),
    EngineKind("llama_cpp", needs=("llama_cpp", "gguf"), model=_pocket_gguf),
    EngineKind(
        "llama_cpp_pool",
        needs=("llama_cpp", "gguf"),
        model=_pocket_gguf,
        # 2560 bytes a token. Four short requests have sequences of their own, others share a pool.
        settings={
            "max_model_len": 4096,
            "kv_cache_bytes": 2560 * 1024,
            "max_num_seqs": 8,
            "max_seqs_per_client": 0,
        },
        num_places=8,
    ),
    EngineKind(
        "vllm",
        needs=("vllm",),
        settings={"engine": "vllm", "engine_args": ("enforce_eager=true",), "kv_cache_bytes": 1 << 30},
    ),
]


@dataclass(frozen=True)
class Answer:
    """All chunks of a request."""

    chunks: list[TokenChunk]

    @property
    def token_ids(self) -> list[int]:
        """The output."""
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def reason(self) -> str | None:
        """Why it ended."""
        return self.chunks[-1].finish_reason

    @property
    def logprobs(self) -> list[Any]:
        """The entry of each token."""
        return [entry for chunk in self.chunks for entry in chunk.logprobs or ()]


class Harness:
    """A started engine, driven from the thread of the test."""

    def __init__(
        self,
        kind: EngineKind,
        served: ServedModel,
        loop: asyncio.AbstractEventLoop,
        adapter: Path | None = None,
    ) -> None:
        self.kind = kind
        self.adapter = adapter
        """The folder of the adapter of all requests."""
        self.served = served
        self.engine: Engine = served.engine
        self.stats = served.engine.stats
        """The counters, from the engine itself: those of a remote one are a little older."""
        self.features = served.engine.info.features
        self._loop = loop
        self._ids = count()

    def run(self, work: Coroutine[Any, Any, Value], timeout: float = 120.0) -> Value:
        """Run a coroutine on the engine's loop."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout), self._loop).result()

    def request(
        self, prompt: Sequence[int], *, priority: int = 0, salt: str | None = None, **sampling: Any
    ) -> GenerateRequest:
        """Build a request; it is greedy, of 20 tokens at most, unless `sampling` says otherwise."""
        return GenerateRequest(
            request_id=f"r{next(self._ids)}",
            prompt_token_ids=list(prompt),
            priority=priority,
            cache_salt=salt,
            adapter=None if self.adapter is None else self.adapter.name,
            sampling=SamplingParams(**({"temperature": 0.0, "max_tokens": 20} | sampling)),
        )

    def answers(self, *requests: GenerateRequest) -> list[Answer]:
        """Answer requests side by side."""

        async def work() -> list[Answer]:
            return await asyncio.gather(*(self.collect(request) for request in requests))

        return self.run(work())

    def answer(self, prompt: Sequence[int], **sampling: Any) -> Answer:
        """Answer one request."""
        return self.answers(self.request(prompt, **sampling))[0]

    async def collect(self, request: GenerateRequest) -> Answer:
        """Read a request to its end, on the engine's loop."""
        return Answer([chunk async for chunk in self.engine.generate(request)])

    def stream(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Begin a request; for coroutines of tests."""
        return self.engine.generate(request)

    async def idle(self) -> None:
        """Wait until nothing runs or waits."""
        while (now := self.stats()).num_running or now.num_waiting:
            await asyncio.sleep(0.005)


class Only:
    """A processor of logits that allows one token."""

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id

    def __call__(self, prompt_ids: Sequence[int], output_ids: Sequence[int], logits: Any) -> Any:
        """Ban all others."""
        kept = float(logits[self._token_id])
        logits.fill_(float("-inf"))
        logits[self._token_id] = kept
        return logits


@contextmanager
def started(kind: EngineKind, folder: Path) -> Iterator[Harness]:
    """Load and start an engine; stop it at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    settings: dict[str, Any] = {
        "models": (("", str(kind.model(folder))),),
        "dtype": "float32",
        "device": "auto" if kind.settings.get("engine") == "vllm" else "cpu",
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": NUM_PLACES,
        "max_num_waiting": NUM_WAITING,
    }
    if kind.settings.get("engine") != "vllm":
        settings["logits_processors"] = (("only", f"{__name__}:Only"),)
    served = load(Settings(**(settings | kind.settings)))
    adapter = pocket_adapter(folder) if kind.adapter else None
    harness = Harness(kind, served, loop, adapter)
    harness.run(served.engine.start(), 300)
    if adapter is not None:
        harness.run(served.engine.load_adapter(adapter.name, adapter))
    host = EngineHost(served.engine, folder / "engine.sock")
    if kind.remote:
        harness.run(host.start())
        remote = harness.run(RemoteEngine.connect(folder / "engine.sock"))
        harness.run(remote.start())
        harness.engine = remote
    try:
        yield harness
    finally:
        if kind.remote:
            harness.run(harness.engine.stop())
            harness.run(host.stop())
        harness.run(served.engine.stop(), 60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def prompts(number: int, seed: int = 1) -> list[list[int]]:
    """Return prompts of the pocket model's kinds of tasks: short and long, with tools and without."""
    lexicon = Lexicon(random.Random(seed), "eval")
    makers = (corpus.talk, corpus.instruction, corpus.tool_call, corpus.json_answer, corpus.tool_result)
    samples = [makers[index % len(makers)](lexicon) for index in range(number)]
    return [encode(sample.messages, sample.tools) for sample in samples]


def encode(messages: list[dict[str, Any]], tools: Any = None, *, thinking: bool = False) -> list[int]:
    """Return the ids of a conversation, written and encoded by transformers."""
    text = _tokenizer().apply_chat_template(
        messages, tools=tools or None, add_generation_prompt=True, tokenize=False, enable_thinking=thinking
    )
    return list(_tokenizer().encode(text))


def decode(token_ids: Sequence[int]) -> str:
    """Return the text of tokens without the special ones."""
    return str(_tokenizer().decode(list(token_ids), skip_special_tokens=True))


def token_id(marker: str) -> int:
    """Return the id of an added token."""
    return int(_tokenizer().convert_tokens_to_ids(marker))


@cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_DIR)


class Reference:
    """The pocket model in transformers, in a loop of its own: what engines are compared with."""

    def __init__(self, adapter: Path | None = None, model: Callable[[], Any] = text_model) -> None:
        """Load the model that `model` returns; an adapter is merged into its weights."""
        torch.set_num_threads(1)
        self._model = model()
        if adapter is not None:
            merge(self._model, adapter)
        self.eos = int(self._model.config.eos_token_id)
        self._known: dict[tuple[int, ...], list[int]] = {}
        """The longest greedy output of each prompt so far: every engine is compared with the same ones."""

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return logits fp64 [len(ids), V]."""
        out: NDArray[np.float64] = self._model(input_ids=torch.tensor([list(ids)])).logits[0].double().numpy()
        return out

    def logprobs(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return log-softmax fp64 [len(ids), V]."""
        logits = self.logits(ids)
        top = logits.max(-1, keepdims=True)
        return np.asarray(logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True)))

    def greedy(
        self, prompt: Sequence[int], steps: int, adjust: Adjust | None = None, *, ends: bool = False
    ) -> list[int]:
        """Return the greedy output; with `ends` the end of sequence ends it and is part of it."""
        if adjust is not None or ends:
            return self._greedy(prompt, steps, adjust, ends=ends)
        known = self._known.get(tuple(prompt), [])
        if len(known) < steps:
            known = self._known[tuple(prompt)] = self._greedy(prompt, steps, None, ends=False)
        return known[:steps]

    @torch.inference_mode()
    def _greedy(self, prompt: Sequence[int], steps: int, adjust: Adjust | None, *, ends: bool) -> list[int]:
        past, given = None, list(prompt)
        output: list[int] = []
        for _ in range(steps):
            result = self._model(input_ids=torch.tensor([given]), past_key_values=past, use_cache=True)
            past, row = result.past_key_values, result.logits[0, -1].double().numpy()
            if adjust is not None:
                row = adjust(row.copy(), list(prompt), output)
            given = [int(row.argmax())]
            output += given
            if ends and given[0] == self.eos:
                break
        return output
