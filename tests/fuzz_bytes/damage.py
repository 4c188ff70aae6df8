"""Damage valid inputs byte by byte, and try a law on the results for a number of seconds.

An input on which a law fails is written to `corpus/TARGET/`, and every later run begins with the inputs there.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

__all__ = ["damaged", "damaged_json", "explore"]

CORPUS = Path(__file__).parent / "corpus"
SECONDS = float(os.environ.get("PLUMBLINE_FUZZ_SECONDS", "0"))
"""For each target, with new examples in every run (`nox -s fuzz-bytes`); 0 for a few that stay the same."""
_FEW = 8
_ROUND = 500
"""Examples between two looks at the clock."""

_LENGTHS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
_ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**30,
    0.5,
    1e308,
    "",
    "a",
    "\x00",
    "\ud800",
    [],
    {},
    [[]],
    [{}],
    [None],
]


@st.composite
def damaged(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Draw a valid input with up to four places flipped, cut, inserted, repeated or overwritten by a length."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        end = min(len(data), place + draw(st.integers(0, 40)))
        match draw(st.sampled_from(["flip", "cut", "end", "insert", "repeat", "length", "digits"])):
            case "flip" if place < len(data):
                data[place] ^= draw(st.integers(1, 255))
            case "cut":
                del data[place:end]
            case "end":
                del data[end:]
            case "insert":
                data[place:place] = draw(
                    st.binary(max_size=8) | st.sampled_from([b"\r\n", b"\x00" * 9, b"[" * 999])
                )
            case "repeat":
                data[place:place] = data[place:end] * draw(st.integers(1, 30))
            case "length":
                size = draw(st.sampled_from([1, 2, 4, 8]))
                order = draw(st.sampled_from(["big", "little"]))
                data[place : place + size] = (draw(st.sampled_from(_LENGTHS)) % 256**size).to_bytes(
                    size, order
                )
            case "digits":
                data[place:end] = str(draw(st.sampled_from(_LENGTHS))).encode()
    return bytes(data)


@st.composite
def damaged_json(draw: st.DrawFn, seeds: Sequence[Any], prefixes: Sequence[bytes] = (b"",)) -> bytes:
    """Draw a valid document with up to three members replaced, removed or renamed, after the prefix of its place."""
    index = draw(st.integers(0, len(seeds) - 1))
    value = json.loads(json.dumps(seeds[index]))
    for _ in range(draw(st.integers(0, 3))):
        value = _with_change(draw, value)
    return prefixes[index % len(prefixes)] + json.dumps(value).encode()


def _with_change(draw: st.DrawFn, value: Any) -> Any:
    """Return a value with one member, at any depth, changed."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 9)) == 0:
        return copy.deepcopy(draw(st.sampled_from(_ODD)))
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(st.sampled_from(keys))
    match draw(st.sampled_from(["go", "go", "odd", "drop", "rename"])):
        case "go":
            value[key] = _with_change(draw, value[key])
        case "odd":
            value[key] = copy.deepcopy(draw(st.sampled_from(_ODD)))
        case "drop":
            del value[key]
        case "rename" if isinstance(value, dict):
            value[draw(st.sampled_from([*keys, "", "x"]))] = value.pop(key)
    return value


def explore(target: str, inputs: st.SearchStrategy[bytes], law: Callable[[bytes], None]) -> None:
    """Try a law on the inputs of the corpus and on drawn ones, and keep the smallest on which it fails.

    Args:
        target: the folder of the corpus.
        inputs: what to draw.
        law: raises on an input that breaks it.
    """
    for path in sorted((CORPUS / target).glob("*")):
        law(path.read_bytes())
    failed: list[bytes] = []
    tried = 0
    lasting = settings(
        max_examples=_ROUND if SECONDS else _FEW,
        derandomize=not SECONDS,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )

    @lasting
    @given(inputs)
    def drawn(data: bytes) -> None:
        nonlocal tried
        tried += 1
        try:
            law(data)
        except BaseException:
            failed.append(data)
            raise

    began = time.monotonic()
    try:
        drawn()
        while time.monotonic() < began + SECONDS:
            drawn()
    except BaseException:
        if failed and SECONDS:
            _keep(target, failed[-1])  # hypothesis tries the smallest last.
        raise
    if SECONDS:
        print(f"{target}: {tried} examples in {time.monotonic() - began:.0f} s")


def _keep(target: str, data: bytes) -> None:
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
