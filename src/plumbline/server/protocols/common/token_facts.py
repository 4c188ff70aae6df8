"""Read and write what a client asks to know about single tokens: their ids, and the logprobs of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from plumbline.answer.events import Logprob
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.contract._generated.common import PromptLogprob
from plumbline.contract._generated.shared_fields import CompletionFields
from plumbline.contract.wire.errors import invalid_request, invalid_value
from plumbline.port.engine import TokenLogprob
from plumbline.server.protocols.common.fields import given, or_default
from plumbline.server.protocols.common.logprobs import finite

__all__ = ["NO_FACTS", "PromptFacts", "named_by_id", "prompt_logprobs", "read_facts", "read_truncation"]

PromptLogprobs = list[dict[str, PromptLogprob] | None]


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """The facts about prompt tokens that an answer reports; None for facts that were not asked for."""

    token_ids: list[int] | None = None
    logprobs: PromptLogprobs | None = None


NO_FACTS = PromptFacts()


def read_facts(request: CompletionFields, *, logprobs: bool) -> None:
    """Check the fields about single tokens against each other.

    Args:
        request: a chat or legacy completion request.
        logprobs: whether the request asks for logprobs.

    Raises:
        ApiError: 400 for `prompt_logprobs` in a stream, as in vLLM, and for `logprob_token_ids` without logprobs.
    """
    if given(request.prompt_logprobs) and request.stream is True:
        raise invalid_request(
            "'prompt_logprobs' is not available when 'stream' is enabled; send them in two requests.",
            "prompt_logprobs",
        )
    if or_default(request.logprob_token_ids, None) and not logprobs:
        raise invalid_request(
            "The 'logprob_token_ids' parameter is only allowed when 'logprobs' is enabled.",
            "logprob_token_ids",
        )


def read_truncation(request: CompletionFields) -> int | None:
    """Read `truncate_prompt_tokens`: how many tokens of the prompt to keep, -1 for what fits, None for all.

    Raises:
        ApiError: 400 for 0, which would leave nothing to continue.
    """
    count = or_default(request.truncate_prompt_tokens, None)
    if count == 0:
        raise invalid_value("truncate_prompt_tokens", 0)
    return count


def prompt_logprobs(tokenizer: TextTokenizer, entries: Sequence[TokenLogprob | None]) -> PromptLogprobs:
    """Write the logprobs of a prompt as vLLM does: by token id, the prompt's own token first."""
    return [None if entry is None else _by_id(tokenizer, entry) for entry in entries]


def named_by_id(entry: Logprob) -> Logprob:
    """Return the entry with its tokens named `token_id:N`, as vLLM writes them."""
    top = tuple((token_id, f"token_id:{token_id}", raw, value) for token_id, _, raw, value in entry.top)
    return msgspec.structs.replace(entry, token=f"token_id:{entry.token_id}", top=top)


def _by_id(tokenizer: TextTokenizer, entry: TokenLogprob) -> dict[str, PromptLogprob]:
    found = {entry.token_id: (entry.logprob, entry.rank)}
    for place, (token_id, value) in enumerate(entry.top, start=1):
        found.setdefault(token_id, (value, place))
    return {
        str(token_id): PromptLogprob(
            logprob=finite(value), rank=rank, decoded_token=tokenizer.token_text(token_id)
        )
        for token_id, (value, rank) in found.items()
    }
