"""Laws of engines that read videos: through the server they give the tokens that transformers' generate gives.

The model is random. What is compared with are the family's processor and `generate` of transformers, with the frames
that PyAV decodes here.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.servers.asgi import serving
from support.weights.moving import video, video_part
from support.weights.vision import data_url, make_model, picture

from plumbline.server.loading.served_model import ServedModel, load
from plumbline.server.settings import Settings

av = pytest.importorskip("av", reason="PyAV is not installed")
Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

CHAT = "/v1/chat/completions"
STEPS = 12
MOST = 6
"""Frames of a video that the model sees."""
PROMPTS: list[list[Any]] = [
    ["hello ", video(4), " what is this?"],
    [video(2, green=80), "and", picture(40, 30, 1), video(3, width=96, height=64)],
    ["nothing to see"],
    # The same tokens as the first, with another video: what is cached of one is not of the other.
    ["hello ", video(4, green=200), " what is this?"],
    # Of eleven frames the model sees six.
    [video(11, width=32, height=32, container="webm", codec="libvpx")],
]


def _why_not(name: str) -> str:
    """Return why an engine reads no videos here: transformers' processors need a torchvision that can be imported."""
    if importlib.util.find_spec(name) is None:
        return f"{name} is not installed"
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # Builds for another torch raise errors of many kinds.
        return f"processors of videos need torchvision: {error}"
    return ""


VLLM = {"engine": "vllm", "engine_args": ("enforce_eager=true",), "kv_cache_bytes": 1 << 30}
ENGINES = [
    pytest.param(
        options,
        id=name,
        marks=pytest.mark.skipif(bool(_why_not(name)), reason=_why_not(name) or "it is there"),
    )
    for name, options in {"transformers": {"engine": "transformers"}, "vllm": VLLM}.items()
]
"""The engines that read videos."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("qwen2_vl", tmp_path_factory.mktemp("video"))


def is_video(part: Any) -> bool:
    """Tell whether bytes are a video."""
    return isinstance(part, bytes) and not part.startswith(b"\x89PNG")


def body(parts: list[Any]) -> dict[str, Any]:
    """A greedy request that shows its tokens."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else video_part(part)
        if is_video(part)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]
    return {
        "model": "video",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": STEPS,
        "return_token_ids": True,
    }


def frames_of(data: bytes) -> Any:
    """Frames of a file [frames, height, width, 3], evenly spread, as PyAV's documentation decodes them."""
    with av.open(io.BytesIO(data)) as container:
        every = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    chosen = np.linspace(0, len(every) - 1, min(MOST, len(every)))
    return np.stack([every[round(place)] for place in chosen])


def generated(folder: Path, parts: list[Any]) -> tuple[int, list[int]]:
    """The number of prompt tokens and the greedy tokens, by transformers alone."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    kinds = {True: "video", False: "image"}
    content = [
        {"type": "text", "text": p} if isinstance(p, str) else {"type": kinds[is_video(p)]} for p in parts
    ]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        chat_template=(folder / "chat_template.jinja").read_text("utf-8"),
    )
    images = [Image.open(io.BytesIO(p)) for p in parts if isinstance(p, bytes) and not is_video(p)]
    videos = [torch.from_numpy(frames_of(p)).permute(0, 3, 1, 2) for p in parts if is_video(p)]
    inputs = processor(images=images or None, videos=videos or None, text=[text], return_tensors="pt")
    output = model.generate(**inputs, do_sample=False, max_new_tokens=STEPS)
    size = inputs["input_ids"].shape[1]
    return size, output[0, size:].tolist()


def loaded(folder: Path, options: dict[str, Any]) -> ServedModel:
    """The model in an engine."""
    return load(
        Settings(
            models=(("", str(folder)),),
            served_model_names=("video",),
            device="auto" if options.get("engine") == "vllm" else "cpu",
            dtype="float32",
            max_model_len=1024,
            max_num_seqs=4,
            **options,
        )
    )


@pytest.mark.parametrize("options", ENGINES)
def test_greedy_tokens_are_those_of_generate(folder: Path, options: dict[str, Any]) -> None:
    expected = [generated(folder, parts) for parts in PROMPTS]
    assert expected[0] != expected[3], "the model sees"

    async def scenario() -> None:
        async with serving(loaded(folder, options), max_video_frames=MOST) as server:
            alone = [await server.post(CHAT, body(parts)) for parts in PROMPTS]
            together = await asyncio.gather(
                *(server.post(CHAT, body(parts)) for parts in [*PROMPTS, *PROMPTS])
            )
            for answers in (alone, together[: len(PROMPTS)], together[len(PROMPTS) :]):
                for answer, (size, tokens) in zip(answers, expected, strict=True):
                    assert answer.status == 200, answer.body
                    assert answer.json["choices"][0]["token_ids"] == tokens
                    assert answer.json["usage"]["prompt_tokens"] == size
            long = await server.post(CHAT, body(["a" * 1100, video(1)]))
            assert long.json["error"]["code"] == "context_length_exceeded"
            assert (await server.post(CHAT, body(PROMPTS[0]))).status == 200

    asyncio.run(scenario())
