"""Read the sampling fields that all APIs share."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence

from msgspec import UNSET, UnsetType

from plumbline.contract._generated.shared_fields import CompletionFields, GenerationFields
from plumbline.contract.wire.errors import invalid_request, invalid_value, unsupported_value
from plumbline.port.engine import SamplingParams
from plumbline.server.protocols.common.fields import given, or_default
from plumbline.server.protocols.common.sampling.chain import read_chain
from plumbline.server.protocols.common.sampling.defaults import Defaults
from plumbline.server.protocols.common.sampling.processors import read_processors

__all__ = [
    "Defaults",
    "check_token_ids",
    "read_bad_words",
    "read_cache_salt",
    "read_num_probs",
    "read_sampling",
    "read_stop",
]

_MOST_STATES = 8
"""Hidden states of one answer at most: one of a large model is 150 kB of JSON."""


def read_stop(value: str | list[str] | UnsetType | None) -> tuple[str, ...]:
    """Read `stop` as a tuple. The empty string would stop every answer at once, so it is refused.

    Raises:
        ApiError: 400 naming the entry.
    """
    if value is UNSET or value is None:
        return ()
    stops = (value,) if isinstance(value, str) else tuple(value)
    for index, stop in enumerate(stops):
        if not stop:
            raise invalid_value("stop" if isinstance(value, str) else f"stop[{index}]", stop)
    return stops


def read_sampling(
    request: GenerationFields,
    defaults: Defaults,
    *,
    max_tokens: int | None,
    max_tokens_param: str,
    logprobs: int | None,
    choices: int = 1,
) -> SamplingParams:
    """Read the sampling fields of a request.

    Args:
        request: a decoded request of any API.
        defaults: values for the fields that it leaves out.
        max_tokens: its limit, which has another name in each API.
        max_tokens_param: that name, for error messages.
        logprobs: how many alternatives to compute per token; None computes no logprobs.
        choices: how many answers are generated.

    Raises:
        ApiError: 400 for token ids that the model does not have, and for `min_tokens` above the limit.
    """
    min_tokens = or_default(request.min_tokens, 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid_request(
            f"'min_tokens' ({min_tokens}) must not be greater than '{max_tokens_param}' ({max_tokens}).",
            "min_tokens",
            "invalid_value",
        )
    allowed = or_default(request.allowed_token_ids, None)
    stop_ids = or_default(request.stop_token_ids, [])
    top_k = max(0, or_default(request.top_k, defaults.top_k))
    check_token_ids("stop_token_ids", stop_ids, defaults.vocab_size)
    if or_default(request.id_slot, -1) != -1:
        raise unsupported_value("id_slot", request.id_slot, "is not supported: the server chooses; send -1")
    if allowed is not None:
        check_token_ids("allowed_token_ids", allowed, defaults.vocab_size)
    wanted = or_default(request.logprob_token_ids, []) if isinstance(request, CompletionFields) else []
    check_token_ids("logprob_token_ids", wanted, defaults.vocab_size)
    repetition = or_default(request.repetition_penalty, defaults.repetition_penalty)
    return SamplingParams(
        temperature=or_default(request.temperature, defaults.temperature),
        top_p=or_default(request.top_p, defaults.top_p),
        top_k=0 if top_k >= defaults.vocab_size else top_k,  # 0 means all tokens
        min_p=or_default(request.min_p, defaults.min_p),
        seed=or_default(request.seed, None),
        frequency_penalty=or_default(request.frequency_penalty, defaults.frequency_penalty),
        presence_penalty=or_default(request.presence_penalty, defaults.presence_penalty),
        repetition_penalty=repetition,
        chain=read_chain(request, defaults.samplers, repetition),
        logit_bias=_read_bias(request.logit_bias, defaults.vocab_size),
        allowed_token_ids=None if allowed is None else frozenset(allowed),
        processors=read_processors(request),
        hidden_state=_read_hidden_state(request, choices),
        banned_strings=tuple(or_default(request.banned_strings, ())),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=frozenset(stop_ids),
        ignore_eos=or_default(request.ignore_eos, False),
        # As in vLLM, ids that are asked for replace the most likely ones.
        logprobs=0 if wanted and logprobs is not None else logprobs,
        logprob_token_ids=tuple(wanted),
    )


def read_bad_words(words: list[str] | UnsetType | None) -> tuple[str, ...]:
    """Read `bad_words`. A word of white space has no token of its own once the space before it is taken away.

    Raises:
        ApiError: 400 naming the entry.
    """
    found = tuple(or_default(words, []))
    for index, word in enumerate(found):
        if not word.strip():
            raise invalid_value(f"bad_words[{index}]", word)
    return found


def read_num_probs(request: GenerationFields) -> int | None:
    """Read `n_probs`, llama.cpp's name for logprobs with alternatives; 0 means no logprobs."""
    return or_default(request.n_probs, 0) or None


def read_cache_salt(request: GenerationFields) -> str | None:
    """Read `cache_salt` and `extra_key`. `cache_prompt: false` is a salt that no other request has."""
    if not or_default(request.cache_prompt, True):
        return secrets.token_hex(16)
    salt = or_default(request.cache_salt, None)
    if given(request.extra_key):
        # As JSON, no other pair of texts is joined to the same salt.
        return json.dumps([salt, request.extra_key])
    return salt


def check_token_ids(param: str, ids: Sequence[int], vocab_size: int) -> None:
    """Check that the model has every token id of a field.

    Raises:
        ApiError: 400 naming the first that it does not have.
    """
    for index, token_id in enumerate(ids):
        if token_id >= vocab_size:
            raise unsupported_value(
                f"{param}[{index}]", token_id, f"is not a token id of this model, which has {vocab_size}"
            )


def _read_bias(
    bias: Mapping[str, int] | Sequence[Sequence[float | bool]] | UnsetType | None, vocab_size: int
) -> dict[int, float]:
    """Read a map from token id to bias, or llama.cpp's list of pairs, in which false bans the token."""
    if bias is UNSET or bias is None:
        return {}
    if not isinstance(bias, Mapping):
        return dict(_read_pair(index, pair, vocab_size) for index, pair in enumerate(bias))
    found: dict[int, float] = {}
    for key, value in bias.items():
        # JSON object keys are strings, so the ids arrive as text.
        if not key.isascii() or not key.isdigit() or len(key) > 10 or int(key) >= vocab_size:
            raise invalid_request(
                f"Invalid key in 'logit_bias': {key[:40]}. Expected a token id from 0 to {vocab_size - 1}.",
                "logit_bias",
                "invalid_value",
            )
        found[int(key)] = float(value)
    return found


def _read_pair(index: int, pair: Sequence[float | bool], vocab_size: int) -> tuple[int, float]:
    token, value = pair
    if isinstance(token, bool) or token != int(token) or not 0 <= token < vocab_size:
        raise invalid_request(
            f"Invalid 'logit_bias[{index}][0]'. Expected a token id from 0 to {vocab_size - 1}.",
            f"logit_bias[{index}][0]",
            "invalid_value",
        )
    if value is True or not -100 <= value <= 100:
        raise invalid_request(
            f"Invalid 'logit_bias[{index}][1]'. Expected a number from -100 to 100, or false to ban the token.",
            f"logit_bias[{index}][1]",
            "invalid_value",
        )
    return int(token), float("-inf") if value is False else float(value)


def _read_hidden_state(request: GenerationFields, choices: int) -> bool:
    """Return whether the hidden state of the last token is wanted.

    Args:
        request: the request.
        choices: how many choices are generated.

    Raises:
        ApiError: 400 for so many choices that the answer would be megabytes.
    """
    if not isinstance(request, CompletionFields) or request.return_hidden_states is not True:
        return False
    if choices > _MOST_STATES:
        raise unsupported_value(
            "return_hidden_states",
            True,
            f"is for at most {_MOST_STATES} choices, and this request has {choices}",
        )
    return True
