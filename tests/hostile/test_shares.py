"""Laws of what a key gets beside two that ask for all that they can get, measured at a server.

- Where places of the engine are fewer than keys, its first token comes within the round of all keys.
- Its new schema is compiled within the time that two quick trials take, and not that of two slow ones.
"""

from __future__ import annotations

import json
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from typing import Any

import pytest

from plumbline.engines.fairness import QUANTUM

from .processor import slowness
from .rows.table import CHAT, base
from .target import Target, running

pytestmark = pytest.mark.long

KEYS = ("bystander", "first", "second", "third")
PLACES = 3
"""Of the engine: the bystander and two floods hold them all."""
TIMES = 12
SLACK = 0.5
"""Seconds for everything but waiting, on a machine at rest."""
QUICK = 1.0
"""Seconds for a schema beside two floods of slow ones, which alone take 2 s of a CPU each."""


@pytest.fixture
def target() -> Iterator[Target]:
    keys = [option for key in KEYS for option in ("--api-key", key)]
    with running(*keys, "--max-num-seqs", str(PLACES), key="bystander") as found:
        yield found


def send(target: Target, key: str, **changes: Any) -> float:
    """Send a chat; return the seconds to the end of its answer, which is its first token for the third key."""
    data = json.dumps({**base(CHAT), **changes}).encode()
    headers = {"authorization": f"Bearer {key}"}
    status, answer, seconds = target.send("POST", CHAT, data, headers, timeout=300.0)
    assert status in (200, 400, 429) if key != "third" else status == 200, answer[:300]
    return seconds


def beside(
    flood: Callable[[str, int], object], measured: Callable[[int], float]
) -> tuple[list[float], list[float]]:
    """Measure alone, and beside two keys of which eight callers each send without a pause."""
    alone = [measured(number) for number in range(TIMES)]
    stopped = threading.Event()

    def go_on(key: str, number: int) -> None:
        while not stopped.is_set():
            with suppress(OSError, HTTPException):  # The server ends before they have their answers.
                flood(key, number)
            number += 100

    threads = [
        threading.Thread(target=go_on, args=(key, number), daemon=True)
        for number in range(8)
        for key in KEYS[1:3]
    ]
    for thread in threads:
        thread.start()
    try:
        time.sleep(3)
        return alone, [measured(TIMES + number) for number in range(TIMES)]
    finally:
        stopped.set()


def show(name: str, alone: list[float], found: list[float]) -> None:
    rows = [f"{statistics.median(each):.3f} s (at most {max(each):.3f})" for each in (alone, found)]
    print(f"{name}: alone {rows[0]}, beside two floods {rows[1]}")


def test_the_first_token_of_a_third_key_waits_for_no_flood(target: Target) -> None:
    long = {"max_completion_tokens": 3000, "ignore_eos": True}
    alone, found = beside(
        lambda key, _: send(target, key, **long), lambda _: send(target, "third", max_completion_tokens=1)
    )
    show("first token", alone, found)
    rounds = math.ceil(len(KEYS) / PLACES)
    assert max(found) <= (rounds * QUANTUM + SLACK) * slowness()


def test_a_schema_of_a_third_key_waits_for_no_slow_grammar(target: Target) -> None:
    slow = 'start: %json {"type": "integer", "multipleOf": 999983}'

    def schema(number: int) -> float:
        properties = {f"p{number}": {"type": "string"}}
        form = {"name": "s", "schema": {"type": "object", "properties": properties}}
        form = {"type": "json_schema", "json_schema": form}
        return send(target, "third", max_completion_tokens=1, response_format=form)

    alone, found = beside(
        lambda key, number: send(target, key, structured_outputs={"grammar": f"{slow}\n// {key} {number}"}),
        schema,
    )
    show("schema", alone, found)
    assert statistics.median(found) <= QUICK * slowness()
