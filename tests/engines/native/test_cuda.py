"""Laws of what is asked of CUDA, and of the stream that encodes images, on a GPU of the imagination.

Its streams run what is queued in any order that nothing forbids, and its allocator gives memory back as torch's does:
at once to the stream that it belongs to, or after the streams that `record_stream` names.

* A step reads the rows of its image, however late it runs, and also if the image has been dropped.
* Steps are never made to wait for an image.
* A device that cannot be waited for is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline.engines.native.cuda import GRAPH_PRIORITY, SideStream, device_works
from plumbline.engines.native.graphs import CudaRecorder

Work = Callable[[], None]


class Stream:
    """A queue of work."""

    def __init__(self) -> None:
        self.queue: list[Work] = []
        self.num_done = 0
        self.waits: list[tuple[int, Stream, int]] = []
        """(place in the queue, other stream, how much of it must be done before)."""
        self.free: list[list[int]] = []

    def wait_stream(self, other: Stream) -> None:
        """See torch."""
        self.waits.append((len(self.queue), other, len(other.queue)))

    def run(self, count: int) -> None:
        """Do the work up to a place, after what it waits for."""
        while self.num_done < min(count, len(self.queue)):
            for place, other, needed in self.waits:
                if place <= self.num_done:
                    other.run(needed)
            self.num_done += 1
            self.queue[self.num_done - 1]()


class Event:
    """See torch."""

    def __init__(self, gpu: Gpu, *, blocking: bool) -> None:
        assert blocking, "a thread that polls takes a core"
        self._gpu = gpu

    def record(self) -> None:
        """See torch."""
        self._stream, self._count = self._gpu.current, len(self._gpu.current.queue)

    def synchronize(self) -> None:
        """See torch."""
        self._stream.run(self._count)


class Rows:
    """A tensor of one number."""

    def __init__(self, gpu: Gpu) -> None:
        self.owner, self.readers = gpu.current, list[tuple[Stream, int]]()
        self.cell = self.owner.free.pop() if self.owner.free else [0]

    def record_stream(self, stream: Stream) -> None:
        """See torch."""
        self.readers.append((stream, 0))

    def drop(self) -> None:
        """Give the memory back, as the end of the last reference does."""
        marks = [(stream, len(stream.queue)) for stream, _ in self.readers]
        if all(stream.num_done >= count for stream, count in marks):
            self.owner.free.append(self.cell)


class Gpu:
    """What `SideStream` uses of `torch.cuda`."""

    def __init__(self) -> None:
        self.steps = self.current = Stream()

    def default_stream(self, device: torch.device) -> Stream:
        """See torch."""
        return self.steps

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802 - torch's name
        """See torch."""
        return Stream()

    def Event(self, *, blocking: bool = False) -> Event:  # noqa: N802 - torch's name
        """See torch."""
        return Event(self, blocking=blocking)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:  # type: ignore[valid-type]
        """See torch."""
        before, self.current = self.current, stream
        yield
        self.current = before


def found(images: list[tuple[int, int]], side: Callable[[Gpu], Any]) -> list[tuple[int, int]]:
    """Encode images one after the other; return what steps read and should have read.

    Args:
        images: for each, how many steps read it, and how many of the steps in the queue the GPU runs afterwards.
        side: makes the side stream.
    """
    gpu = Gpu()
    stream = side(gpu)
    read: list[tuple[int, int]] = []
    for number, (num_steps, num_run) in enumerate(images, 1):

        def encode(number: int = number) -> Any:
            rows = Rows(gpu)
            gpu.current.queue.append(lambda: rows.cell.__setitem__(0, number))
            return rows

        rows = stream.run(encode)
        for _ in range(num_steps):
            gpu.steps.queue.append(
                lambda cell=rows.cell, number=number: read.append((cell[0], number))  # type: ignore[misc]
            )
        assert not gpu.steps.waits
        rows.drop()
        gpu.steps.run(gpu.steps.num_done + num_run)
    gpu.steps.run(len(gpu.steps.queue))
    return read


IMAGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8)
CPU = torch.device("cpu")


@given(images=IMAGES)
@settings(deadline=None)
def test_a_step_reads_the_rows_of_its_image_however_late_it_runs(images: list[tuple[int, int]]) -> None:
    read = found(images, lambda gpu: SideStream(CPU, gpu))
    assert all(value == number for value, number in read)
    assert len(read) == sum(num_steps for num_steps, _ in images)


@pytest.mark.parametrize("fault", ["no wait", "no record"])
def test_the_imagined_gpu_shows_what_torch_would_do(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = (Event, "synchronize") if fault == "no wait" else (Rows, "record_stream")
    monkeypatch.setattr(*forgotten, lambda *_: None)  # type: ignore[call-overload]
    read = found([(1, 0), (1, 0)], lambda gpu: SideStream(CPU, gpu))
    assert any(value != number for value, number in read)


def test_the_first_image_comes_after_the_weights() -> None:
    gpu, loaded = Gpu(), list[str]()
    gpu.steps.queue.append(lambda: loaded.append("weights"))
    side = SideStream(CPU, gpu)

    def encode() -> Any:
        gpu.current.queue.append(lambda: loaded.append("image"))
        return Rows(gpu)

    side.run(encode)
    assert loaded == ["weights", "image"]


def test_graphs_of_decodes_have_a_higher_priority_than_images(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda *, priority: made.append(priority))
    CudaRecorder()
    assert made == [GRAPH_PRIORITY]
    assert GRAPH_PRIORITY < 0, (
        "CUDA's priorities are higher the lower they are, and 0 is that of other streams"
    )


def test_a_device_is_lost_when_it_cannot_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def illegal(_: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    assert device_works(CPU)
    assert device_works(torch.device("cuda"))
    assert waited == [torch.device("cuda")]
    monkeypatch.setattr(torch.cuda, "synchronize", illegal)
    assert not device_works(torch.device("cuda"))
