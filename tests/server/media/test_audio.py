"""Laws of audio in requests, over an engine that shows what reaches it.

- files reach the engine in order, byte for byte, with one placeholder each, beside images;
- the length of all audio of a request is bounded, whatever the header of a file says;
- whatever a client sends in place of audio is a 400 that names its field;
- what is decoded is as long as the file, and as loud.
"""

from __future__ import annotations

import asyncio
import base64
import io
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("soundfile", reason="soundfile is not installed")
pytest.importorskip("PIL", reason="Pillow is not installed")

import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.models import chatml, scripted, scripted_info, served, text_chunks
from support.servers.asgi import serving
from support.weights.hearing import audio_part, wav
from support.weights.vision import data_url, picture

from plumbline.media.audio import SAMPLE_RATE, AudioError, decode_audio
from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.settings import Settings, SettingsError

CHAT = "/v1/chat/completions"
TEMPLATE = """\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}
{{- '<image>' if part.type == 'image' else '<audio>' if part.type == 'audio' else part.text }}{% endfor %}{% endif %}
{{- '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"""
RENDERER = chatml(TEMPLATE, [{"content": text, "special": True} for text in ("<image>", "<audio>")])
PLACEHOLDERS = {kind: RENDERER.tokenizer.added[f"<{kind}>"] for kind in ("audio", "image")}
SOUND = wav(0.25)


class Ears:
    """A served model that reads audio and images, and the requests that reached its engine."""

    def __init__(self) -> None:
        self.seen: list[GenerateRequest] = []

        def script(request: GenerateRequest) -> Iterable[TokenChunk]:
            self.seen.append(request)
            return text_chunks(request, "heard")

        info = scripted_info(
            modalities=PLACEHOLDERS, vocab_size=RENDERER.tokenizer.vocab_size, max_model_len=16_384
        )
        self.model: ServedModel = served(scripted(script, info=info), renderer=RENDERER)


def chat(*parts: Any) -> dict[str, Any]:
    """A request of one message; bytes are images or audio."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else part
        if isinstance(part, dict)
        else audio_part(part)
        if part.startswith(b"RIFF")
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]
    return {"model": "test-model", "messages": [{"role": "user", "content": content}]}


sounds = st.integers(1, 5).map(lambda seed: wav(0.01 * seed, seed))
pictures = st.integers(1, 9).map(lambda side: picture(side, 3))


@settings(max_examples=EXPLORED or 12)
@given(st.lists(st.text(max_size=8) | sounds | pictures, min_size=1, max_size=6))
def test_files_reach_the_engine_in_order(parts: list[Any]) -> None:
    async def scenario() -> None:
        ears = Ears()
        async with serving(ears.model) as server:
            answer = await server.post(CHAT, chat(*parts))
        assert answer.status == 200, answer.body
        (request,) = ears.seen
        media = request.media
        files = [part for part in parts if isinstance(part, bytes)]
        assert ([item.data for item in media.items] if media else []) == files
        for item in media.items if media else ():
            assert item.media_type == ("audio/wav" if item.modality == "audio" else "image/png")
        assert answer.json["usage"]["prompt_tokens"] == len(request.prompt_token_ids)
        before = list(request.prompt_token_ids if media is None else media.token_ids)
        kinds = [kind for token in before for kind, its in PLACEHOLDERS.items() if token == its]
        assert kinds == ["audio" if file.startswith(b"RIFF") else "image" for file in files]

    asyncio.run(scenario())


@settings(max_examples=EXPLORED or 12)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_the_length_of_all_audio_is_bounded(tenths: list[int]) -> None:
    """The first file that is too much is named."""

    async def scenario() -> None:
        ears = Ears()
        async with serving(ears.model, max_audio_seconds=2.05) as server:
            parts = [wav(0.1 * length, seed) for seed, length in enumerate(tenths)]
            answer = await server.post(CHAT, chat(*parts))
        over = [index for index in range(len(tenths)) if sum(tenths[: index + 1]) > 20]
        if not over:
            assert answer.status == 200, answer.body
            return
        assert answer.status == 400
        assert answer.json["error"]["param"] == f"messages[0].content[{over[0]}].input_audio.data"
        assert "seconds" in answer.json["error"]["message"]
        assert not ears.seen

    asyncio.run(scenario())


def _written(samples: Any, **kind: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, 16_000, **kind)
    return file.getvalue()


def _rate(rate: int) -> bytes:
    """A file that says it has this many samples a second."""
    return SOUND[:24] + struct.pack("<I", rate) + SOUND[28:]


WRONG = {
    "empty": b"",
    "no audio": b"RIFFed",
    "an image": picture(3, 3),
    "FLAC": _written(np.zeros(1000), format="FLAC"),
    "no samples": wav(0),
    "a rate of 0": _rate(0),
    "a rate of a gigahertz": _rate(10**9),
    "nine channels": wav(0.1, channels=9),
    "numbers that are none": _written(np.full(100, np.nan), format="WAV", subtype="FLOAT"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_what_is_no_audio_is_refused_by_its_field(name: str) -> None:
    ears = Ears()
    async with serving(ears.model) as server:
        for kind in ("wav", "mp3"):
            answer = await server.post(CHAT, chat("hear ", audio_part(WRONG[name], kind)))
            assert answer.status == 400, answer.body
            assert answer.json["error"]["param"] == "messages[0].content[1].input_audio.data"
        assert (await server.post(CHAT, chat(SOUND))).status == 200


async def test_the_text_and_the_number_of_files_are_checked_first() -> None:
    ears = Ears()
    async with serving(ears.model, max_media_items=2, max_media_bytes=len(SOUND) + 10) as server:
        for parts, code in (
            ([{"type": "input_audio", "input_audio": {"data": "no-base64", "format": "wav"}}], "invalid_base64_audio"),
            ([SOUND, wav(0.1, 1)], "audio_file_too_large"),
            ([SOUND, picture(9, 9), SOUND], "invalid_value"),
        ):  # fmt: skip
            answer = await server.post(CHAT, chat(*parts))
            assert (answer.status, answer.json["error"]["code"]) == (400, code), answer.body
        url = {
            "type": "image_url",
            "image_url": {"url": f"data:audio/wav;base64,{base64.b64encode(SOUND).decode()}"},
        }
        answer = await server.post(CHAT, chat(url))
        assert answer.json["error"]["code"] == "unsupported_image_media_type"
    assert not ears.seen


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_the_length_has_a_bound(seconds: float) -> None:
    with pytest.raises(SettingsError, match="--max-audio-seconds"):
        Settings(max_audio_seconds=seconds)


def test_a_long_file_costs_no_more_than_what_is_allowed() -> None:
    """An MP3 of ten minutes of silence has 600 KB, and is refused after two seconds of it."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(600 * 8000, np.float32), 8000, format="MP3")
    with pytest.raises(AudioError, match="longer than the 2 seconds"):
        decode_audio(file.getvalue(), 2.0)


@given(
    rate=st.sampled_from([8000, 11_025, 16_000, 22_050, 44_100, 48_000]),
    channels=st.integers(1, 4),
    length=st.integers(2000, 6000),
    subtype=st.sampled_from(["PCM_U8", "PCM_16", "PCM_24", "FLOAT", "DOUBLE"]),
)
def test_samples_are_as_many_and_as_loud_as_those_of_the_file(
    rate: int, channels: int, length: int, subtype: str
) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(length) / rate)
    file = io.BytesIO()
    loudness = np.linspace(0.5, 1.0, channels)
    soundfile.write(file, tone[:, None] * loudness, rate, format="WAV", subtype=subtype)
    found = decode_audio(file.getvalue(), 10.0)
    assert found.dtype == np.float32
    assert abs(len(found) - length * SAMPLE_RATE / rate) <= 1
    expected = 0.5 * loudness.mean() * np.sin(2 * np.pi * 440 * np.arange(len(found)) / SAMPLE_RATE)
    middle = slice(len(found) // 4, -len(found) // 4)
    assert np.abs(found[middle] - expected[middle]).max() < 0.02


@given(st.binary(max_size=200), st.integers(0, len(SOUND)))
def test_no_file_breaks_the_decoder(junk: bytes, at: int) -> None:
    for data in (junk, SOUND[:at] + junk, SOUND[:at] + junk + SOUND[at + len(junk) :]):
        try:
            samples = decode_audio(data, 1.0)
        except AudioError:
            continue
        assert len(samples) <= SAMPLE_RATE + 1
        assert np.abs(samples).max() <= 1.0
