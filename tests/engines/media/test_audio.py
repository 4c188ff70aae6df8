"""Laws of engines that read audio: through the server they give the tokens that transformers' generate gives.

The model is random. What is compared with are the family's processor and `generate` of transformers.
"""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from support.servers.asgi import serving
from support.weights.hearing import audio_part, make_audio_model, wav

from plumbline.server.loading.served_model import ServedModel, load
from plumbline.server.settings import Settings

pytest.importorskip("soundfile", reason="soundfile is not installed")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")

CHAT = "/v1/chat/completions"
STEPS = 12
PROMPTS: list[list[Any]] = [
    ["hello ", wav(1.0, 1), " what is this?"],
    [wav(0.4, 2), "and", wav(2.3, 3)],
    ["nothing to hear"],
    # The same tokens as the first, with another sound: what is cached of one is not of the other.
    ["hello ", wav(1.0, 4), " what is this?"],
    [wav(0.5, 5, channels=2)],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_audio_model(tmp_path_factory.mktemp("audio"))


def body(parts: list[Any]) -> dict[str, Any]:
    """A greedy request that shows its tokens."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else audio_part(part) for part in parts
    ]
    return {
        "model": "audio",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": STEPS,
        "return_token_ids": True,
    }


def generated(folder: Path, parts: list[Any]) -> tuple[int, list[int]]:
    """The number of prompt tokens and the greedy tokens, by transformers alone."""
    from transformers import Qwen2AudioForConditionalGeneration, Qwen2AudioProcessor

    from plumbline.media.audio import decode_audio

    model = Qwen2AudioForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    processor = Qwen2AudioProcessor.from_pretrained(folder)
    content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "audio"} for p in parts]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        chat_template=(folder / "chat_template.jinja").read_text("utf-8"),
    )
    sounds = [decode_audio(part, 30.0) for part in parts if not isinstance(part, str)]
    given = {"audio": sounds, "sampling_rate": 16_000} if sounds else {}
    inputs = processor(text=[text], return_tensors="pt", **given)
    output = model.generate(**inputs, do_sample=False, max_new_tokens=STEPS)
    size = inputs["input_ids"].shape[1]
    return size, output[0, size:].tolist()


def loaded(folder: Path) -> ServedModel:
    """The model in vLLM."""
    return load(
        Settings(
            models=(("", str(folder)),),
            served_model_names=("audio",),
            engine="vllm",
            engine_args=("enforce_eager=true",),
            kv_cache_bytes=1 << 30,
            dtype="float32",
            max_model_len=2048,
            max_num_seqs=4,
        )
    )


def test_greedy_tokens_are_those_of_generate(folder: Path) -> None:
    expected = [generated(folder, parts) for parts in PROMPTS]
    assert expected[0] != expected[3], "the model hears"

    async def scenario() -> None:
        async with serving(loaded(folder)) as server:
            alone = [await server.post(CHAT, body(parts)) for parts in PROMPTS]
            together = await asyncio.gather(
                *(server.post(CHAT, body(parts)) for parts in [*PROMPTS, *PROMPTS])
            )
            for answers in (alone, together[: len(PROMPTS)], together[len(PROMPTS) :]):
                for answer, (size, tokens) in zip(answers, expected, strict=True):
                    assert answer.status == 200, answer.body
                    assert answer.json["choices"][0]["token_ids"] == tokens
                    assert answer.json["usage"]["prompt_tokens"] == size
            # Too short for one token of the model: the fault of the request, and the engine lives.
            short = await server.post(CHAT, body([wav(0.001)]))
            assert (short.status, short.json["error"]["param"]) == (400, "messages"), short.body
            long = await server.post(CHAT, body(["a" * 2100, wav(0.1)]))
            assert long.json["error"]["code"] == "context_length_exceeded"
            assert (await server.post(CHAT, body(PROMPTS[0]))).status == 200

    asyncio.run(scenario())
