"""Name the sampling features that a request uses, and refuse those that an engine lacks."""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.port.engine import (
    SAMPLER_ORDER,
    EngineInfo,
    RefusedRequestError,
    SamplerChain,
    SamplingParams,
)

__all__ = ["CHAIN_FEATURES", "check_features"]

_CHAIN_FIELDS = {
    "repeat_last_n": "repeat_last_n",
    "typical_p": "typical_p",
    "top_a": "top_a",
    "tfs": "tfs",
    "top_n_sigma": "top_n_sigma",
    "xtc_probability": "xtc_probability",
    "dynatemp_range": "dynatemp_range",
    "dry": "dry_multiplier",
    "mirostat": "mirostat",
}
"""By the field of `SamplerChain`: the field of a request that sets it."""

CHAIN_FEATURES = frozenset(_CHAIN_FIELDS.values()) | {"samplers"}
"""The features of an engine that runs sampler chains."""

_NEUTRAL = SamplerChain()


def check_features(sampling: SamplingParams, info: EngineInfo) -> None:
    """Check that the engine has every sampler that a request uses.

    Raises:
        RefusedRequestError: the engine lacks a sampler; `param` is the request's field.
    """
    for name in _used(sampling):
        if name not in info.features:
            if name == "logits_processors":  # SGLang has another name for it.
                name = sampling.processors[0].field.partition("[")[0]
            raise RefusedRequestError(
                f"'{name}' is not supported by the {info.name} engine; leave it out", param=name
            )


def _used(sampling: SamplingParams) -> Iterator[str]:
    if sampling.logprob_token_ids:
        yield "logprob_token_ids"
    if sampling.bad_words:
        yield "bad_words"
    if sampling.banned_strings:
        yield "banned_strings"
    if sampling.hidden_state:
        yield "return_hidden_states"
    if sampling.processors:
        yield "logits_processors"
    chain = sampling.chain
    if chain is None:
        return
    for field, name in _CHAIN_FIELDS.items():
        if getattr(chain, field) != getattr(_NEUTRAL, field):
            yield name
    if chain.order != SAMPLER_ORDER and chain.mirostat is None:
        yield "samplers"
