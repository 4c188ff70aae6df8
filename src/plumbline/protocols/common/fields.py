"""What the readers and writers of all surfaces share: sampling fields, refusals, ids, logprobs on the wire."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from plumbline._generated.chat import ChatCompletionTokenLogprob, ChatCompletionTopLogprob
from plumbline._generated.common import CompletionTokensDetails, CompletionUsage, PromptTokensDetails
from plumbline.engines.port import SamplingParams
from plumbline.events import Logprob, Usage
from plumbline.wire.errors import invalid_request, invalid_value, unsupported_parameter, unsupported_value

__all__ = [
    "Defaults",
    "add_usage",
    "chat_logprob",
    "completion_usage",
    "finite",
    "given",
    "new_id",
    "now",
    "or_default",
    "read_sampling",
    "read_stop",
    "refuse_given",
    "tag_of",
    "template_variables",
]

T = TypeVar("T")


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a request that leaves a sampling field out gets: the model's own defaults, or OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    vocab_size: int = 0
    """Token ids in requests are checked against it."""


def given(value: T | UnsetType | None) -> bool:
    """The client sent this field. An explicit null equals omission (HTTP-10)."""
    return value is not UNSET and value is not None


def or_default(value: T | UnsetType | None, default: T) -> T:
    """The client's value, or the default if it sent none."""
    return default if value is UNSET or value is None else value


def refuse_given(request: msgspec.Struct, reasons: Mapping[str, str]) -> None:
    """Refuse the first field that the client sent and this server does not honour.

    Raises:
        ApiError: 400 `unsupported_parameter` naming the field.
    """
    for name, reason in reasons.items():
        if given(getattr(request, name, UNSET)):
            raise unsupported_parameter(name, reason)


def read_stop(value: str | list[str] | UnsetType | None, param: str = "stop") -> tuple[str, ...]:
    """Stop strings as a tuple. The empty string would stop at once, so it is refused.

    Raises:
        ApiError: 400 naming the entry.
    """
    if value is UNSET or value is None:
        return ()
    stops = (value,) if isinstance(value, str) else tuple(value)
    for index, stop in enumerate(stops):
        if not stop:
            where = param if isinstance(value, str) else f"{param}[{index}]"
            raise invalid_value(where, stop)
    return stops


def read_sampling(
    request: Any, defaults: Defaults, *, max_tokens: int | None, max_tokens_param: str, logprobs: int | None
) -> SamplingParams:
    """The sampling fields that all surfaces share.

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
    allowed = or_default(getattr(request, "allowed_token_ids", UNSET), None)
    stop_ids = or_default(request.stop_token_ids, [])
    top_k = max(0, or_default(request.top_k, defaults.top_k))
    _check_ids("stop_token_ids", stop_ids, defaults.vocab_size)
    if allowed is not None:
        _check_ids("allowed_token_ids", allowed, defaults.vocab_size)
    return SamplingParams(
        temperature=or_default(request.temperature, defaults.temperature),
        top_p=or_default(request.top_p, defaults.top_p),
        top_k=0 if top_k >= defaults.vocab_size else top_k,  # All tokens, either way.
        min_p=or_default(request.min_p, defaults.min_p),
        seed=or_default(request.seed, None),
        frequency_penalty=or_default(request.frequency_penalty, 0.0),
        presence_penalty=or_default(request.presence_penalty, 0.0),
        repetition_penalty=or_default(request.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_read_bias(or_default(request.logit_bias, {}), defaults.vocab_size),
        allowed_token_ids=None if allowed is None else frozenset(allowed),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=frozenset(stop_ids),
        ignore_eos=or_default(request.ignore_eos, False),
        logprobs=logprobs,
    )


_OWN_VARIABLES = frozenset(
    {
        "add_generation_prompt",
        "bos_token",
        "continue_final_message",
        "documents",
        "eos_token",
        "messages",
        "raise_exception",
        "strftime_now",
        "tools",
    }
)


def template_variables(explicit: Mapping[str, Any]) -> dict[str, Any]:
    """The client's variables for the chat template.

    Raises:
        ApiError: 400 for a variable that is not the client's to set.
    """
    for name in explicit:
        if name in _OWN_VARIABLES:
            raise unsupported_parameter(
                f"chat_template_kwargs.{name}", "is set by the server from other fields"
            )
    return dict(explicit)


def _read_bias(bias: Mapping[str, int], vocab_size: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for key, value in bias.items():
        # JSON has string keys only, so the ids arrive as text.
        if not key.isascii() or not key.isdigit() or len(key) > 10 or int(key) >= vocab_size:
            raise invalid_request(
                f"Invalid key in 'logit_bias': {key[:40]}. Expected a token id from 0 to {vocab_size - 1}.",
                "logit_bias",
                "invalid_value",
            )
        found[int(key)] = float(value)
    return found


def _check_ids(param: str, ids: Sequence[int], vocab_size: int) -> None:
    for index, token_id in enumerate(ids):
        if token_id >= vocab_size:
            raise unsupported_value(
                f"{param}[{index}]", token_id, f"is not a token id of this model, which has {vocab_size}"
            )


def tag_of(value: Any) -> str:
    """The wire name of a tagged Struct's kind, such as `json_schema`."""
    return str(type(value).__struct_config__.tag)


def new_id(prefix: str) -> str:
    """A fresh id such as `chatcmpl-…` or `msg_…`."""
    return prefix + secrets.token_hex(16)


def now() -> int:
    """Unix time in whole seconds."""
    return int(time.time())


def chat_logprob(entry: Logprob) -> ChatCompletionTokenLogprob:
    """One token's logprob in the form of chat completions (LP-02)."""
    return ChatCompletionTokenLogprob(
        token=entry.token,
        logprob=finite(entry.logprob),
        bytes=list(entry.raw),
        top_logprobs=[
            ChatCompletionTopLogprob(token=token, logprob=finite(value), bytes=list(raw))
            for _, token, raw, value in entry.top
        ],
    )


def finite(value: float) -> float:
    """JSON has no infinities; the service writes -9999.0 for a token that cannot occur (LP-02)."""
    return max(value, -9999.0) if value < 0 else 0.0


def add_usage(left: Usage | None, right: Usage) -> Usage:
    """Join the counts of two choices of one prompt: completions add up, the prompt counts once (CHAT-09)."""
    if left is None:
        return right
    return Usage(
        prompt_tokens=right.prompt_tokens,
        completion_tokens=left.completion_tokens + right.completion_tokens,
        cached_tokens=min(left.cached_tokens, right.cached_tokens),
        reasoning_tokens=left.reasoning_tokens + right.reasoning_tokens,
    )


def completion_usage(usage: Usage) -> CompletionUsage:
    """Counts in the form of chat and legacy completions (CHAT-08)."""
    return CompletionUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=usage.reasoning_tokens),
    )
