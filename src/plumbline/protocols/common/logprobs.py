"""Write token logprobs as chat completions and Responses send them."""

from __future__ import annotations

from plumbline._generated.chat import ChatCompletionTokenLogprob, ChatCompletionTopLogprob
from plumbline.events import Logprob

__all__ = ["chat_logprob", "finite"]


def chat_logprob(entry: Logprob) -> ChatCompletionTokenLogprob:
    """Write one token's logprob as chat completions send it (LP-02)."""
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
    """Return a logprob that JSON can carry: -9999.0 for a token that cannot occur, as OpenAI sends it (LP-02)."""
    return max(value, -9999.0) if value < 0 else 0.0
