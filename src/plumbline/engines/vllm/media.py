"""Let vLLM's processors read the files of prompts."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

from plumbline.engines.media.audio import SAMPLE_RATE, decode_audio
from plumbline.engines.media.images import decode_image
from plumbline.engines.media.video import decode_bounded_video
from plumbline.engines.port import MediaItem, MediaPrompt, Modality, RefusedRequestError

__all__ = ["modalities", "render_media"]

_log = logging.getLogger("plumbline.engines.vllm")
_KINDS: tuple[Modality, ...] = ("audio", "image", "video")
_MOST_SECONDS = 24 * 3600.0
"""The server has bounded the length of audio before."""


def modalities(model_config: Any) -> dict[Modality, int]:
    """Return what a model reads besides text, and the token that a prompt has in the place of one item.

    Args:
        model_config: vLLM's configuration of the model.
    """
    if not model_config.is_multimodal_model:
        return {}
    return {
        kind: placeholder for kind in _KINDS if (placeholder := _placeholder(model_config, kind)) is not None
    }


def _placeholder(model_config: Any, kind: Modality) -> int | None:
    """Return the token that stands for an item of a kind; None if the model does not read the kind."""
    from vllm.model_executor.model_loader.utils import get_model_cls
    from vllm.tokenizers import cached_tokenizer_from_config

    try:
        text = get_model_cls(model_config).get_placeholder_str(kind, 1)
        tokens = cached_tokenizer_from_config(model_config).encode(text, add_special_tokens=False)
    except Exception as error:  # Models raise errors of many kinds where they do not read one.
        _log.info("no %s with this model: %s", kind, error)
        return None
    config = model_config.hf_config
    named = {getattr(config, f"{kind}_token_{name}", None) for name in ("id", "index")}
    found = tokens if len(tokens) == 1 else [token for token in tokens if token in named]
    if len(found) != 1:
        _log.warning("no %s with this model: its placeholder %r is not one token", kind, text)
        return None
    return int(found[0])


async def render_media(llm: Any, prompt: MediaPrompt) -> dict[str, Any]:
    """Return the input of vLLM's engine for a prompt, with expanded token ids and processed files.

    Raises:
        RefusedRequestError: the model's processor refused a file.
    """
    files = await asyncio.to_thread(lambda: [(item.modality, _decoded(item)) for item in prompt.items])
    data: dict[Modality, list[Any]] = {}
    for kind, file in files:
        data.setdefault(kind, []).append(file)
    given = {"prompt_token_ids": list(prompt.token_ids), "multi_modal_data": data}
    renderer = llm.renderer
    # The length is checked above the port, where a prompt that is too long is known by its tokens.
    params = dataclasses.replace(renderer.default_cmpl_tok_params, max_total_tokens=None)
    try:
        # vLLM's usual cache expects that the engine gets everything that is rendered. Prompts that are only counted,
        # or are found to be too long, do not reach it, so the cache of this side alone is used.
        (rendered,) = await renderer.render_cmpl_async([given], params, skip_mm_cache=True)
    except Exception as error:  # Processors raise errors of many kinds.
        _log.warning("a file was refused", exc_info=error)
        raise RefusedRequestError(
            f"the model's processor cannot process these files: {error.__cause__ or error}"
        ) from error
    found: dict[str, Any] = rendered
    return found


def _decoded(item: MediaItem) -> Any:
    """Return a file as vLLM's processors take it.

    That is an image of PIL, samples and their rate, which vLLM may change, or frames and where they are in the video.
    """
    match item.modality:
        case "audio":
            return decode_audio(item.data, _MOST_SECONDS), SAMPLE_RATE
        case "video":
            video = decode_bounded_video(item.data, item.frames)
            return video.frames, {**video.metadata, "do_sample_frames": False}
        case "image":
            return decode_image(item.data)
