"""Memory that was freed goes back to the system, at once where it is asked for, and after bursts."""

from __future__ import annotations

import gc
import threading

from hypothesis import given
from hypothesis import strategies as st

from plumbline.base.workers.memory import Trimmer, resident, trim

MB = 1024**2


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
