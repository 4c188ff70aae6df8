"""Laws of hostile images: within the bounds of a request each is answered soon, and no other stream stands still."""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.weights.vision import make_model

from .processor import slowness as machine
from .target import Target, running
from .test_requests import SECONDS, SILENCE, STALLED_BY_OTHERS, TRIES

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

MEGABYTES = 500
"""An image of 40 million pixels has 160 MB with transparency, and 120 MB more without."""
SIZE = (8_000, 5_000)


@pytest.fixture(scope="module", params=["plumbline", "transformers"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server with a small LLaVA, and a bystander."""
    folder = make_model("llava", tmp_path_factory.mktemp("llava"))
    with running("--model", str(folder), "--engine", request.param) as found:
        yield found


def flat(kind: str, mode: str = "RGB", size: tuple[int, int] = SIZE, **options: Any) -> bytes:
    """A large image of one colour, which compresses well."""
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return file.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG that claims a size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = zlib.crc32(name + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + name + content + check

    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", size + b"\x08\x02\x00\x00\x00")
        + chunk(b"IDAT", zlib.compress(bytes(5_000_000), 9))
        + chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(80_000_000), 9))
        + chunk(b"IEND", b"")
    )


ROWS: dict[str, Callable[[], list[bytes]]] = {
    "a large PNG": lambda: [flat("PNG")],
    "a large transparent PNG": lambda: [flat("PNG", "RGBA")],
    "a large grey PNG": lambda: [flat("PNG", "L")],
    "a large progressive JPEG": lambda: [flat("JPEG", progressive=True, subsampling=0)],
    "a large GIF": lambda: [flat("GIF", "P")],
    "a large WebP": lambda: [flat("WEBP", size=(12_000, 2_500), lossless=True)],
    "an image of 900 million pixels": lambda: [bomb(30_000, 30_000)],
    "an image as long as can be": lambda: [bomb(1, 40_000_000)],
    "an image with megabytes of text": lambda: [bomb(10, 10)],
    "the longest image": lambda: [flat("PNG", size=(89_000, 446))],
    "many large images": lambda: [flat("PNG", size=(1_600, 1_600 - n)) for n in range(15)],
    "too many images": lambda: [flat("PNG", size=(1, 1))] * 8_000,
    "base64 of nothing": lambda: [bytes(7_000_000)],
    "many scans": lambda: [flat("JPEG", size=(8, 8))[:-2] + b"\xff\xda\x00\x02" * 1_000_000],
}


def body(images: list[bytes]) -> bytes:
    """A request with images."""
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:;base64,{base64.b64encode(image).decode()}"}}
        for image in images
    ]
    message = {"role": "user", "content": parts}
    return json.dumps({"model": "pocket", "messages": [message], "max_tokens": 2}).encode()


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_no_hostile_image_hurts_others(target: Target, name: str) -> None:
    data = body(ROWS[name]())
    wanted = 200 if "large" in name or "longest" in name else 400
    faults: list[str] = []
    slowness = 1.0
    for _ in range(TRIES):
        cost = target.cost("POST", "/v1/chat/completions", data, {})
        faults = [
            fault
            for fault, found in (
                (f"status {cost.status}: {cost.body!r}", cost.status != wanted),
                (f"{cost.seconds:.1f} s", cost.seconds > SECONDS * slowness),
                (f"{cost.megabytes:.0f} MB", cost.megabytes > MEGABYTES),
                (f"{cost.silence:.2f} s of silence", cost.silence > SILENCE * slowness),
            )
            if found
        ]
        if not faults:
            return
        slowness = max(machine(), target.control() / STALLED_BY_OTHERS)
    assert faults == []
