"""Read the fields of beam search."""

from __future__ import annotations

from msgspec import UNSET

from plumbline.contract._generated.shared_fields import CompletionFields
from plumbline.contract.wire.errors import invalid_request
from plumbline.server.protocols.common.fields import given, or_default

__all__ = ["read_beams"]

_CONTRADICT = (
    "allowed_token_ids",
    "bad_words",
    "banned_strings",
    "best_of",
    "custom_logit_processor",
    "frequency_penalty",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "logit_bias",
    "logits_processors",
    "logprobs",
    "min_tokens",
    "mirostat",
    "n_probs",
    "presence_penalty",
    "repetition_penalty",
    "response_format",
    "return_hidden_states",
    "samplers",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "thinking_token_budget",
    "tools",
)
"""Fields that change which tokens may be drawn or when an answer ends. A search draws nothing and has one end."""

_NEUTRAL = {
    "frequency_penalty": 0,
    "min_tokens": 0,
    "mirostat": 0,
    "n_probs": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "return_hidden_states": False,
}
"""The values of some of them that mean nothing. Clients send those too."""


def read_beams(request: CompletionFields) -> float | None:
    """Return the length penalty of a beam search; None for a request without beam search.

    Raises:
        ApiError: 400 for a stream, as in vLLM, for fields that a search cannot follow, and for a length penalty
            without a search.
    """
    if request.use_beam_search is not True:
        if given(request.length_penalty):
            raise invalid_request(
                "The 'length_penalty' parameter is only allowed when 'use_beam_search' is enabled.",
                "length_penalty",
            )
        return None
    if request.stream is True:
        raise invalid_request(
            "'use_beam_search' is not available when 'stream' is enabled.", "use_beam_search"
        )
    for name in _CONTRADICT:
        value = getattr(request, name, UNSET)
        neutral = _NEUTRAL.get(name)
        if given(value) and value is not False and value != [] and (neutral is None or value != neutral):
            raise invalid_request(f"'{name}' cannot be combined with 'use_beam_search'; leave one out.", name)
    return or_default(request.length_penalty, 1.0)
