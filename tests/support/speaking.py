"""A model that answers with given texts, and writes Hermes calls and thinking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle

import msgspec

from plumbline.dialects.build import build_dialect
from plumbline.dialects.registry import choose
from plumbline.engines.port import GenerateRequest, TokenChunk
from plumbline.server.loading import ServedModel

from .models import TOKENIZER, scripted, served, token_chunks

__all__ = ["speaking"]


def speaking(*texts: str) -> ServedModel:
    """Return a model that answers with these texts in turn, and writes Hermes calls and thinking."""
    scripts = cycle([TOKENIZER.encode_rendered(text) for text in texts])
    model = served(scripted(lambda request: _limited(request, next(scripts))))
    return ServedModel(
        engine=model.engine,
        renderer=model.renderer,
        names=model.names,
        defaults=model.defaults,
        created=model.created,
        fingerprint=model.fingerprint,
        dialect=build_dialect(choose("", tool="hermes", reasoning="qwen3"), TOKENIZER),
    )


def _limited(request: GenerateRequest, ids: Sequence[int]) -> Iterator[TokenChunk]:
    """Cut a script at the token limit of the request, as an engine does."""
    limit = request.sampling.max_tokens
    for number, chunk in enumerate(token_chunks(request, ids), 1):
        if number == limit:
            yield msgspec.structs.replace(chunk, finish_reason="length")
            return
        yield chunk
