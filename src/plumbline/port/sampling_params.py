"""Define how an engine chooses tokens: the part of a request that an engine passes on to its sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

__all__ = [
    "SAMPLER_ORDER",
    "Dry",
    "Mirostat",
    "ProcessorCall",
    "SamplerChain",
    "SamplingParams",
    "ThinkingBudget",
]


class ThinkingBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on the tokens between two token sequences, the begin and the end of the model's thinking."""

    max_tokens: int
    """Thinking tokens of the whole output, over all its thoughts. When they are used up the engine forces `end`."""
    begin: tuple[tuple[int, ...], ...] = ()
    """Token sequences that begin a thought, at the start of the output or after one of `after`."""
    end: tuple[int, ...]
    """The token sequence that ends a thought; at least one token."""
    inside: bool = False
    """Whether the output starts inside a thought."""
    after: tuple[tuple[int, ...], ...] = ()
    """Token sequences after which another thought may begin. Include `end` if one may follow directly."""
    anywhere: bool = False
    """Whether a thought may begin inside text as well."""
    blank: frozenset[int] = frozenset()
    """Tokens (white space) that may stand between such a sequence, or the start of the output, and `begin`."""


class Dry(msgspec.Struct, frozen=True, kw_only=True):
    """A penalty on tokens that would extend a repeated sequence: multiplier * base ** (length - allowed_length)."""

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    last_n: int = -1
    """How many of the last tokens to look at; -1 means as many as the engine does at most."""
    breaker_ids: frozenset[int] = frozenset()
    """Tokens that end a repeated sequence."""
    breaker_sequences: tuple[tuple[int, ...], ...] = ()
    """Token sequences that do so together."""


class Mirostat(msgspec.Struct, frozen=True, kw_only=True):
    """Cut the tokens so that the surprise of the output stays near `tau` bits."""

    version: Literal[1, 2]
    tau: float = 5.0
    eta: float = 0.1
    """How fast the cut follows the surprise of the drawn tokens."""


SAMPLER_ORDER: tuple[str, ...] = (
    "penalties",
    "dry",
    "temperature",
    "top_n_sigma",
    "top_k",
    "tfs",
    "typ_p",
    "top_p",
    "min_p",
    "top_a",
    "xtc",
)
"""The order of the samplers of a request that does not give one."""


class SamplerChain(msgspec.Struct, frozen=True, kw_only=True):
    """Samplers beyond those of `SamplingParams`, and the order of all of them (`engines.filters.chain`).

    The defaults turn each of them off.
    """

    order: tuple[str, ...] = SAMPLER_ORDER
    """The samplers that run, in this order, after bias, bans and grammar."""
    repeat_last_n: int = -1
    """How many of the last tokens the repetition penalty looks at; -1 means all."""
    typical_p: float = 1.0
    top_a: float = 0.0
    tfs: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry: Dry | None = None
    mirostat: Mirostat | None = None
    """Runs last. The reader leaves the samplers that cut out of `order`."""


class ProcessorCall(msgspec.Struct, frozen=True):
    """A processor of logits that the operator has registered (`engines.filters.processors`), and its arguments."""

    name: str
    field: str
    """The request's field, for errors."""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine chooses the next token. The server has checked that all values are in range.

    The order of operations on the logits is: `logit_bias`, `allowed_token_ids` and banned ids, then the repetition,
    frequency and presence penalties, then the mask of `grammar`, then temperature, `top_k`, `top_p`, `min_p`, then one
    draw. With a `chain`, penalties and filters come after the mask, in the order of the chain.
    """

    temperature: float = 1.0
    """0 is greedy: the largest logit, the lowest id among equals."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    """With a seed the draw is a function of (seed, position, logits) alone; without one the engine picks a seed."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    """Frequency and presence penalties count generated tokens only (the OpenAI definition)."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in the prompt or the output (CTRL, 2019)."""
    chain: SamplerChain | None = None
    """Further samplers. None is the usual case, which the kernels compute for all rows at once."""
    logit_bias: Mapping[int, float] = msgspec.field(default_factory=dict)
    """Added to the logits; minus infinity bans."""
    allowed_token_ids: frozenset[int] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences: the last token of a sequence cannot be drawn after the tokens before it."""
    banned_strings: tuple[str, ...] = ()
    """Texts that the output never contains, with ASCII letters in either case.

    These two override `ignore_eos` and `min_tokens` as a grammar does. If they and the grammar leave no token, the
    request ends with an error.
    """
    processors: tuple[ProcessorCall, ...] = ()
    """They change the logits in this order, after the penalties and before the mask of `grammar`."""
    max_tokens: int | None = None
    """Tokens to generate at most; None means up to the end of the context window."""
    min_tokens: int = 0
    """Before this many tokens no stop token can be drawn."""
    stop_token_ids: frozenset[int] = frozenset()
    """Ends the request in addition to the model's end-of-sequence ids; the token itself is part of the output."""
    ignore_eos: bool = False
    thinking_budget: ThinkingBudget | None = None
    """A limit on thinking tokens. It overrides the grammar, so the grammar must allow the forced end."""
    grammar: str | None = None
    """A grammar in llguidance's dialect of Lark that constrains the output from its first token on.

    The grammar overrides `min_tokens` and `ignore_eos`: where it allows nothing but an end, the request ends with
    `stop`. It cannot be combined with `allowed_token_ids`, which could exclude every token that the grammar allows.
    """
    logprobs: int | None = None
    """None: no logprobs. k >= 0: the drawn token's logprob and the k most likely alternatives at each position."""
    logprob_token_ids: tuple[int, ...] = ()
    """Further alternatives of each entry, whatever their rank, and the drawn token. Needs `logprobs`."""
    hidden_state: bool = False
    """Return the last layer's state, after its norm, from which the last token was drawn."""
    prompt_logprobs: int | None = None
    """As `logprobs`, for the prompt's own tokens (the first token has no logprob)."""
