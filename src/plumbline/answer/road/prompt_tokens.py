"""Render a prompt to tokens, and let the engine expand the placeholders of its files."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.workers import TemplatesBusyError, TemplateWorkers
from plumbline.answer.turn import Prompt, media_of
from plumbline.port.checks import check_media
from plumbline.port.engine import Engine, EngineFullError, MediaItem, MediaPrompt, RefusedRequestError

__all__ = ["PromptRenderer", "PromptTokens", "prompt_tokens"]


class PromptTokens(NamedTuple):
    """A prompt as the model reads it."""

    token_ids: list[int]
    """With all tokens of its files."""
    media: MediaPrompt | None = None
    """The prompt before that; None if it has no files."""


class PromptRenderer:
    """Render prompts in threads, and their templates in worker processes.

    Args:
        renderer: the model's renderer.
        workers: where chat templates render; None renders them in the thread, which is for templates that are trusted.
    """

    def __init__(self, renderer: Renderer, workers: TemplateWorkers | None = None) -> None:
        self.renderer = renderer
        self._workers = workers

    async def token_ids(self, prompt: Prompt, most: int, client: str) -> list[int]:
        """Return the token ids of a prompt; see `Renderer.token_ids`.

        Raises:
            EngineFullError: too many prompts wait to be rendered.
        """
        if self._workers is None or not self.renderer.needs_worker(prompt):
            return await asyncio.to_thread(self.renderer.token_ids, prompt, most)
        try:
            async with self._workers.turn(client) as rendering:
                return await asyncio.to_thread(self.renderer.within(rendering).token_ids, prompt, most)
        except TemplatesBusyError as error:
            raise EngineFullError(str(error)) from None


async def prompt_tokens(
    engine: Engine, renderer: PromptRenderer, prompt: Prompt, most: int, client: str
) -> PromptTokens:
    """Render a prompt and expand it.

    Args:
        engine: the engine that will read the prompt.
        renderer: renders the model's prompts.
        prompt: the prompt, with its files loaded.
        most: the largest number of tokens.
        client: whose prompt it is; clients take turns.

    Raises:
        TooManyTokensError: the prompt has more than `most` tokens.
        TemplateError: the chat template refused the messages.
        EngineFullError: too many prompts wait to be rendered.
        RefusedRequestError: the numbers of files and placeholders differ, or the engine does not take such files.
    """
    token_ids = await renderer.token_ids(prompt, most, client)
    if not engine.info.modalities:
        return PromptTokens(token_ids)
    found = media_of(prompt)
    items = tuple(item for item in found if isinstance(item, MediaItem))
    if len(items) < len(found):
        raise RefusedRequestError("the prompt has files that are not loaded")
    media = MediaPrompt(tuple(token_ids), items)
    # Also without files: a client can write a placeholder, where special tokens are read from text.
    check_media(media, engine.info)
    if not items:
        return PromptTokens(token_ids)
    return PromptTokens(list(await engine.expand(media)), media)
