"""Turn the tokens that an engine draws into the chunks of their requests."""

from __future__ import annotations

from plumbline.engines.port import TokenChunk, TokenLogprob
from plumbline.engines.request import RequestState

__all__ = ["drawn_chunk"]


def drawn_chunk(state: RequestState, token: int, logprob: TokenLogprob | None) -> TokenChunk:
    """Append a drawn token to a request and return its chunk; the first one also carries the facts of the prompt.

    `state.finish_reason` is set if it is the last.
    """
    first = state.num_output_tokens == 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    if state.max_len == state.num_prompt_tokens:
        # `max_tokens=0` asks for the prompt's logprobs alone: the draw is not part of the answer.
        state.finish_reason = "length"
    else:
        state.append(token)
        token_ids = (token,)
        logprobs = None if logprob is None else (logprob,)
    if state.finish_reason == "error":
        return TokenChunk(finish_reason="error", error=state.error, refused=True)
    if not first:
        return TokenChunk(token_ids=token_ids, logprobs=logprobs, finish_reason=state.finish_reason)
    return TokenChunk(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=state.finish_reason,
        num_cached_tokens=state.num_cached_tokens,
        prompt_logprobs=None if state.prompt_logprobs is None else tuple(state.prompt_logprobs),
    )
