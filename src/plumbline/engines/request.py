"""Keep the state of one request while the engine works on it.

    |<------------------ seq (token_ids) ------------------>|
    |<--- prompt (num_prompt_tokens) --->|<---- output ---->|
    |<- num_computed_tokens ->|<- query (this step) ->|
    |<-      context        ->|

`num_computed_tokens` is how many tokens have their KV in the cache. A step computes the next few; when it reaches the
end of `token_ids` it also draws a new token. Prefill, chunked prefill, decode and the recomputation after a preemption
are all this one thing.
"""

from __future__ import annotations

import secrets
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from plumbline.engines.constraints.grammar import Matcher
from plumbline.engines.filters.chain import ChainSampler
from plumbline.engines.filters.processors import ProcessorError, RequestProcessors
from plumbline.port.engine import FinishReason, GenerateRequest, TokenLogprob

__all__ = ["LateMask", "PlacedAdapter", "PlacedImage", "RequestState", "images_within"]


class PlacedAdapter(NamedTuple):
    """An adapter in the memory of an engine."""

    slot: int
    """Its place, which another one may have later."""
    number: int
    """From 1; no other adapter of the engine ever has it."""


class PlacedImage(NamedTuple):
    """An image in a prompt, as the model reads it."""

    start: int
    """Its first position."""
    rows: Any
    """A tensor [positions, width]: what the model reads in the place of the embeddings of these tokens. Of a wider one
    later layers read further parts."""
    digest: bytes
    """The hash of its file."""
    whole: bool = False
    """Whether one step must compute all its positions, which attend to each other."""
    grid: tuple[int, int] | None = None
    """Its rows and columns if the model rotates by them."""

    @property
    def end(self) -> int:
        """The position after its last one."""
        return self.start + len(self.rows)


def images_within(images: Sequence[PlacedImage], start: int, stop: int) -> Sequence[PlacedImage]:
    """Return those of a prompt's images that have positions from `start` up to `stop`.

    An image with ends of lines between its rows is one for each line, so a prompt may have thousands.
    """
    if not images:
        return images
    first = bisect_right(images, start, key=lambda image: image.end)
    return images[first : bisect_left(images, stop, lo=first, key=lambda image: image.start)]


class LateMask:
    """A mask that is computed outside of steps (`sampling/late_masks.py`).

    Attributes:
        is_known: whether the matcher of the request has it.
    """

    __slots__ = ("is_known",)

    def __init__(self) -> None:
        self.is_known = False


class RequestState:
    """The mutable state of a request. The engine thread alone touches it."""

    __slots__ = (
        "adapter",
        "arrival",
        "began",
        "block_hashes",
        "block_ids",
        "chain",
        "created",
        "drew",
        "end_ids",
        "error",
        "finish_reason",
        "hidden_state",
        "ignored_ids",
        "images",
        "late_mask",
        "matcher",
        "max_len",
        "min_len",
        "next_proposal",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_prompt_tokens",
        "processors",
        "prompt_logprobs",
        "queued_seconds",
        "request",
        "sampling",
        "seed",
        "slot",
        "snapshot",
        "snapshot_ends",
        "started",
        "stop_ids",
        "token_ids",
    )

    def __init__(
        self,
        request: GenerateRequest,
        *,
        arrival: int,
        eos_token_ids: frozenset[int],
        max_model_len: int,
        matcher: Matcher | None = None,
        images: tuple[PlacedImage, ...] = (),
        processors: RequestProcessors | None = None,
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.sampling = sampling
        self.arrival = arrival
        self.created = time.perf_counter()
        self.began = 0.0
        """When it last got its slot."""
        self.drew = 0.0
        """When it drew its first token there; 0 before."""
        self.queued_seconds = 0.0
        self.token_ids: list[int] = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.images = images
        """The images of the prompt, in order, if the core reads images as rows."""
        self.adapter: PlacedAdapter | None = None
        """The adapter of the request, if the core has adapters."""
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.next_proposal = 0
        """The number of tokens from which on more tokens are proposed (`native/scheduling/speculation.py`)."""
        self.block_ids: list[int] = []
        self.block_hashes: list[bytes] = []
        self.slot = -1
        self.snapshot: int | None = None
        """The row of the state behind the cached tokens (`native/scheduling/snapshots.py`); None if there are none."""
        self.snapshot_ends: tuple[int, ...] = ()
        """The places behind which its state is wanted."""
        # Without a seed from the client, draw one: the draw is then still keyed by (seed, position), so a
        # preempted request continues as if nothing had happened.
        self.seed = secrets.randbits(63) if sampling.seed is None else sampling.seed & ((1 << 63) - 1)
        # Like the matcher, the chain belongs to the request, so a preemption does not touch it.
        self.chain = (
            None
            if sampling.chain is None
            else ChainSampler(sampling, self.token_ids, self.num_prompt_tokens, self.seed)
        )
        room = max_model_len - self.num_prompt_tokens
        wanted = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        self.max_len = self.num_prompt_tokens + wanted
        self.min_len = self.num_prompt_tokens + sampling.min_tokens
        self.stop_ids = sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else eos_token_ids)
        # The matcher belongs to the request and not to its slot, so a preemption does not touch it: only a drawn
        # token advances it.
        self.matcher = matcher
        self.processors = processors
        self.late_mask: LateMask | None = None
        """The next mask, if it is not computed in a step."""
        self.end_ids = sampling.stop_token_ids | eos_token_ids
        # With `ignore_eos` only a grammar can end the request at an end of sequence; budgets and bans cannot.
        wrapped = sampling.thinking_budget is not None or sampling.bad_words or sampling.banned_strings
        ends = sampling.ignore_eos and (sampling.grammar is not None or not wrapped)
        self.ignored_ids = eos_token_ids - sampling.stop_token_ids if ends else frozenset()
        self.prompt_logprobs: list[TokenLogprob | None] | None = (
            None if sampling.prompt_logprobs is None else [None]
        )
        self.hidden_state: Tensor | None = None
        """fp32 [width], of the last draw, if the request asks for it."""
        self.started = False
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        """For the finish reason `error`: the message for the client."""

    @property
    def key(self) -> tuple[int, int]:
        """The order in which requests are served: priority, then arrival."""
        return (self.request.priority, self.arrival)

    @property
    def is_late(self) -> bool:
        """Whether the request sits out, because its next mask is not known yet."""
        return self.late_mask is not None and not self.late_mask.is_known

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens drawn so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def late_ends(self, ahead: int = 0) -> frozenset[int]:
        """Return the ends that `min_tokens` and `ignore_eos` rule out for the token `ahead` tokens after the next."""
        return self.end_ids if self.num_tokens + ahead < self.min_len else self.ignored_ids

    def append(self, token_id: int) -> FinishReason | None:
        """Take a drawn token; returns the finish reason if it is the last."""
        self.token_ids.append(token_id)
        length = len(self.token_ids)
        if token_id in self.stop_ids and length > self.min_len:
            self.finish_reason = "stop"
        elif length >= self.max_len:
            self.finish_reason = "length"
        if self.chain is not None:
            self.chain.accept(token_id)
        if self.matcher is not None:
            self._follow(self.matcher, token_id)
        elif self.error is not None:
            self.finish_reason = "error"
        return self.finish_reason

    def process(self, logits: Tensor) -> None:
        """Let the processors of the request change its row of logits; if one fails, the request ends at the draw."""
        if self.processors is not None and self.error is None:
            try:
                row = self.processors.run(self.token_ids, self.num_prompt_tokens, logits)
            except ProcessorError as error:
                self.error = str(error)
            else:
                if row is not logits:
                    logits.copy_(row)

    def _follow(self, matcher: Matcher, token_id: int) -> None:
        """Advance the grammar by a token; a complete grammar ends the request."""
        if self.error is None and not matcher.accept(token_id):
            self.error = "The grammar of this request failed: it did not take a token that it had allowed."
        if self.error is not None:
            self.finish_reason = "error"
        elif matcher.is_done:
            self.finish_reason = "stop"
