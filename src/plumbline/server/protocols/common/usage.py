"""Add up token counts and write them as `usage`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from plumbline.answer.events import Usage
from plumbline.contract._generated.common import CompletionTokensDetails, CompletionUsage, PromptTokensDetails
from plumbline.contract._generated.shared_fields import CompletionFields
from plumbline.server.protocols.common.fields import or_default

__all__ = ["completion_usage", "total_usage", "wants_progress"]


def total_usage(choices: Sequence[Usage]) -> Usage:
    """Join the counts of the choices of one prompt: completions add up, the prompt counts once (CHAT-09)."""
    repairs = sum(usage.repair_prompt_tokens for usage in choices)
    prompt_tokens = choices[0].prompt_tokens - choices[0].repair_prompt_tokens
    return Usage(
        prompt_tokens=prompt_tokens + repairs,
        completion_tokens=sum(usage.completion_tokens for usage in choices),
        cached_tokens=min(usage.cached_tokens for usage in choices),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in choices),
        repair_prompt_tokens=repairs,
        repaired_calls=sum(usage.repaired_calls for usage in choices),
        unmarked_calls=sum(usage.unmarked_calls for usage in choices),
    )


def wants_progress(request: CompletionFields) -> bool:
    """Return whether every chunk must report the usage so far: `include_usage: false` wins, as in vLLM."""
    options = or_default(request.stream_options, None)
    return (
        options is not None and options.continuous_usage_stats is True and options.include_usage is not False
    )


def completion_usage(usage: Usage) -> CompletionUsage:
    """Write counts as chat and legacy completions send them (CHAT-08)."""
    return CompletionUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        x_repaired_calls=usage.repaired_calls or UNSET,
        x_unmarked_calls=usage.unmarked_calls or UNSET,
    )
