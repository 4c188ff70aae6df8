"""Laws of videos in requests, over an engine that shows what reaches it.

- files reach the engine in order, byte for byte, with one placeholder each, beside images;
- the frames that a model sees are evenly spread, upright, and have the colours of the file;
- what a file claims costs no more than the process that decodes it may take;
- whatever a client sends in place of a video is a 400 that names its field.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("av", reason="PyAV is not installed")
pytest.importorskip("PIL", reason="Pillow is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.models import chatml, scripted, scripted_info, served, text_chunks
from support.servers.asgi import serving
from support.weights.moving import noise, shade, video, video_part
from support.weights.vision import data_url, picture

from plumbline.media.video import VideoError, decode_video
from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.settings import Settings, SettingsError

CHAT = "/v1/chat/completions"
TEMPLATE = """\
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}
{{- '<image>' if part.type == 'image' else '<video>' if part.type == 'video' else part.text }}{% endfor %}{% endif %}
{{- '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"""
RENDERER = chatml(TEMPLATE, [{"content": text, "special": True} for text in ("<image>", "<video>")])
PLACEHOLDERS = {kind: RENDERER.tokenizer.added[f"<{kind}>"] for kind in ("image", "video")}
CLIP = video()
CLIPS = [CLIP, video(3, green=100), video(1, container="matroska")]
PIXELS, SECONDS = 40_000_000, 5.0


class Eyes:
    """A served model that reads images and videos, and the requests that reached its engine."""

    def __init__(self) -> None:
        self.seen: list[GenerateRequest] = []

        def script(request: GenerateRequest) -> Iterable[TokenChunk]:
            self.seen.append(request)
            return text_chunks(request, "seen")

        info = scripted_info(
            modalities=PLACEHOLDERS, vocab_size=RENDERER.tokenizer.vocab_size, max_model_len=16_384
        )
        self.model: ServedModel = served(scripted(script, info=info), renderer=RENDERER)


def part(given: Any) -> dict[str, Any]:
    """A part of a message; bytes are images or videos."""
    if isinstance(given, str):
        return {"type": "text", "text": given}
    if given.startswith(b"\x89PNG"):
        return {"type": "image_url", "image_url": {"url": data_url(given)}}
    return video_part(given)


def chat(*parts: Any) -> dict[str, Any]:
    """A request of one message."""
    content = [given if isinstance(given, dict) else part(given) for given in parts]
    return {"model": "test-model", "messages": [{"role": "user", "content": content}]}


pictures = st.integers(1, 9).map(lambda side: picture(side, 3))


@settings(max_examples=EXPLORED or 4)
@given(st.lists(st.text(max_size=8) | st.sampled_from(CLIPS) | pictures, min_size=1, max_size=5))
def test_files_reach_the_engine_in_order(parts: list[Any]) -> None:
    async def scenario() -> None:
        eyes = Eyes()
        async with serving(eyes.model, max_video_frames=2) as server:
            answer = await server.post(CHAT, chat(*parts))
        assert answer.status == 200, answer.body
        (request,) = eyes.seen
        media = request.media
        files = [part for part in parts if isinstance(part, bytes)]
        assert ([item.data for item in media.items] if media else []) == files
        for item in media.items if media else ():
            wanted = ("video/mp4", 2) if item.modality == "video" else ("image/png", 0)
            assert (item.media_type, item.frames) == wanted
        before = list(request.prompt_token_ids if media is None else media.token_ids)
        kinds = [kind for token in before for kind, its in PLACEHOLDERS.items() if token == its]
        assert kinds == ["image" if file.startswith(b"\x89PNG") else "video" for file in files]

    asyncio.run(scenario())


ENCODINGS = [
    ("mp4", "libx264"),
    ("mov", "libx264"),
    ("mp4", "libx265"),
    ("mp4", "mpeg4"),
    ("mp4", "libsvtav1"),
    ("matroska", "libx264"),
    ("webm", "libvpx"),
    ("webm", "libvpx-vp9"),
]


@pytest.mark.parametrize(("container", "codec"), ENCODINGS)
def test_frames_have_the_colours_of_the_file(container: str, codec: str) -> None:
    count = 12
    found = decode_video(video(count, container=container, codec=codec), 5, PIXELS, SECONDS)
    assert found.frames.shape == (5, 48, 64, 3)
    assert (found.indexes, found.total, found.rate) == ((0, 3, 6, 8, 11), count, 10.0)
    for frame, index in zip(found.frames.astype(int), found.indexes, strict=True):
        assert abs(frame[30:, 40:, 0].mean() - shade(index, count)) < 12
        assert frame[:20, :28, 2].mean() > 150 > 60 > frame[28:, 36:, 2].mean()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has scheduling classes")
def test_an_encoder_leaves_the_scheduling_of_the_process_alone() -> None:
    """SVT-AV1 left the whole suite in SCHED_FIFO where root ran it, before all other processes of the machine."""
    before = os.sched_getscheduler(0)
    video(12, codec="libsvtav1")
    assert os.sched_getscheduler(0) == before


@settings(max_examples=EXPLORED or 5)
@given(count=st.integers(1, 20), most=st.integers(1, 24))
def test_frames_are_evenly_spread(count: int, most: int) -> None:
    found = decode_video(video(count, width=16, height=16), most, PIXELS, SECONDS)
    assert len(found.indexes) == len(set(found.indexes)) == min(count, most)
    assert found.indexes[0] == 0
    assert most == 1 or found.indexes[-1] == count - 1
    steps = np.diff(found.indexes)
    assert not len(steps) or steps.max() - steps.min() <= 1


def test_large_frames_are_made_smaller() -> None:
    found = decode_video(video(2, width=1920, height=1080), 2, PIXELS, SECONDS)
    _, height, width, _ = found.frames.shape
    assert 990_000 < height * width <= 1_000_000
    assert abs(width / height - 16 / 9) < 0.01


def _turned(data: bytes) -> bytes:
    """The file with the matrix of a camera that was held upright: frames are to be turned clockwise."""
    start = data.index(b"tkhd") + 4 + 4 + 20 + 16
    matrix = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 48 << 16, 0, 1 << 30)
    return data[:start] + matrix + data[start + len(matrix) :]


def test_frames_are_upright() -> None:
    found = decode_video(_turned(CLIP), 2, PIXELS, SECONDS)
    assert found.frames.shape == (2, 64, 48, 3)
    # The blue quarter was at the top left.
    assert found.frames[0, :28, 28:, 2].mean() > 150 > 60 > found.frames[0, :28, :20, 2].mean()


def _many_samples(data: bytes) -> bytes:
    """The file with an index of four thousand million frames of one byte each."""
    at = data.index(b"stsz") + 8
    return data[:at] + struct.pack(">II", 1, 0xFFFF_FFF0) + data[at + 8 :]


WRONG = {
    "empty": b"",
    "no video": b"\x00\x00\x00\x18ftypmp42",
    "an image": picture(3, 3),
    "a playlist": b"#EXTM3U\nhttp://127.0.0.1/x.ts\n",
    "half of a file": CLIP[: len(CLIP) // 2],
    "many samples": _many_samples(CLIP),
    "a thin line": video(1, width=4096, height=16),
    "only sound": b"\x1a\x45\xdf\xa3" + bytes(64),
}


async def test_what_is_no_video_is_refused_by_its_field() -> None:
    eyes = Eyes()
    async with serving(eyes.model) as server:
        for name, wrong in WRONG.items():
            answer = await server.post(CHAT, chat("see ", video_part(wrong)))
            assert answer.status == 400, (name, answer.body)
            assert answer.json["error"]["param"] == "messages[0].content[1].video_url.url"
            assert answer.json["error"]["message"].startswith(
                "The video of 'messages[0].content[1].video_url.url' "
            )
        assert (await server.post(CHAT, chat(CLIP))).status == 200
    assert len(eyes.seen) == 1


async def test_what_videos_have_together_is_bounded() -> None:
    eyes = Eyes()
    each = 6 * 64 * 48
    async with serving(eyes.model, max_image_pixels=2 * each + 10, max_media_items=3) as server:
        assert (await server.post(CHAT, chat(CLIP, video(6, green=9)))).status == 200
        answer = await server.post(CHAT, chat(CLIP, video(6, green=9), picture(9, 9)))
        assert answer.json["error"]["param"] == "messages[0].content[2].image_url.url"
        answer = await server.post(CHAT, chat(picture(9, 9), CLIP, video(6, green=9)))
        assert answer.json["error"]["param"] == "messages[0].content[2].video_url.url"
        assert "6 frames of 64 x 48 pixels" in answer.json["error"]["message"]
        assert (await server.post(CHAT, chat(*[CLIP] * 4))).json["error"]["code"] == "invalid_value"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("data:video/mp4,AAAA", "invalid_video_url"),
        ("data:image/png;base64,AAAA", "unsupported_video_media_type"),
        ("data:video/mp4;base64,!", "invalid_base64_video"),
        ("https://example.com/a.mp4", "invalid_video_url"),
        ("ftp://example.com/a.mp4", "invalid_value"),
    ],
)
async def test_urls_are_checked(url: str, code: str) -> None:
    eyes = Eyes()
    async with serving(eyes.model) as server:
        answer = await server.post(CHAT, chat({"type": "video_url", "video_url": {"url": url}}))
    assert (answer.status, answer.json["error"]["code"]) == (400, code), answer.body
    assert answer.json["error"]["param"] == "messages[0].content[0].video_url.url"


async def test_a_model_without_eyes_refuses_the_part() -> None:
    model = served(scripted(lambda request: text_chunks(request, "a")))
    async with serving(model) as server:
        answer = await server.post(CHAT, chat(CLIP))
    assert (answer.status, answer.json["error"]["param"]) == (400, "messages[0].content[0].type")


def test_decoding_ends_after_its_time() -> None:
    with pytest.raises(VideoError, match="takes more than 1 seconds of a CPU"):
        decode_video(noise(300), 2, PIXELS, 1.0)


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", ["max_video_frames", "max_video_cpu_seconds"])
def test_bounds_are_above_zero(name: str, value: int) -> None:
    with pytest.raises(SettingsError, match=f"--{name.replace('_', '-')}"):
        Settings(**dict[str, Any]({name: value}))


@pytest.mark.long
@settings(max_examples=EXPLORED or 10)
@given(st.binary(max_size=200), st.integers(0, len(CLIP)))
def test_no_file_breaks_the_decoder(junk: bytes, at: int) -> None:
    for data in (CLIP[:at] + junk, CLIP[:at] + junk + CLIP[at + len(junk) :]):
        try:
            found = decode_video(data, 4, PIXELS, SECONDS)
        except VideoError:
            continue
        assert found.frames.ndim == 4
        assert len(found.frames) == len(found.indexes) <= 4
