"""Gather the facts about prompt tokens that an answer reports: ids and logprobs."""

from __future__ import annotations

from plumbline.answer.road.prepare import PreparedTurn
from plumbline.answer.road.road import Road
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract.wire.errors import invalid_request
from plumbline.server.http.failures import api_errors
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.protocols.common.token_facts import PromptFacts, prompt_logprobs

__all__ = ["prompt_facts"]

_MAX_ENTRIES = 262_144
"""Entries of the prompt's logprobs in one answer, about 20 MB of JSON."""


async def prompt_facts(
    road: Road,
    request: CreateChatCompletionRequest | CreateCompletionRequest,
    prepared: PreparedTurn,
    request_id: str,
    client: str,
) -> PromptFacts:
    """Return the prompt's token ids and logprobs, as far as the request asks for them.

    Raises:
        ApiError: 400 if there would be too many logprobs; the errors of the engine.
    """
    size = len(prepared.prompt_token_ids)
    ids = list(prepared.prompt_token_ids) if request.return_token_ids is True else None
    num_top = or_default(request.prompt_logprobs, None)
    if num_top is None:
        return PromptFacts(ids)
    if size * (num_top + 1) > _MAX_ENTRIES:
        raise invalid_request(
            f"'prompt_logprobs': {size} prompt tokens with {num_top} alternatives are more than the {_MAX_ENTRIES} "
            "entries that an answer may have; ask for fewer.",
            "prompt_logprobs",
        )
    entries = await api_errors(road.prompt_logprobs(prepared, request_id, num_top, client))
    return PromptFacts(ids, prompt_logprobs(road.tokenizer, entries))
