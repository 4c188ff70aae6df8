"""Laws of requests whose grammars are slow: what a step cannot leave out is paid back to the others."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from plumbline.engines.request import RequestState
from plumbline.engines.sampling.late_masks import LateMasks
from plumbline.port.engine import GenerateRequest, SamplingParams

from .conftest import Driver
from .test_grammar import Failing


class Slow(Failing):
    """A matcher whose masks are computed outside of steps, and that takes a while for each token within one."""

    def __init__(self) -> None:
        super().__init__("never")
        self.may_be_slow = True
        self.prepared = threading.Event()

    def prepare(self) -> None:
        self.prepared.set()

    def accept(self, token_id: int) -> bool:
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        return super().accept(token_id)


@pytest.mark.parametrize("is_alone", [True, False])
def test_requests_of_slow_grammars_rest_where_others_waited_for_a_token(
    engine: Callable[..., Driver], is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token advances a grammar within the step of all; alone, nobody waits for it."""
    rests: list[float] = []
    monkeypatch.setattr(LateMasks, "rest", lambda _, seconds: rests.append(seconds))
    driver = engine()
    wanted: dict[str, Any] = {"temperature": 1.0, "seed": 1, "ignore_eos": True}
    driver.add("slow", [5], matcher=Slow(), max_tokens=4, **wanted)
    if not is_alone:
        driver.add("quick", [6], max_tokens=200, **wanted)
    driver.run()
    assert len(driver.tokens["slow"]) == 4
    assert len(rests) == (0 if is_alone else 4)
    assert all(seconds >= 0.002 for seconds in rests)


def waiting(masks: LateMasks, matcher: Slow) -> RequestState:
    state = RequestState(
        GenerateRequest(request_id="r", prompt_token_ids=[5], sampling=SamplingParams(max_tokens=5)),
        arrival=0,
        eos_token_ids=frozenset(),
        max_model_len=32,
        matcher=matcher,
    )
    masks.follow(state)
    return state


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a niceness for each thread")
@pytest.mark.parametrize("own", [0, 15])
def test_a_thread_of_masks_never_comes_before_the_steps(own: int) -> None:
    """Also where the server was started with a niceness of its own, which its threads inherit."""
    steps: list[int] = []
    masks: list[int] = []

    class Watched(Slow):
        def prepare(self) -> None:
            masks.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            super().prepare()

    def run() -> None:
        thread, matcher = threading.get_native_id(), Watched()
        steps.append(max(own, os.getpriority(os.PRIO_PROCESS, thread)))
        os.setpriority(os.PRIO_PROCESS, thread, steps[0])
        waiting(LateMasks(), matcher)
        assert matcher.prepared.wait(60)

    engine = threading.Thread(target=run)  # Only a privileged thread could take its niceness back.
    engine.start()
    engine.join()
    assert masks == [max(10, steps[0])]


def test_no_mask_is_known_before_the_rest_has_ended() -> None:
    masks, matcher = LateMasks(), Slow()
    masks.rest(1_000.0)
    state = waiting(masks, matcher)
    assert matcher.prepared.wait(60)
    masks.wait([state])
    assert state.is_late
    masks.rest(-2_000.0)
    waiting(masks, Slow())  # It wakes the thread.
    masks.wait([state], 60)
    assert not state.is_late
