"""A model that answers with given texts, and writes Hermes calls and thinking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle

import msgspec

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.registry import choose
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.loading.served_model import ServedModel

from .models import TOKENIZER, scripted_info, served, token_chunks

__all__ = ["speaking"]


class TrustedScript(ScriptedEngine):
    """Accepts grammars and plays its script, which the test wrote to follow them."""

    async def check_grammar(self, grammar: str, client: str = "") -> None:
        """Accept every grammar."""


def speaking(
    *texts: str,
    grammars: bool = False,
    prompts: list[str] | None = None,
    dialects: tuple[str, str] = ("hermes", "qwen3"),
    template: str = "",
) -> ServedModel:
    """Return a model that answers with these texts in turn, by default with Hermes calls and thinking.

    Args:
        texts: the answers.
        grammars: accept constrained requests. The texts have to follow the grammars.
        prompts: gets the prompt of each answer.
        dialects: the names of the dialects of calls and of thinking.
        template: the source of another chat template.
    """
    scripts = cycle([TOKENIZER.encode_rendered(text) for text in texts])
    features = frozenset({"grammar"}) if grammars else frozenset[str]()
    kind = TrustedScript if grammars else ScriptedEngine
    info = scripted_info(features=features)

    def play(request: GenerateRequest) -> Iterator[TokenChunk]:
        if prompts is not None:
            prompts.append(TOKENIZER.decode(request.prompt_token_ids))
        return _limited(request, next(scripts))

    model = served(kind(info, play))
    return ServedModel(
        engine=model.engine,
        renderer=Renderer(TOKENIZER, ChatTemplate(template)) if template else model.renderer,
        names=model.names,
        defaults=model.defaults,
        created=model.created,
        fingerprint=model.fingerprint,
        dialect=build_dialect(choose("", tool=dialects[0], reasoning=dialects[1]), TOKENIZER),
    )


def _limited(request: GenerateRequest, ids: Sequence[int]) -> Iterator[TokenChunk]:
    """Cut a script at the token limit of the request, as an engine does."""
    limit = request.sampling.max_tokens
    for number, chunk in enumerate(token_chunks(request, ids), 1):
        if number == limit:
            yield msgspec.structs.replace(chunk, finish_reason="length")
            return
        yield chunk
