"""Let vLLM's processors read the files of prompts."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from plumbline.media.audio import SAMPLE_RATE, decode_audio
from plumbline.media.images import decode_image
from plumbline.media.video import decode_bounded_video
from plumbline.port.engine import MediaItem, MediaPrompt, Modality, RefusedRequestError

__all__ = ["MediaRenderer", "modalities", "num_bytes"]

_log = logging.getLogger("plumbline.engines.vllm")
_KINDS: tuple[Modality, ...] = ("audio", "image", "video")
_MAX_KEPT_BYTES = 256 * 1024**2
"""Bytes of files and of tensors that are kept for further uses of a prompt."""
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
        _log.info("this model does not accept %s: %s", kind, error)
        return None
    config = model_config.hf_config
    named = {getattr(config, f"{kind}_token_{name}", None) for name in ("id", "index")}
    found = tokens if len(tokens) == 1 else [token for token in tokens if token in named]
    if len(found) != 1:
        _log.warning("this model does not accept %s: its placeholder %r is not one token", kind, text)
        return None
    return int(found[0])


class MediaRenderer:
    """Process the files of prompts with the model's processor, and keep the results for further uses.

    A prompt is needed several times: to count its tokens, then by each of its choices. Up to `max_bytes` of files and
    tensors are kept; the least recently used prompt goes first, and a prompt above that is processed for each use.
    """

    def __init__(self, renderer: Any, max_bytes: int = _MAX_KEPT_BYTES) -> None:
        self._renderer = renderer
        self._max_bytes = max_bytes
        self._kept: OrderedDict[MediaPrompt, tuple[dict[str, Any], int]] = OrderedDict()
        self._kept_bytes = 0

    async def render(self, prompt: MediaPrompt) -> dict[str, Any]:
        """Return the input of vLLM's engine for a prompt, with expanded token ids and processed files.

        Raises:
            RefusedRequestError: the model's processor refused a file.
        """
        # Prompts from another process are equal but not the same, and hashing the files takes a millisecond per MiB.
        await asyncio.to_thread(hash, prompt)
        found = self._kept.get(prompt)
        if found is not None:
            self._kept.move_to_end(prompt)
            return dict(found[0])
        rendered = await self._process(prompt)
        self._keep(prompt, rendered)
        return dict(rendered)

    def _keep(self, prompt: MediaPrompt, rendered: dict[str, Any]) -> None:
        size = sum(len(item.data) for item in prompt.items) + num_bytes(rendered)
        if size > self._max_bytes or prompt in self._kept:
            return
        self._kept[prompt] = rendered, size
        self._kept_bytes += size
        while self._kept_bytes > self._max_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self._kept_bytes -= freed

    async def _process(self, prompt: MediaPrompt) -> dict[str, Any]:
        files = await asyncio.to_thread(lambda: [(item.modality, _decoded(item)) for item in prompt.items])
        data: dict[Modality, list[Any]] = {}
        for kind, file in files:
            data.setdefault(kind, []).append(file)
        given = {"prompt_token_ids": list(prompt.token_ids), "multi_modal_data": data}
        # The length is checked above the port, where a prompt that is too long is known by its tokens.
        params = dataclasses.replace(self._renderer.default_cmpl_tok_params, max_total_tokens=None)
        try:
            # vLLM's own cache expects that the engine gets everything that is rendered. Prompts that are only counted,
            # or are found to be too long, do not reach it.
            (rendered,) = await self._renderer.render_cmpl_async([given], params, skip_mm_cache=True)
        except Exception as error:  # Processors raise errors of many kinds.
            _log.warning("a file was refused", exc_info=error)
            raise RefusedRequestError(
                f"the model's processor cannot process these files: {error.__cause__ or error}"
            ) from error
        found: dict[str, Any] = rendered
        # vLLM serves earlier arrivals first, so a prompt that was kept would overtake requests that wait.
        found.pop("arrival_time", None)
        return found


def num_bytes(value: Any) -> int:
    """Return the bytes of all tensors and arrays in a nested value of mappings, sequences and vLLM's field elements."""
    if isinstance(size := getattr(value, "nbytes", None), int):
        return size
    if isinstance(value, Mapping):
        return sum(map(num_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(num_bytes, value))
    return num_bytes(value.data) if hasattr(value, "data") else 0


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
