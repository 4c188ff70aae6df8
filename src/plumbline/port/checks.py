"""Check the files of a prompt against what an engine accepts."""

from __future__ import annotations

from plumbline.port.engine import EngineInfo, MediaPrompt, RefusedRequestError

__all__ = ["check_media"]


def check_media(prompt: MediaPrompt, info: EngineInfo) -> None:
    """Check that the engine takes the items of a prompt, and that each has its placeholder.

    A placeholder without an item would be read as an unknown token, and an item without a placeholder would be ignored.

    Raises:
        RefusedRequestError: the engine does not take an item, or the numbers of items and placeholders differ.
    """
    for item in prompt.items:
        if item.modality not in info.modalities:
            raise RefusedRequestError(
                f"this model does not accept {item.modality}s on the {info.name} engine"
            )
    for modality, placeholder in info.modalities.items():
        wanted = sum(item.modality == modality for item in prompt.items)
        found = prompt.token_ids.count(placeholder)
        if found != wanted:
            raise RefusedRequestError(
                f"the prompt has {found} placeholders for {wanted} {modality}s; each needs exactly one"
            )
