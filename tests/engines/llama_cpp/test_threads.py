"""Single tokens are computed by the number of threads that is faster; batches by all."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest

from plumbline.engines.llama_cpp import threads as module
from plumbline.engines.llama_cpp.threads import Threads


@pytest.mark.parametrize(("one", "all_of_them", "best"), [(0.3, 0.4, 1), (3.0, 1.0, 4)])
def test_single_tokens_take_what_is_faster(
    one: float, all_of_them: float, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if some tokens are late, as at the start of a request."""
    now = 0.0
    monkeypatch.setattr(module.time, "perf_counter", lambda: now)  # type: ignore[attr-defined]
    threads, used = Threads(4), Counter[int]()
    for number in range(2000):
        chosen = threads.choose(1)
        used[chosen] += 1
        now += (one if chosen == 1 else all_of_them) + 50 * (number % 50 == 0)
    assert used[best] > 0.9 * sum(used.values()) > 0
    assert len(used) == 2


def test_batches_take_all_threads() -> None:
    threads = Threads(4)
    for size, _ in zip(count(2), range(100), strict=False):
        assert threads.choose(size) == 4
    assert Threads(1).choose(1) == 1
