"""An engine of each kind that is installed, for the whole contract, and transformers to compare it with.

`PLUMBLINE_ENGINES=thorough` takes the long numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.servers.pocket import text_model
from support.weights.engines import ENGINES, EngineKind, Harness, Reference, prompts, started

THOROUGH = os.environ.get("PLUMBLINE_ENGINES") == "thorough"
STEPS = 64 if THOROUGH else 16
NUM_GRAMMARS = 200 if THOROUGH else 24
INFINITE = float("-inf")


@pytest.fixture(
    scope="session",
    # Other engines have fast tests of their own; the remote engine is the native one behind a socket.
    params=[
        pytest.param(kind, marks=() if kind.name == "native" else pytest.mark.long, id=kind.name)
        for kind in ENGINES
    ],
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    kind: EngineKind = request.param
    if kind.missing:
        pytest.skip(f"not installed: {kind.missing}")
    folder: Path = tmp_path_factory.mktemp(kind.name)
    with started(kind, folder) as harness:
        yield harness


@cache
def reference_of(adapter: Path | None, model: Callable[[], Any] = text_model) -> Reference:
    return Reference(adapter, model)


@pytest.fixture(scope="session")
def reference(engine: Harness) -> Reference:
    return reference_of(engine.adapter, engine.kind.reference)


PROMPTS = prompts(20)


def needs(engine: Harness, *features: str) -> None:
    """Skip a law about something that the engine does not declare; that it is refused is a law of its own."""
    for feature in features:
        if feature not in engine.features:
            pytest.skip(f"{engine.kind.name} has no {feature}")
