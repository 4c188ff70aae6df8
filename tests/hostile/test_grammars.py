"""Laws of hostile grammars that many requests of one key have: another key's stream and schemas go on.

- The other stream has half of its rate at least, and is silent for 0.3 s at most.
- Another key's new schema is compiled meanwhile.
- The server's memory stops growing: what a round leaves behind is bounded, and full after two at most.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from .processor import slowness as machine
from .rows.grammars import dense
from .rows.table import CHAT, base
from .target import Target, running
from .test_requests import RATE, SILENCE, STALLED_BY_OTHERS, TRIES

HOSTILE, OTHER = ({"authorization": f"Bearer {key}"} for key in ("a-hostile-key", "another-key"))
AMBIGUOUS = 'start: e "!"\ne: e e e | e e | "a"'
LONGEST = 60.0
GROWTH = 64
"""Megabytes between two rounds."""
ROUNDS = 3
"""How much of the lexers a first round fills depends on what its grammars reach in their time."""


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with running("--api-key", "a-hostile-key", "--api-key", "another-key", key="another-key") as found:
        yield found


def floods(target: Target) -> dict[str, list[dict[str, Any]]]:
    """Return the bodies of requests that are sent at once, by name."""
    _, answer, _ = target.send("POST", "/tokenize", b'{"prompt": "a", "add_special_tokens": false}', {})
    bias = {"logit_bias": {str(json.loads(answer)["tokens"][-1]): 100}, "max_completion_tokens": 2000}

    def grammar(text: str, number: int, **more: Any) -> dict[str, Any]:
        return {"structured_outputs": {"grammar": f"{text}\n// {number}"}, **more}

    multiples = 'start: %json {"type": "integer", "multipleOf": 999983}'
    return {
        "an ambiguous grammar": [grammar(AMBIGUOUS, 0, **bias)],
        "ambiguous grammars": [grammar(AMBIGUOUS, n, **bias) for n in range(8)],
        "grammars that do not end to compile": [grammar(multiples, n) for n in range(3)],
        "dense rules behind a text": [grammar(dense(60, 60, f'"{"a" * 40}"'), n, **bias) for n in range(2)],
        "endless recursion": [
            {"structured_outputs": {"grammar": f'start: %json {{"const": {-(2**63) + n}}}'}}
            for n in range(40)
        ],
    }


def send(target: Target, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, float]:
    data = json.dumps({**base(CHAT), **body}).encode()
    status, _, seconds = target.send("POST", CHAT, data, headers, timeout=120.0)
    return status, seconds


def faults(target: Target, bodies: list[dict[str, Any]], number: int, slowness: float) -> list[str]:
    """Send a flood, and return what it did to others."""
    statuses: list[int] = []
    began = target.now()
    threads = [
        threading.Thread(
            target=lambda body=body: statuses.append(send(target, body, HOSTILE)[0]), daemon=True
        )
        for body in bodies
    ]
    for thread in threads:
        thread.start()
    schema = {"type": "object", "properties": {f"new {number}": {"type": "integer"}}}
    wanted = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    status, seconds = send(target, wanted, OTHER)
    for thread in threads:
        thread.join(LONGEST)
    found = (
        [f"the other's schema: {status} after {seconds:.1f} s"] if status != 200 or seconds > slowness else []
    )
    if len(statuses) < len(bodies) or not set(statuses) <= {200, 400, 429}:
        found.append(f"answers: {statuses}")
    if (silence := target.silence_since(began)) > SILENCE * slowness:
        found.append(f"{silence:.2f} s of silence")
    if (rate := target.rate_since(began)) < RATE / slowness:
        found.append(f"the other stream has {rate:.0%} of its rate")
    return found


@pytest.mark.long
def test_floods_of_grammars_hurt_no_other_key(target: Target) -> None:
    number = 0
    broken: dict[str, list[str]] = {}
    memory: list[float] = []
    while len(memory) < 2 or (memory[-1] - memory[-2] >= GROWTH and len(memory) < ROUNDS):
        for name, bodies in floods(target).items():
            slowness = 1.0
            for _ in range(TRIES):
                number += 1
                found = faults(target, bodies, number, slowness)
                if not found:
                    break
                slowness = max(machine(), target.control() / STALLED_BY_OTHERS)
            else:
                broken[name] = found
        memory.append(target.at_rest())
    assert broken == {}
    assert memory[-1] - memory[-2] < GROWTH, memory
