"""Choose the prompt encoder of a model that comes without a chat template."""

from __future__ import annotations

from pathlib import Path

from plumbline.answer.dialects.spec.dialect import PromptEncoding
from plumbline.answer.text.prompts.deepseek import DeepSeekEncoder, ModelTexts
from plumbline.answer.text.prompts.encoders import PromptFormat
from plumbline.answer.text.prompts.harmony import HarmonyEncoder

__all__ = ["prompt_encoder"]


def prompt_encoder(encoding: PromptEncoding, folder: Path) -> PromptFormat:
    """Return the encoder for a way of encoding prompts.

    Args:
        encoding: what the model's dialect names.
        folder: the model's, which may have texts that its prompts need.
    """
    match encoding:
        case "harmony":
            return HarmonyEncoder()
        case "deepseek_v32":
            return DeepSeekEncoder("v32", ModelTexts.from_folder(folder))
        case "deepseek_v4":
            return DeepSeekEncoder("v4", ModelTexts.from_folder(folder))
