"""Render a prompt to tokens, and let the engine expand the placeholders of its files."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from plumbline.engines.checks import check_media
from plumbline.engines.port import Engine, MediaItem, MediaPrompt, RefusedRequestError
from plumbline.text.render import Renderer
from plumbline.turn import Prompt, media_of

__all__ = ["PromptTokens", "prompt_tokens"]


class PromptTokens(NamedTuple):
    """A prompt as the model reads it."""

    token_ids: list[int]
    """With all tokens of its files."""
    media: MediaPrompt | None = None
    """The prompt before that; None if it has no files."""


async def prompt_tokens(engine: Engine, renderer: Renderer, prompt: Prompt, most: int) -> PromptTokens:
    """Render a prompt in a worker thread and expand it.

    Args:
        engine: the engine that will read the prompt.
        renderer: the model's renderer.
        prompt: the prompt, with its files loaded.
        most: the largest number of tokens.

    Raises:
        TooManyTokensError: the prompt has more than `most` tokens.
        TemplateError: the chat template refused the messages.
        RefusedRequestError: the numbers of files and placeholders differ, or the engine does not take such files.
    """
    token_ids = await asyncio.to_thread(renderer.token_ids, prompt, most)
    if not engine.info.modalities:
        return PromptTokens(token_ids)
    found = media_of(prompt)
    items = tuple(item for item in found if isinstance(item, MediaItem))
    if len(items) < len(found):
        raise RefusedRequestError("the prompt has files that are not loaded")
    media = MediaPrompt(tuple(token_ids), items)
    # Without files, too: a client can write a placeholder, where special tokens are read from text.
    check_media(media, engine.info)
    if not items:
        return PromptTokens(token_ids)
    return PromptTokens(list(await engine.expand(media)), media)
