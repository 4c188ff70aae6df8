"""Read the fields that several requests share (`openapi/schemas/shared_fields.yaml`) into a turn."""

from __future__ import annotations

from msgspec.structs import replace

from plumbline.answer.turn import Turn
from plumbline.contract._generated.shared_fields import CompletionFields, GenerationFields
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.protocols.common.sampling.beam_search import read_beams
from plumbline.server.protocols.common.sampling.chain import read_breakers
from plumbline.server.protocols.common.sampling.parameters import read_bad_words, read_cache_salt, read_stop
from plumbline.server.protocols.common.token_facts import read_truncation
from plumbline.server.protocols.common.usage import wants_progress

__all__ = ["with_shared_fields"]


def with_shared_fields(turn: Turn, request: GenerationFields) -> Turn:
    """Return a turn with the fields that several APIs share, such as `stop`, `priority` and `cache_salt`.

    Raises:
        ApiError: 400 naming a field that has no meaning or contradicts another one.
    """
    turn = replace(
        turn,
        stop=read_stop(request.stop),
        include_stop=or_default(request.include_stop_str_in_output, False),
        skip_special_tokens=or_default(request.skip_special_tokens, True),
        dry_breakers=read_breakers(request),
        priority=or_default(request.priority, 0),
        cache_salt=read_cache_salt(request),
        bad_words=read_bad_words(request.bad_words),
    )
    if not isinstance(request, CompletionFields):
        return turn
    return replace(
        turn,
        report_progress=wants_progress(request),
        length_penalty=read_beams(request),
        return_token_ids=request.return_token_ids is True,
        keep_tokens=read_truncation(request),
        keep_beginning=or_default(request.truncation_side, "left") == "right",
    )
