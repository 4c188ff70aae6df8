"""Laws of images in requests, over an engine that shows what reaches it.

- the files of a request reach the engine in order, byte for byte, with one placeholder each, from chat and Responses;
- usage counts the tokens that the engine made of them;
- a response that continues another one has its images;
- text of a client is never a placeholder;
- whatever a client sends in place of an image is a 400 that names its field.
"""

from __future__ import annotations

import asyncio
import base64
import io
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st
from support.eyes import PLACEHOLDER, PNG, Eyes, chat
from support.laws import EXPLORED
from support.models import served
from support.servers.asgi import Server, serving
from support.weights.vision import data_url, picture

from plumbline.media.images import ImageError, decode_image, upright_size

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


def responses(*parts: Any, **more: Any) -> dict[str, Any]:
    """The same for Responses."""
    content = [
        {"type": "input_text", "text": part}
        if isinstance(part, str)
        else {"type": "input_image", "image_url": data_url(part)}
        if isinstance(part, bytes)
        else part
        for part in parts
    ]
    return {"model": "test-model", "input": [{"role": "user", "content": content}], **more}


@settings(max_examples=EXPLORED or 12)
@given(
    st.lists(
        st.text(max_size=8) | st.integers(1, 9).map(lambda side: picture(side, 3)), min_size=1, max_size=6
    )
)
def test_images_reach_the_engine_in_order_and_are_counted(parts: list[Any]) -> None:
    async def scenario() -> None:
        eyes = Eyes()
        async with serving(eyes.model) as server:
            prompts = []
            for path, body in ((CHAT, chat(*parts)), (RESPONSES, responses(*parts))):
                answer = await server.post(path, body)
                assert answer.status == 200, answer.body
                assert eyes.files == [part for part in parts if isinstance(part, bytes)]
                request = eyes.seen[-1]
                usage = answer.json["usage"]
                assert usage.get("prompt_tokens", usage.get("input_tokens")) == len(request.prompt_token_ids)
                assert list(request.prompt_token_ids).count(PLACEHOLDER) == 3 * len(eyes.files)
                before = request.prompt_token_ids if request.media is None else request.media.token_ids
                assert list(before).count(PLACEHOLDER) == len(eyes.files)
                prompts.append((tuple(before), tuple(request.prompt_token_ids)))
            assert prompts[0] == prompts[1]

    asyncio.run(scenario())


@settings(max_examples=EXPLORED or 12)
@given(st.text(max_size=20), st.text(max_size=20))
def test_text_is_never_a_placeholder(before: str, after: str) -> None:
    async def scenario() -> None:
        eyes = Eyes()
        async with serving(eyes.model) as server:
            answer = await server.post(CHAT, chat(f"{before}<image>{after}", PNG))
            assert answer.status == 200, answer.body
            assert eyes.seen[-1].media is not None
            assert eyes.seen[-1].media.token_ids.count(PLACEHOLDER) == 1

    asyncio.run(scenario())


async def test_a_continued_response_has_its_images(tmp_path: Any) -> None:
    eyes = Eyes()
    second, third = picture(5, 5, seed=2), picture(6, 6, seed=3)
    async with serving(eyes.model, store=str(tmp_path / "kept.db")) as server:
        first = await server.post(RESPONSES, responses("look", PNG, store=True))
        assert first.status == 200
        more = {"store": True, "previous_response_id": first.json["id"]}
        answer = await server.post(RESPONSES, responses("and", second, **more))
        assert answer.status == 200, answer.body
        assert eyes.files == [PNG, second]
        listed = (await server.get(f"{RESPONSES}/{first.json['id']}/input_items")).json["data"][0]
        assert listed["content"][1] == {
            "type": "input_image",
            "image_url": data_url(PNG),
            "detail": "auto",
        }
        conversation = (
            await server.post("/v1/conversations", {"items": responses("1", third)["input"]})
        ).json
        answer = await server.post(
            RESPONSES, responses("2", PNG, conversation=conversation["id"], store=True)
        )
        assert answer.status == 200, answer.body
        assert eyes.files == [third, PNG]


async def test_tool_results_may_be_images() -> None:
    eyes = Eyes()
    call = {"type": "function_call", "call_id": "c", "name": "photo", "arguments": "{}"}
    output = {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_image", "image_url": data_url(PNG)}],
    }
    async with serving(eyes.model) as server:
        answer = await server.post(
            RESPONSES, {"model": "test-model", "input": [{"role": "user", "content": "x"}, call, output]}
        )
        assert answer.status == 200, answer.body
    assert eyes.files == [PNG]


async def test_counting_counts_what_the_answer_would_count() -> None:
    eyes = Eyes()
    async with serving(eyes.model) as server:
        await server.post(CHAT, chat("a", PNG))
        count = len(eyes.seen[-1].prompt_token_ids)
        body = {key: value for key, value in chat("a", PNG).items() if key != "model"}
        assert (await server.post("/tokenize", body)).json["count"] == count
        counted = await server.post("/v1/responses/input_tokens", responses("a", PNG))
        assert counted.json["input_tokens"] == count


async def test_little_detail_makes_large_images_smaller() -> None:
    eyes = Eyes()
    large = picture(1024, 512)
    async with serving(eyes.model) as server:
        for part in (
            {"type": "image_url", "image_url": {"url": data_url(large), "detail": "low"}},
            {"type": "image_url", "image_url": {"url": data_url(large), "detail": "high"}},
            {"type": "image_url", "image_url": {"url": data_url(PNG), "detail": "low"}},
        ):
            assert (await server.post(CHAT, chat(part))).status == 200
    reduced, kept, small = (request.media.items[0].data for request in eyes.seen if request.media)
    assert decode_image(reduced).size == (512, 256)
    assert (kept, small) == (large, PNG)


URL = "messages[0].content[0].image_url.url"


def jpeg_with_scans(count: int) -> bytes:
    """A JPEG that claims more scans than it has."""
    return picture(4, 4, kind="JPEG")[:-2] + b"\xff\xda\x00\x02" * count + b"\xff\xd9"


@pytest.mark.parametrize(
    ("url", "code", "settings"),
    [
        ("data:image/png;base64,AA=A", "invalid_base64_image", {}),
        ("data:image/png,%89PNG", "invalid_image_url", {}),
        ("data:", "invalid_image_url", {}),
        ("data:image/png;base64,", "empty_image_file", {}),
        ("data:text/html;base64,AAAA", "unsupported_image_media_type", {}),
        (data_url(b"no image at all"), "invalid_image_format", {}),
        (data_url(picture(30, 30)[:-1000]), "image_parse_error", {}),
        (data_url(picture(4, 4, kind="BMP")), "invalid_image_format", {}),
        (data_url(jpeg_with_scans(80)), "image_parse_error", {}),
        (data_url(picture(201, 1)), "image_parse_error", {}),
        (data_url(picture(2, 403)), "image_parse_error", {}),
        (data_url(picture(30, 20)), "image_too_large", {"max_image_pixels": 599}),
        (data_url(picture(30, 30)), "image_file_too_large", {"max_media_bytes": 100}),
        ("file:///etc/passwd", "invalid_value", {}),
        ("ftp://example.org/a.png", "invalid_value", {}),
        ("picture.png", "invalid_value", {}),
        ("https://example.org/a.png", "invalid_image_url", {}),
        ("http://127.0.0.1/a.png", "failed_to_download_image", {"allow_media_urls": True}),
        ("http://[::ffff:10.0.0.1]/a.png", "failed_to_download_image", {"allow_media_urls": True}),
        ("http://user:word@example.org/a.png", "failed_to_download_image", {"allow_media_urls": True}),
        ("http://", "failed_to_download_image", {"allow_media_urls": True}),
        ("http://[", "failed_to_download_image", {"allow_media_urls": True}),
    ],
)
async def test_what_is_no_image_is_refused_by_name(url: str, code: str, settings: dict[str, Any]) -> None:
    eyes = Eyes()
    async with serving(eyes.model, **settings) as server:
        answer = await server.post(CHAT, chat({"type": "image_url", "image_url": {"url": url}}))
        assert (answer.status, answer.json["error"]["param"], answer.json["error"]["code"]) == (
            400,
            URL,
            code,
        )
        answer = await server.post(RESPONSES, responses({"type": "input_image", "image_url": url}))
        assert (answer.status, answer.json["error"]["param"]) == (400, "input[0].content[0].image_url")
    assert not eyes.seen


async def test_bounds_are_of_the_request_and_not_of_each_image() -> None:
    eyes = Eyes()
    one, other = picture(20, 20, seed=1), picture(20, 20, seed=2)
    for limit, param in (
        ({"max_media_items": 1}, URL.replace("content[0]", "content[1]")),
        ({"max_image_pixels": 799}, URL.replace("content[0]", "content[1]")),
        ({"max_media_bytes": len(one) + len(other) - 1}, URL.replace("content[0]", "content[1]")),
    ):
        async with serving(eyes.model, **limit) as server:
            assert (await server.post(CHAT, chat(one))).status == 200
            answer = await server.post(CHAT, chat(one, other))
            assert (answer.status, answer.json["error"]["param"]) == (400, param)
            assert (await server.post(CHAT, chat(other))).status == 200, "nothing is left of it"


async def test_files_in_use_are_bounded_and_given_back() -> None:
    eyes = Eyes()
    other = picture(4, 3, seed=9)
    async with serving(eyes.model, max_media_in_flight=len(PNG) + len(other) - 1) as server:
        for _ in range(3):
            assert (await server.post(CHAT, chat(PNG))).status == 200
        answer = await server.post(CHAT, chat(PNG, other))
        assert answer.status == 429
        assert (await server.post(CHAT, chat(PNG))).status == 200


async def test_parts_that_name_no_image_are_refused() -> None:
    eyes = Eyes()
    async with serving(eyes.model) as server:
        for part, param in (
            ({"type": "input_image", "file_id": "file-1"}, "file_id"),
            ({"type": "input_image"}, "image_url"),
            ({"type": "input_file", "file_id": "file-1"}, "file_id"),
        ):
            answer = await server.post(RESPONSES, responses(part))
            assert (answer.status, answer.json["error"]["param"]) == (400, f"input[0].content[0].{param}")
        sound = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
        answer = await server.post(CHAT, chat(sound))
        assert (answer.status, answer.json["error"]["param"]) == (400, "messages[0].content[0].type")
        assert "text, images" in answer.json["error"]["message"]


async def test_placeholders_without_an_image_are_refused() -> None:
    eyes = Eyes()
    async with serving(eyes.model) as server:
        for body in ({"prompt": "a <image> b"}, {"prompt": [65, PLACEHOLDER]}):
            answer = await server.post("/v1/completions", {"model": "test-model", **body})
            assert (answer.status, answer.json["error"]["param"]) == (400, "prompt")
    assert not eyes.seen


@given(st.sampled_from(["PNG", "JPEG", "GIF", "WEBP"]), st.data())
def test_a_broken_file_is_an_image_or_an_error(kind: str, data: st.DataObject) -> None:
    file = bytearray(picture(9, 7, kind=kind))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(file) - 1))
        file[at] = data.draw(st.integers(0, 255))
    del file[data.draw(st.integers(1, len(file))) :]
    with suppress(ImageError):
        image = decode_image(bytes(file), 10_000)
        assert image.mode == "RGB"
        assert upright_size(bytes(file)) == image.size[::-1]


@given(st.sampled_from(["RGB", "RGBA", "L"]), st.integers(1, 20), st.integers(1, 20))
def test_every_mode_becomes_rgb_of_the_same_size(mode: str, width: int, height: int) -> None:
    image = decode_image(picture(width, height, mode=mode))
    assert (image.mode, image.size) == ("RGB", (width, height))


def test_grey_of_sixteen_bits_keeps_its_shades() -> None:
    from PIL import Image

    shades = Image.new("I;16", (4, 1))
    for at, shade in enumerate((0, 0x4000, 0x8000, 0xFFFF)):
        shades.putpixel((at, 0), shade)
    file = io.BytesIO()
    shades.save(file, "PNG")
    image = decode_image(file.getvalue())
    assert [image.getpixel((at, 0)) for at in range(4)] == [(s, s, s) for s in (0, 0x40, 0x80, 0xFF)]


def test_transparent_is_white_and_photographs_stand_upright() -> None:
    from PIL import Image

    clear = io.BytesIO()
    Image.new("RGBA", (2, 2), (200, 0, 0, 0)).save(clear, "PNG")
    assert decode_image(clear.getvalue()).getpixel((0, 0)) == (255, 255, 255)
    photograph = Image.new("RGB", (6, 2))
    exif = photograph.getexif()
    for kind in ("JPEG", "PNG", "WEBP"):
        for orientation in range(10):
            exif[0x0112] = orientation
            lying = io.BytesIO()
            photograph.save(lying, kind, exif=exif)
            height, width = upright_size(lying.getvalue())
            assert (height, width) == ((6, 2) if orientation in range(5, 9) else (2, 6))
            assert decode_image(lying.getvalue()).size == (width, height)


async def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    import tracemalloc
    import zlib

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")
        )

    size = (30_000).to_bytes(4, "big")
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size + size + b"\x08\x02\x00\x00\x00")
    bomb += chunk(b"IDAT", zlib.compress(bytes(10_000_000), 9)) + chunk(b"IEND", b"")
    eyes = Eyes()
    async with serving(eyes.model) as server:
        tracemalloc.start()
        answer = await server.post(CHAT, chat(bomb))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (answer.status, answer.json["error"]["code"]) == (400, "image_too_large")
    assert peak < 20_000_000


async def test_models_of_text_refuse_images_as_before() -> None:
    from support.models import scripted as plain

    async with serving(served(plain())) as server:
        answer = await _post_image(server)
    assert (answer.status, answer.json["error"]["param"]) == (400, "messages[0].content[0].type")


async def _post_image(server: Server) -> Any:
    encoded = base64.b64encode(PNG).decode()
    return await server.post(
        CHAT, chat({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}})
    )


async def test_a_compacted_conversation_keeps_its_images() -> None:
    eyes = Eyes()
    async with serving(eyes.model) as server:
        compacted = await server.post("/v1/responses/compact", responses("look", PNG))
        assert compacted.status == 200, compacted.body
        question = {"role": "user", "content": "and now?"}
        body = {"model": "test-model", "input": [*compacted.json["output"], question]}
        answer = await server.post(RESPONSES, body)
        assert answer.status == 200, answer.body
    assert eyes.files == [PNG]


async def test_summaries_are_written_from_the_images_too() -> None:
    eyes = Eyes()
    async with serving(eyes.model, compaction="summary") as server:
        items = [*responses("look", PNG)["input"], {"role": "user", "content": "and now?"}]
        compacted = await server.post("/v1/responses/compact", {"model": "test-model", "input": items})
        assert compacted.status == 200, compacted.body
    assert eyes.files == [PNG]


async def test_a_truncated_conversation_drops_images_with_their_messages() -> None:
    eyes = Eyes()
    other = picture(5, 5, seed=5)
    items = [
        *responses("a" * 9000, PNG)["input"],
        {"role": "assistant", "content": "ok"},
        *responses("b" * 9000, other)["input"],
    ]
    async with serving(eyes.model) as server:
        body = {"model": "test-model", "input": items, "truncation": "auto"}
        answer = await server.post(RESPONSES, body)
        assert answer.status == 200, answer.body
        assert eyes.files == [other]
        assert answer.json["usage"]["input_tokens"] == len(eyes.seen[-1].prompt_token_ids)
        refused = await server.post(RESPONSES, {**body, "truncation": "disabled"})
        assert refused.json["error"]["code"] == "context_length_exceeded"
