"""Write token logprobs as chat completions and Responses send them."""

from __future__ import annotations

from plumbline.answer.events import Logprob
from plumbline.contract._generated.chat import ChatCompletionTokenLogprob, ChatCompletionTopLogprob

__all__ = ["chat_logprob", "finite"]


def chat_logprob(entry: Logprob) -> ChatCompletionTokenLogprob:
    """Write one token's logprob as chat completions send it (LP-02).

    The alternatives are distinct: those without bytes, such as ids behind the vocabulary, have their ids as text.
    """
    return ChatCompletionTokenLogprob(
        token=entry.token,
        logprob=finite(entry.logprob),
        bytes=list(entry.raw),
        top_logprobs=[
            ChatCompletionTopLogprob(
                token=token if raw else f"token_id:{token_id}", logprob=finite(value), bytes=list(raw)
            )
            for token_id, token, raw, value in entry.top
        ],
    )


def finite(value: float) -> float:
    """Return a logprob that JSON can carry: -9999.0 for a token that cannot occur, as OpenAI sends it (LP-02)."""
    return max(value, -9999.0) if value < 0 else 0.0
