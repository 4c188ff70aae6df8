"""Memory that was freed goes back to the system, at once where it is asked for, and after bursts."""

from __future__ import annotations

import ctypes
import gc
import mmap
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from plumbline.base.workers.memory import Trimmer, forget, highest, resident, trim

MB = 1024**2


def test_pages_of_a_file_go_back_and_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 64 * MB)
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    view = (ctypes.c_char * len(data)).from_buffer(data)
    assert data.find(b"y") == -1
    before = resident()
    forget(ctypes.addressof(view), len(data))
    assert before - resident() > 60 * MB
    assert data.find(b"y") == -1


def test_the_highest_memory_is_that_of_a_past_burst() -> None:
    block = bytearray(b"x" * 96 * MB)
    during = resident()
    del block
    trim()
    assert resident() < during - 64 * MB
    # The system adds up what its processors have counted, some pages late.
    assert highest() > during - MB


def test_memory_that_is_no_file_is_left_alone() -> None:
    data = mmap.mmap(-1, MB)
    data.write(b"x" * MB)
    forget(ctypes.addressof((ctypes.c_char * MB).from_buffer(data)), MB)
    assert data[:] == b"x" * MB


def test_what_threads_have_freed_goes_back() -> None:
    def fill() -> None:
        kept = [bytes(20_000) for _ in range(10_000)]  # Blocks that glibc takes from the arena of the thread.
        kept.clear()

    before = resident()
    for _ in range(3):
        threads = [threading.Thread(target=fill) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    gc.collect()
    trim()
    assert resident() - before < 100 * MB


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=30))
def test_a_process_keeps_no_more_than_it_has_ever_used_and_a_margin(bursts: list[tuple[int, int]]) -> None:
    """Each burst uses some megabytes and leaves some unused ones."""
    used, unused = 100, 0
    trims = 0

    def trimmed() -> None:
        nonlocal unused, trims
        unused, trims = 0, trims + 1

    trimmer = Trimmer(lambda: (used + unused) * MB, trimmed)
    most = used
    for more, left in bursts:
        used, unused = 100 + more, unused + left
        trimmer.look()
        most = max(most, used)
        assert used + unused <= most + 32
    assert trims <= len(bursts)
