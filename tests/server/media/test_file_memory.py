"""Memory for the files of requests is reserved before they are loaded.

Laws:
    1. All requests together never have more reserved than the limit.
    2. A file is fetched only once as many bytes as it may have are reserved.
    3. A request that is being answered has as many bytes reserved as its files have.
    4. Nothing stays reserved after a request, whether it succeeds, fails or is cancelled.
    5. Files beyond the most of a request are counted, and not looked at one by one.
"""

from __future__ import annotations

import asyncio
import base64

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.weights.vision import data_url, picture

from plumbline.answer.turn import ChatPrompt, MediaReference, Message
from plumbline.contract.wire.errors import ApiError
from plumbline.server.http.streams import closing_streams
from plumbline.server.limits.held_bytes import ByteBudget
from plumbline.server.media import load
from plumbline.server.media.fetch import Fetcher, FetchError
from plumbline.server.media.load import MediaLoader
from plumbline.server.settings import Settings

PNG = picture(4, 3)
LARGE = picture(300, 300)
URLS = [
    data_url(PNG),
    "data:image/png;base64," + base64.b64encode(LARGE[:-20]).decode(),
    "data:image/png;base64,####",
    "https://host/small",
    "https://host/large",
    "https://host/junk",
    "https://host/fails",
    "https://host/waits",
]


class Watched(ByteBudget):
    """Notes the most bytes that were reserved."""

    most = 0

    def __setattr__(self, name: str, value: int) -> None:
        if name == "held":
            assert value >= 0
            self.most = max(self.most, value)
        super().__setattr__(name, value)


class Web(Fetcher):
    """Answers without a network."""

    def __init__(self, memory: ByteBudget) -> None:
        self._memory = memory

    async def fetch(self, url: str, max_bytes: int) -> bytes:
        assert self._memory.held >= max_bytes
        await asyncio.sleep(0)
        kind = url.rpartition("/")[2]
        if kind == "waits":
            await asyncio.sleep(60)
        data = {"small": PNG, "large": LARGE, "junk": b"junk"}.get(kind)
        if data is None or len(data) > max_bytes:
            raise FetchError("failed")
        return data


REQUESTS = st.lists(
    st.tuples(st.lists(st.sampled_from(URLS), min_size=1, max_size=3), st.booleans()), min_size=1, max_size=6
)


@settings(max_examples=EXPLORED or 20)
@given(
    requests=REQUESTS,
    limit=st.sampled_from([len(PNG), 3 * len(PNG), len(LARGE), 4 * len(LARGE)]),
    left=st.sampled_from([len(PNG), len(LARGE), 3 * len(LARGE)]),
    repeated=st.booleans(),
)
def test_reserved_bytes_stay_below_the_limit_and_return_to_zero(
    requests: list[tuple[list[str], bool]], limit: int, left: int, repeated: bool
) -> None:
    memory = Watched(limit)
    loader = MediaLoader(Settings(allow_media_urls=True, max_media_bytes=left), Web(memory))
    loader.memory = memory

    async def request(urls: list[str]) -> None:
        references = [MediaReference(url=url, field="f", reduced=repeated, modality="image") for url in urls]
        async with closing_streams():
            held = await loader._load(references, "c")
            assert memory.held >= sum(len(item.data) for item in held.values())
            await asyncio.sleep(0)

    async def run() -> list[BaseException | None]:
        tasks = [asyncio.ensure_future(request(urls)) for urls, _ in requests]
        for _ in range(3):
            await asyncio.sleep(0.001)
        for task, (urls, cancelled) in zip(tasks, requests, strict=True):
            if cancelled or any(url.endswith("waits") for url in urls):
                task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(run())
    assert [each for each in results if not isinstance(each, ApiError | asyncio.CancelledError | None)] == []
    assert memory.most <= limit
    assert memory.held == 0


async def test_what_a_file_does_not_use_is_given_back() -> None:
    for url, reduced in (
        (URLS[0], False),
        ("https://host/small", False),
        (data_url(picture(700, 600)), True),
    ):
        memory = ByteBudget(10**8)
        loader = MediaLoader(Settings(allow_media_urls=True), Web(memory))
        loader.memory = memory
        async with closing_streams():
            (item,) = (
                await loader._load([MediaReference(url=url, field="f", reduced=reduced)], "c")
            ).values()
            assert memory.held == len(item.data)
        assert memory.held == 0


async def test_files_beyond_the_most_are_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 5: 8,000 small images stopped the event loop for a second, in which Python looked for their decoder."""
    looked_for: list[str] = []

    def find_spec(package: str) -> object:
        looked_for.append(package)
        return object()

    monkeypatch.setattr(load, "find_spec", find_spec)
    settings = Settings(max_media_items=3)
    loader = MediaLoader(settings, Web(ByteBudget(10**8)))
    for count, wanted in ((3, 1), (4, 0)):
        looked_for.clear()
        parts = tuple(MediaReference(url=URLS[2], field=f"f[{number}]") for number in range(count))
        message = Message(role="user", content="x" * count, parts=parts)
        async with closing_streams():
            with pytest.raises(ApiError) as refused:
                await loader.load([ChatPrompt(messages=(message,))], "c")
        assert len(looked_for) == wanted
        assert (refused.value.param == "f[3]") is (count > 3)
    await loader.close()
