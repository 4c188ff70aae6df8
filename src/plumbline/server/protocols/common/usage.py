"""Add up token counts and write them as `usage`."""

from __future__ import annotations

from msgspec import UNSET

from plumbline.answer.events import Usage
from plumbline.contract._generated.common import CompletionTokensDetails, CompletionUsage, PromptTokensDetails
from plumbline.contract._generated.shared_fields import CompletionFields
from plumbline.server.protocols.common.fields import or_default

__all__ = ["add_usage", "completion_usage", "usage_so_far", "wants_progress"]


def add_usage(left: Usage | None, right: Usage) -> Usage:
    """Join the counts of two choices of one prompt: completions add up, the prompt counts once (CHAT-09)."""
    if left is None:
        return right
    return Usage(
        prompt_tokens=right.prompt_tokens + left.repair_prompt_tokens,
        completion_tokens=left.completion_tokens + right.completion_tokens,
        cached_tokens=min(left.cached_tokens, right.cached_tokens),
        reasoning_tokens=left.reasoning_tokens + right.reasoning_tokens,
        repair_prompt_tokens=left.repair_prompt_tokens + right.repair_prompt_tokens,
        repaired_calls=left.repaired_calls + right.repaired_calls,
    )


def wants_progress(request: CompletionFields) -> bool:
    """Return whether every chunk must report the usage so far: `include_usage: false` wins, as in vLLM."""
    options = or_default(request.stream_options, None)
    return (
        options is not None and options.continuous_usage_stats is True and options.include_usage is not False
    )


def usage_so_far(prompt_tokens: int, completion_tokens: int) -> CompletionUsage:
    """Write the counts of an answer that goes on. Their details are in the last chunk only."""
    return CompletionUsage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
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
    )
