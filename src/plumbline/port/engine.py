"""Define the port between the server and an engine: requests, chunks and the `Engine` protocol.

Code above the port handles messages and text, code below it token ids. `native`, `vllm`, `llama_cpp`, `transformers`,
`remote` and `scripted` in `plumbline.engines` implement `Engine`, whose docstring shows how. The port carries values,
not objects with behaviour, so that its two sides can run in different processes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from plumbline.port.sampling_params import (
    SAMPLER_ORDER,
    Dry,
    Mirostat,
    ProcessorCall,
    SamplerChain,
    SamplingParams,
    ThinkingBudget,
)

__all__ = [
    "SAMPLER_ORDER",
    "Dry",
    "Engine",
    "EngineClosedError",
    "EngineFullError",
    "EngineInfo",
    "EngineStats",
    "FinishReason",
    "GenerateRequest",
    "MediaItem",
    "MediaPrompt",
    "Mirostat",
    "Modality",
    "ProcessorCall",
    "RefusedRequestError",
    "SamplerChain",
    "SamplingParams",
    "ThinkingBudget",
    "TokenChunk",
    "TokenLogprob",
]

FinishReason = Literal["stop", "length", "abort", "error"]
"""Why an engine ended a request. `stop` is an end-of-sequence or stop token id; stop *strings* live above the port."""

Modality = Literal["audio", "image", "video"]
"""The kinds of files that a prompt may have."""


class MediaItem(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a prompt, such as an image. The server has checked its size and that it can be decoded."""

    modality: Modality = "image"
    media_type: str
    """Such as `image/png`."""
    data: bytes
    """The file."""
    frames: int = 0
    """Of a video: how many of its frames the model sees at most."""


class MediaPrompt(msgspec.Struct, frozen=True):
    """A prompt with files, before the engine has replaced each placeholder by the tokens of its file."""

    token_ids: tuple[int, ...]
    """With one placeholder (`EngineInfo.modalities`) for each item, in the same order."""
    items: tuple[MediaItem, ...]


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to continue."""

    request_id: str
    """Unique among the requests in flight."""
    prompt_token_ids: Sequence[int]
    """At least one id, each in [0, vocab_size); at most `EngineInfo.max_model_len - 1` of them. With `media` these are
    what `Engine.expand` returned for it."""
    media: MediaPrompt | None = None
    """The files of the prompt."""
    adapter: str | None = None
    """The adapter that answers (`Engine.load_adapter`); None is the model itself."""
    sampling: SamplingParams
    priority: int = 0
    """Lower runs first; equals run in order of arrival."""
    cache_salt: str | None = None
    """Requests share cached prefixes only with requests of the same salt."""
    client: str = ""
    """Who sent the request. Engines share their places evenly among clients, and limit the requests of each."""
    patient: bool = False
    """Whether `--max-queue-seconds` does not apply to it, because no client waits for it, or its answer has begun."""


class TokenLogprob(msgspec.Struct, frozen=True):
    """The logprob of one drawn token with its alternatives, from the distribution *before* temperature and filters."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, logprob), most likely first; then those of `logprob_token_ids`."""
    rank: int = 0
    """Place among all tokens, from 1; only in the logprobs of a prompt."""


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of a request; the last chunk of a request carries the finish reason.

    Joining the `token_ids` of all chunks gives the output. A chunk may be empty of tokens (the first may carry only
    prompt facts, the last only the reason). A token that ends the output comes with the reason.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One per token id if the request asked for them."""
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache; set on the first chunk."""
    queued_seconds: float = 0.0
    """How long the request waited before its prompt was begun; set on the first chunk by engines that know it."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """On the first chunk, if asked for; the first entry is None."""
    hidden_state: tuple[float, ...] = ()
    """On the last chunk, if asked for."""
    error: str | None = None
    """For `finish_reason="error"`: what went wrong, in words that can be shown to a client."""
    died: bool = False
    """For an error: whether the process of the engine has ended under the request."""
    refused: bool = False
    """Whether the request caused the error, such as a grammar that cannot be completed, and not the engine."""


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that do not change while the engine runs."""

    name: str
    """The kind of engine, such as `plumbline` or `vllm`."""
    model: str
    vocab_size: int
    max_model_len: int
    """Tokens of prompt and output together."""
    eos_token_ids: frozenset[int]
    features: frozenset[str] = frozenset()
    """Names of `SamplingParams` fields beyond temperature, top_p, seed and max_tokens that are honoured, and `adapters`
    if adapters can be loaded."""
    modalities: Mapping[Modality, int] = msgspec.field(default_factory=dict)
    """The kinds of files that prompts may have, each with the token id that stands for one file."""
    num_blocks: int = 0
    """KV blocks of the paged cache; 0 for engines without one."""
    block_size: int = 0
    cache_bytes: int = 0
    """The largest size of the cache of keys and values; 0 if it is not known."""
    step_bytes: int = 0
    """Bytes of memory that the largest step takes besides; 0 if it is not known, or a GPU has them."""
    resident_bytes: int = 0
    """Bytes of memory that its process has when it is ready; 0 if it shares a process."""
    loading_bytes: int = 0
    """The most bytes that its process had until it was ready; 0 if that is not known."""
    max_num_seqs: int = 0
    """Sequences that run at the same time; 0 if it is not known."""
    runs_on: str = ""
    """The device, the type of the weights and what computes, in words; empty if it is not known."""
    rounding_losses: Mapping[str, float] = msgspec.field(default_factory=dict)
    """How many times the perplexity becomes by rounding weights to 4 bits, by kinds of texts; empty if that was not
    measured."""
    max_in_flight: int = 0
    """Requests of one client that may run and wait at a time; 0 means no limit."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot for `/metrics` and `/health`, cheap enough to take at every scrape."""

    alive: bool
    """Whether the engine can still make progress."""
    seconds_since_step: float
    """Seconds since the engine last finished a step, or 0.0 when it has nothing to do."""
    num_running: int
    num_waiting: int
    kv_cache_usage: float
    """Fraction of KV blocks in use by running requests, 0 to 1."""
    num_preemptions: int
    prefix_cache_queries: int
    """Prompt tokens looked up in the prefix cache since the start."""
    prefix_cache_hits: int
    prompt_tokens: int
    """Prompt tokens computed or found in the cache since the start."""
    generation_tokens: int
    num_steps: int
    num_failed_steps: int = 0
    """Steps that raised an error since the start."""
    num_restarts: int = 0
    """How often the engine went on with a new core after its thread had died or hung, or with a new process."""
    failure: str = ""
    """Why the engine is not alive, if that is known."""
    outage: str = ""
    """Why nothing is computed just now, such as a process that is started again; requests wait meanwhile."""
    deaths: dict[str, int] = {}
    """How often the engine's process has ended, by the name of the signal, or `error`."""
    last_death: str = ""
    """How it has ended, until a minute after the next one is there."""
    memory_bytes: int = 0
    """Of the engine's process; 0 if it is that of the server, or not known."""
    device_memory: tuple[int, int] | None = None
    """Used and total bytes of the accelerator of the engine's process."""
    num_quarantined: int = 0
    """Requests that are refused because the engine's process ended under them twice."""
    num_hanging_images: int = 0
    """Images that took too long to encode and still occupy a thread."""
    late_variants: int = 0
    """Variants of GPU kernels that steps compiled after the start: a request waited for each."""


class Engine(Protocol):
    """Continue token sequences.

    An engine that counts on from the last token of the prompt, to 8, its end-of-sequence token, or past it from 0:

    >>> from itertools import count
    >>> from plumbline.engines.checks import check_request
    >>> class CountingEngine:
    ...     info = EngineInfo(name="counting", model="m", vocab_size=9, max_model_len=64, eos_token_ids=frozenset({8}))
    ...     async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
    ...         check_request(request, self.info)  # Refuses what `info` does not declare, such as a grammar.
    ...         for place in count(1):
    ...             token = (request.prompt_token_ids[-1] + place) % self.info.vocab_size
    ...             ends = "stop" if token == 8 else "length" if place == request.sampling.max_tokens else None
    ...             yield TokenChunk(token_ids=(token,), finish_reason=ends)
    ...             if ends is not None:
    ...                 return  # A `finally` around the loop would free what the request holds.

    Its callers close the generator, which aborts what still runs:

    >>> import asyncio
    >>> from contextlib import aclosing
    >>> async def tokens(engine: Engine, max_tokens: int) -> None:
    ...     sampling = SamplingParams(max_tokens=max_tokens)
    ...     request = GenerateRequest(request_id="1", prompt_token_ids=[2, 5], sampling=sampling)
    ...     async with aclosing(engine.generate(request)) as chunks:
    ...         async for chunk in chunks:
    ...             print(chunk.token_ids, chunk.finish_reason)
    >>> asyncio.run(tokens(CountingEngine(), 2))
    (6,) None
    (7,) length
    >>> asyncio.run(tokens(CountingEngine(), 9))
    (6,) None
    (7,) None
    (8,) stop

    An answer without files and grammars also calls `refusal` and `arriving`, a server all methods;
    `plumbline.engines.scripted` is the smallest engine that has them. `plumbline.engines.threaded` makes an engine of a
    core that computes one step for all requests at a time.
    """

    @property
    def info(self) -> EngineInfo:
        """The engine's fixed facts."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Continue a sequence.

        Closing the generator (or cancelling the task that reads it) aborts the request and frees its resources.

        Raises on the first iteration:
            RefusedRequestError: the engine does not support what the request asks for.
            EngineFullError: the queue is at its bound.
            EngineClosedError: the engine is shutting down or dead.
        """
        ...

    def refusal(self, client: str, more: int = 0) -> EngineFullError | None:
        """Return the error that `generate` would raise for another request of a client, whatever the request is.

        Requests that arrive (`arriving`) come before it. None if there is room, or if that is not known. It is cheap:
        servers ask before they read a request.

        Args:
            client: who sent it.
            more: how many further requests of the client come before it.
        """
        ...

    def arriving(self, client: str) -> AbstractContextManager[None]:
        """Count a request of a client that is being prepared for `generate`, as long as the block runs."""
        ...

    async def expand(self, prompt: MediaPrompt) -> Sequence[int]:
        """Return a prompt as the model reads it, with the tokens of each item in the place of its placeholder.

        Raises:
            RefusedRequestError: the engine does not accept such items, or not these; the text states why.
        """
        ...

    async def check_grammar(self, grammar: str, client: str = "") -> None:
        """Compile a grammar ahead of the request that will use it.

        Args:
            grammar: the text.
            client: who sent the request; clients take turns.

        Raises:
            RefusedRequestError: the engine does not support grammars, or not this one; the text states why.
            EngineFullError: too many others are being compiled.
        """
        ...

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter; requests may name it afterwards.

        Raises:
            RefusedRequestError: the engine does not support adapters, or not this one; the text states why.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Requests that use it end as usual, and new ones are refused; unknown names are ignored."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request now; its iterator yields a last chunk with `finish_reason="abort"`. Unknown ids are ignored."""
        ...

    def stats(self) -> EngineStats:
        """A snapshot of the counters."""
        ...

    async def start(self) -> None:
        """Start to take requests. The model is loaded already."""
        ...

    async def stop(self) -> None:
        """Abort what still runs and release everything. Idempotent."""
        ...


class RefusedRequestError(Exception):
    """The engine does not support this request; `param` names the sampling field, None for the prompt.

    `code` names the reason, if clients may want to tell it from others.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class EngineFullError(Exception):
    """The request queue or the grammar queue is full; `retry_after` is a hint in whole seconds, at least 1."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineClosedError(Exception):
    """The engine takes no requests, for now or any more; `retry_after` is a hint in whole seconds, at least 1."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after
