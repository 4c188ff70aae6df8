"""Make sounds, and folders of a tiny Qwen2-Audio with random weights."""

from __future__ import annotations

import base64
import io
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from support.models import byte_level_definition

__all__ = ["PLACEHOLDER", "audio_part", "make_audio_model", "wav"]

PLACEHOLDER = "<|AUDIO|>"
_MARKERS = (PLACEHOLDER, "<|audio_bos|>", "<|audio_eos|>")
_PLAIN = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}
{%- if part.type == 'audio' %}{{ '<|audio_bos|><|AUDIO|><|audio_eos|>' }}
{%- elif part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def wav(seconds: float, seed: int = 0, *, rate: int = 16_000, channels: int = 1) -> bytes:
    """A WAV file of 16 bits: a tone that `seed` chooses, and noise."""
    generator = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    tone = 0.4 * np.sin(2 * np.pi * (200 + 150 * seed) * time) + 0.05 * generator.standard_normal(len(time))
    samples = np.repeat((tone * 32_767).clip(-32_768, 32_767).astype("<i2")[:, None], channels, axis=1)
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def audio_part(data: bytes, kind: str = "wav") -> dict[str, Any]:
    """The part of a message in chat."""
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(data).decode(), "format": kind},
    }


def _published(name: str) -> str:
    """The name of a weight in the files of the family."""
    name = name.removeprefix("model.")
    for start in ("lm_head.", "language_model."):
        if name.startswith(start):
            inner = name.removeprefix("language_model.")
            return f"language_model.{'model.' if start == 'language_model.' else ''}{inner}"
    return name


def make_audio_model(folder: Path) -> Path:
    """Write a Qwen2-Audio that hears 30 seconds of each file; returns the folder."""
    from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    definition = byte_level_definition([{"content": text, **_PLAIN} for text in _MARKERS])
    ids = {token["content"]: token["id"] for token in definition["added_tokens"]}
    config = Qwen2AudioConfig(
        audio_config={
            "d_model": 16,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 16,
            "num_mel_bins": 128,
            "max_source_positions": 1500,
        },
        text_config={
            "model_type": "qwen2",
            "vocab_size": 64 * -(-(max(ids.values()) + 1) // 64),
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 4096,
            "eos_token_id": ids["<|im_end|>"],
        },
        audio_token_index=ids[PLACEHOLDER],
        architectures=["Qwen2AudioForConditionalGeneration"],
    )
    torch.manual_seed(1)
    model = Qwen2AudioForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # The usual range gives all prompts the same answer.
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    config.save_pretrained(folder)
    # In the names of the published files, which some releases of transformers do not write.
    weights = {_published(name): tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    special = {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "audio_token": PLACEHOLDER,
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
    }
    extractor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "Qwen2AudioProcessor",
        "feature_size": 128,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "chunk_length": 30,
        "n_fft": 400,
        "return_attention_mask": True,
    }
    for name, content in (
        ("tokenizer.json", definition),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special}),
        ("preprocessor_config.json", extractor),
    ):
        (folder / name).write_text(json.dumps(content), "utf-8")
    (folder / "chat_template.jinja").write_text(_TEMPLATE, "utf-8")
    return folder
