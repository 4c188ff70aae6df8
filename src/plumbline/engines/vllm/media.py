"""Let vLLM's processors read the images of prompts."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

from plumbline.engines.images import decode_image
from plumbline.engines.port import MediaPrompt, Modality, RefusedRequestError

__all__ = ["modalities", "render_media"]

_log = logging.getLogger("plumbline.engines.vllm")


def modalities(model_config: Any) -> dict[Modality, int]:
    """Return what a model reads besides text, and the token that a prompt has in the place of one item.

    Args:
        model_config: vLLM's configuration of the model.
    """
    if not model_config.is_multimodal_model:
        return {}
    from vllm.model_executor.model_loader.utils import get_model_cls
    from vllm.tokenizers import cached_tokenizer_from_config

    try:
        text = get_model_cls(model_config).get_placeholder_str("image", 1)
        tokens = cached_tokenizer_from_config(model_config).encode(text, add_special_tokens=False)
    except Exception as error:  # Models raise errors of many kinds where they read no images.
        _log.warning("no images with this model: %s", error)
        return {}
    config = model_config.hf_config
    named = {getattr(config, name, None) for name in ("image_token_id", "image_token_index")}
    found = tokens if len(tokens) == 1 else [token for token in tokens if token in named]
    if len(found) != 1:
        _log.warning("no images with this model: its placeholder %r is not one token", text)
        return {}
    return {"image": int(found[0])}


async def render_media(llm: Any, prompt: MediaPrompt) -> dict[str, Any]:
    """Return the input of vLLM's engine for a prompt, with expanded token ids and processed images.

    Raises:
        RefusedRequestError: the model's processor refused an image.
    """
    images = await asyncio.to_thread(lambda: [decode_image(item.data) for item in prompt.items])
    given = {"prompt_token_ids": list(prompt.token_ids), "multi_modal_data": {"image": images}}
    renderer = llm.renderer
    # The length is checked above the port, where a prompt that is too long is known by its tokens.
    params = dataclasses.replace(renderer.default_cmpl_tok_params, max_total_tokens=None)
    try:
        # vLLM's usual cache expects that the engine gets everything that is rendered. Prompts that are only counted,
        # or are found to be too long, do not reach it, so the cache of this side alone is used.
        (rendered,) = await renderer.render_cmpl_async([given], params, skip_mm_cache=True)
    except Exception as error:  # Processors raise errors of many kinds.
        _log.warning("an image was refused", exc_info=error)
        raise RefusedRequestError(
            f"the model's image processor cannot process these images: {error.__cause__ or error}"
        ) from error
    found: dict[str, Any] = rendered
    return found
