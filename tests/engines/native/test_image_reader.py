"""Laws of the reader of images, which encodes them before the core gets their request.

* A picture is encoded once for all requests that need it, and within a salt only.
* No more than the capacity is in memory; requests wait for room, and every request gets it in the end.
* While a picture is encoded, other requests are answered; one that ends meanwhile leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from engines.conftest import EOS, config, tiny_model
from engines.native.test_images import IMAGE, WIDTH, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from support.servers.recovery import recovering

from plumbline.engines.native import images as module
from plumbline.engines.native.engine import NativeEngine
from plumbline.engines.native.images import ImageReader
from plumbline.engines.native.models.vision.layout import ImageLayout
from plumbline.engines.native.runner import ModelRunner
from plumbline.media.images import ImageError
from plumbline.port.engine import (
    EngineClosedError,
    GenerateRequest,
    MediaItem,
    MediaPrompt,
    RefusedRequestError,
    SamplingParams,
    TokenChunk,
)

LAYOUT = ImageLayout.within((), IMAGE, WIDTH, ())


class Encoder:
    """Encodes a file of one byte, as fast as the test lets it."""

    def __init__(self, *, open_: bool = True) -> None:
        self.open = threading.Event()
        if open_:
            self.open.set()
        self.encoded: list[bytes] = []

    def __call__(self, data: bytes, is_wanted: Callable[[], bool]) -> torch.Tensor:
        assert self.open.wait(20)
        while data == b"~":  # A file that takes forever.
            assert is_wanted()
        self.encoded.append(data)
        if data == b"!":
            raise ImageError("is broken", "image_parse_error")
        return rows(data[0])


def reader(encoder: Encoder, capacity: int | None = None, **options: Any) -> ImageReader:
    """A reader with room for some images."""
    found = ImageReader(
        encoder,
        lambda data: LAYOUT,
        placeholder=IMAGE,
        tokens=frozenset((IMAGE,)),
        max_model_len=256,
        **{"row_bytes": 32 * 4, **options},
    )
    if capacity is not None:
        found.capacity = capacity * WIDTH
    return found


def asking(name: str, files: bytes, *, salt: str | None = None, client: str = "") -> GenerateRequest:
    """A request with an image for each byte."""
    items = tuple(MediaItem(media_type="image/png", data=bytes([byte])) for byte in files)
    short = (3, *[IMAGE] * len(items), 4)
    return GenerateRequest(
        request_id=name,
        prompt_token_ids=(3, *[IMAGE] * WIDTH * len(items), 4),
        media=MediaPrompt(short, items),
        sampling=SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True),
        cache_salt=salt,
        client=client,
    )


def run(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def test_a_picture_is_encoded_once_within_a_salt() -> None:
    encoder = Encoder()

    async def work() -> None:
        images = reader(encoder)
        both = await asyncio.gather(*(images.read(asking(f"r{n}", b"aba")) for n in range(3)))
        assert encoder.encoded == [b"a", b"b"]
        for found in both:
            assert [image.start for image in found] == [1, 1 + WIDTH, 1 + 2 * WIDTH]
            assert torch.equal(found[2].rows, rows(ord("a")))
            assert found[0].digest == found[2].digest != found[1].digest
        for n in range(3):
            images.forget(f"r{n}")
        (again,) = await images.read(asking("again", b"a"))
        assert len(encoder.encoded) == 2
        (salted,) = await images.read(asking("salted", b"a", salt="x"))
        assert len(encoder.encoded) == 3
        assert salted.digest != again.digest
        images.close()

    run(work())


def test_what_one_long_prompt_may_have_is_not_kept_when_nothing_needs_it() -> None:
    async def work() -> None:
        images = reader(Encoder(), row_bytes=module._MOST_BYTES // (2 * WIDTH))
        assert len(await images.read(asking("long", b"abcde"))) == 5
        assert len(await images.read(asking("short", b"e"))) == 1
        images.forget("long")
        assert len(images._kept) == 1
        images.forget("short")
        assert len(images._kept) == 2
        images.close()

    run(work())


@given(
    wanted=st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=8),
    capacity=st.integers(4, 6),
    cancelled=st.sets(st.integers(0, 7)),
)
@settings(max_examples=20, deadline=None)
def test_every_request_gets_room_and_no_more_than_the_capacity_is_in_memory(
    wanted: list[bytes], capacity: int, cancelled: set[int]
) -> None:
    encoder = Encoder()

    async def work() -> None:
        images = reader(encoder, capacity)

        async def one(number: int, files: bytes) -> None:
            try:
                found = await images.read(asking(f"r{number}", files))
                assert all(
                    torch.equal(image.rows, rows(byte)) for image, byte in zip(found, files, strict=True)
                )
                await asyncio.sleep(0)
                assert len(images._used) + len(images._kept) <= capacity
            except RefusedRequestError:
                assert b"!" in files
            finally:
                images.forget(f"r{number}")

        tasks = [asyncio.create_task(one(number, files)) for number, files in enumerate(wanted)]
        await asyncio.sleep(0)
        for number in cancelled:
            if number < len(tasks):
                tasks[number].cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ended)
        assert not images._used
        assert not images._holds
        assert not images._waiting
        assert len(images._kept) <= capacity
        images.close()

    run(work())


def test_room_goes_to_the_client_with_the_fewest_requests() -> None:
    async def work() -> None:
        images = reader(Encoder(), 2)
        order: list[str] = []

        async def one(name: str, files: bytes, client: str) -> None:
            await images.read(asking(name, files, client=client))
            order.append(name)

        await one("a0", b"a", "a")
        await one("a1", b"b", "a")
        waiting = [
            asyncio.create_task(one(name, files, name[0]))
            for name, files in (("a2", b"c"), ("a3", b"d"), ("b0", b"e"))
        ]
        while len(images._waiting) < 3:
            await asyncio.sleep(0.001)
        images.forget("a0")
        await waiting[2]
        images.forget("a1")
        await waiting[0]
        images.forget("a2")
        await waiting[1]
        assert order == ["a0", "a1", "b0", "a2", "a3"]
        images.close()

    run(work())


def test_the_capacity_is_enough_for_the_longest_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    assert reader(Encoder()).capacity == 256


def test_an_image_that_hangs_is_given_up_and_others_go_on() -> None:
    """The thread cannot be ended, so a few may hang; then further images are refused until one of them ends."""
    released = threading.Event()

    def encode(data: bytes, is_wanted: Callable[[], bool]) -> torch.Tensor:
        if data in b"~!":
            assert released.wait(20)
        return rows(data[0])

    async def work() -> None:
        images = reader(encode, hangs_after=0.2)  # type: ignore[arg-type]
        hanging = asyncio.create_task(images.read(asking("h1", b"~")))
        await asyncio.sleep(0)
        with recovering("An image hangs while it is encoded"):
            (behind,) = await images.read(asking("a", b"a"))
        assert torch.equal(behind.rows, rows(ord("a")))
        with pytest.raises(RefusedRequestError, match=r"takes longer than 0\.2 seconds"):
            await hanging
        with pytest.raises(RefusedRequestError, match="takes longer"):
            await images.read(asking("h2", b"!"))
        assert images.num_hanging == 2
        with pytest.raises(EngineClosedError, match="Images hang"):
            await images.read(asking("b", b"b"))
        assert await images.read(asking("kept", b"a")), "what is encoded already is used"
        released.set()
        for name in ("h1", "h2", "b"):
            images.forget(name)
        await until(lambda: not images.num_hanging)
        assert await images.read(asking("c", b"~")), "the image was not at fault"
        images.close()

    run(work())


def test_clients_take_turns_whatever_one_of_them_sends() -> None:
    encoder = Encoder(open_=False)

    async def work() -> None:
        images = reader(encoder)
        tasks = [
            asyncio.create_task(images.read(asking(f"a{n}", bytes([65 + n]), client="a"))) for n in range(6)
        ]
        await until(lambda: images._turns.num_waiting == 5)
        tasks.append(asyncio.create_task(images.read(asking("b", b"b", client="b"))))
        await until(lambda: images._turns.num_waiting == 6)
        encoder.open.set()
        await asyncio.gather(*tasks)
        assert encoder.encoded.index(b"b") <= 1
        images.close()

    run(work())


def test_an_image_whose_clients_leave_is_given_up_without_a_hang() -> None:
    async def work() -> None:
        images = reader(Encoder(), hangs_after=5.0)
        task = asyncio.create_task(images.read(asking("gone", b"~")))
        await until(lambda: images._turns.num_inside > 0)
        waiting = asyncio.create_task(images.read(asking("waits", b"a")))
        await asyncio.sleep(0.01)
        images.forget("gone")
        task.cancel()
        assert await waiting
        assert not images._hanging
        images.close()

    run(work())


@asynccontextmanager
async def running(encoder: Encoder, **changes: Any) -> AsyncIterator[NativeEngine]:
    """A started engine that reads images."""
    limits = config(**changes)
    runner = ModelRunner(
        tiny_model(), num_blocks=limits.num_blocks, block_size=limits.block_size, device=torch.device("cpu")
    )
    engine = NativeEngine(limits, runner, model="tiny", eos_token_ids=EOS, images=reader(encoder))
    await engine.start()
    try:
        yield engine
    finally:
        encoder.open.set()
        await engine.stop()


async def collect(engine: NativeEngine, wanted: GenerateRequest) -> list[TokenChunk]:
    return [chunk async for chunk in engine.generate(wanted)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_others_are_answered_while_a_picture_is_encoded() -> None:
    async def work() -> None:
        encoder = Encoder(open_=False)
        async with running(encoder) as engine:
            seeing = asyncio.create_task(collect(engine, asking("seeing", b"ab")))
            await until(lambda: engine.stats().num_waiting == 1)
            text = GenerateRequest(
                request_id="text", prompt_token_ids=(3, 4), sampling=SamplingParams(max_tokens=4)
            )
            chunks = await collect(engine, text)
            assert chunks[-1].finish_reason in ("length", "stop")
            assert not seeing.done()
            encoder.open.set()
            assert (await seeing)[-1].finish_reason == "length"

    run(work())


@pytest.mark.parametrize("ends", ["abort", "close", "stop"])
def test_a_request_that_ends_while_its_picture_is_encoded_leaves_nothing_behind(ends: str) -> None:
    async def work() -> None:
        encoder = Encoder(open_=False)
        async with running(encoder) as engine:
            images = engine._images
            assert images is not None
            task = asyncio.create_task(collect(engine, asking("r", b"abc")))
            await until(lambda: bool(images._holds))
            if ends == "abort":
                engine.abort("r")
                assert [chunk.finish_reason for chunk in await task] == ["abort"]
            elif ends == "close":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await engine.stop()
                assert [chunk.finish_reason for chunk in await task] == ["abort"]
            assert not images._used
            assert not images._holds
            await until(lambda: engine.stats().num_waiting == 0)
            if ends != "stop":
                encoder.open.set()
                assert (await collect(engine, asking("r", b"ab")))[-1].finish_reason == "length"
                assert encoder.encoded[-2:] == [b"a", b"b"]
                assert len(encoder.encoded) <= 3, "the thread does not begin with what nothing needs"

    run(work())


def test_the_thread_does_not_begin_with_a_picture_that_nothing_needs() -> None:
    async def work() -> None:
        encoder = Encoder(open_=False)
        images = reader(encoder)
        tasks = []
        for name in "abc":
            tasks.append(asyncio.create_task(images.read(asking(name, name.encode()))))
            await until(lambda: sum(image.job is not None for image in images._used.values()) == len(tasks))
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        images.forget("b")
        for _ in range(3):  # The loop hands the cancellation on to the thread's queue.
            await asyncio.sleep(0)
        encoder.open.set()
        await asyncio.gather(tasks[0], tasks[2])
        assert sorted(encoder.encoded) == [b"a", b"c"]
        images.close()

    run(work())


def test_the_thread_gives_up_a_picture_that_nothing_needs_any_more() -> None:
    async def work() -> None:
        async with running(Encoder()) as engine:
            images = engine._images
            assert images is not None
            first, second = (asyncio.create_task(collect(engine, asking(name, b"~"))) for name in "ab")
            await until(lambda: any(len(image.users) == 2 and image.job for image in images._used.values()))
            first.cancel()
            other = asyncio.create_task(collect(engine, asking("other", b"c")))
            await until(lambda: len(images._used) == 2)
            assert not other.done()
            second.cancel()
            assert (await other)[-1].finish_reason == "length"

    run(work())


def test_a_picture_that_cannot_be_read_is_the_fault_of_its_request() -> None:
    async def work() -> None:
        async with running(Encoder()) as engine:
            with pytest.raises(RefusedRequestError, match=r"image 2 of the request.* is broken"):
                await collect(engine, asking("r", b"a!"))
            # And it is tried again.
            with pytest.raises(RefusedRequestError, match="is broken"):
                await collect(engine, asking("r", b"!"))
            assert (await collect(engine, asking("r", b"a")))[-1].finish_reason == "length"

    run(work())


def test_the_number_of_placeholders_must_be_that_of_the_images() -> None:
    async def work() -> None:
        async with running(Encoder()) as engine:
            items = asking("r", b"ab").media
            assert items is not None
            assert list(await engine.expand(items)) == [3, *[IMAGE] * 2 * WIDTH, 4]
            with pytest.raises(RefusedRequestError, match="3 placeholders for 2 images"):
                await engine.expand(MediaPrompt((IMAGE, IMAGE, IMAGE), items.items))

    run(work())
