"""Laws of hostile requests: each is answered, soon and with little memory, and no other stream stands still.

Timing belongs to benchmarks, with this exception: that a request cannot hurt others is a promise about time. The
machine's own delays are measured beside it and allowed for, and a row that fails is tried twice more.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator

import pytest
from support.weights.engines import pocket_adapter
from support.weights.rounded import write_rounded
from support.weights.upcycled import write_experts

from .fields import is_large, members, roots, scalars, unbounded
from .processor import slowness as machine
from .rows import FORM_ROWS, LOAD_ADAPTER, ROWS, UNLOAD_ADAPTER, UNLOAD_MODEL, Row, base
from .target import Cost, Target, running

SECONDS = 5.0
MEGABYTES = 200
SILENCE = 0.3
RATE = 0.5
TRIES = 3
ADMIN = {"x-admin-key": "root"}

STALLED_BY_OTHERS = 0.1
"""Silence of a bystander at rest from which the machine counts as loaded; all times are allowed in proportion."""


@pytest.fixture(scope="module", params=["model", "adapter", "limits"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A server with the pocket model, an adapter of it under the name that all requests give, or limits of its key.

    With the adapter, the model has weights of 4 bits; with the limits, it has quantised experts. The limits are never
    reached, so that every row takes its whole way; a bystander reads a stream.
    """
    # A step of 1,024 tokens takes 0.4 s on a slow core; what is measured here is the server.
    options, name = ["--max-num-batched-tokens", "256", "--admin-api-key", ADMIN["x-admin-key"]], "pocket"
    if request.param == "adapter":
        adapter = pocket_adapter(tmp_path_factory.mktemp("adapter"))
        rounded = write_rounded(tmp_path_factory.mktemp("model"))
        options, name = [*options, "--lora", f"pocket={adapter}", "--model", rounded], "base"
    key = "a-key" if request.param == "limits" else ""
    if key:
        most = "requests=1000000 tokens=1000000000 streams=1000 stored=100GiB models=pocket"
        options += ["--api-key", f"{key} {most}"]
        options += ["--model", write_experts(tmp_path_factory.mktemp("model"))]
    with running(*options, name=name, key=key) as found:
        yield found


def test_every_list_map_and_string_of_a_request_has_a_maximum() -> None:
    open_ended = [name for name, kinds in members().items() for kind in kinds if unbounded(kind)]
    # The content of hosted tools and items is not ours; the maxima of the whole body bound it.
    assert [name for name in open_ended if not name.startswith("Hosted")] == []


def test_every_member_that_can_be_large_has_a_row() -> None:
    patterns = [pattern for row in ROWS for pattern in row.fields]
    missing = [
        name
        for name, kinds in members().items()
        if any(map(is_large, kinds)) and not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    assert missing == [], "add a row to tests/hostile/rows that sends these at their maximum"


def test_no_row_names_a_member_that_does_not_exist() -> None:
    names = list(members())
    stale = [
        p for row in ROWS for p in row.fields if not fnmatch.filter(names, p) and not p.startswith("Hosted")
    ]
    assert stale == []


@pytest.mark.long
@pytest.mark.parametrize("path", roots())
def test_the_request_that_rows_change_is_valid(target: Target, path: str) -> None:
    """Otherwise every row of the path would be refused for the same reason."""
    # Without --lora-dir the operations on adapters do not exist.
    wanted = 404 if path in (LOAD_ADAPTER, UNLOAD_ADAPTER, UNLOAD_MODEL) else 200
    assert target.send("POST", path, json.dumps(base(path)).encode(), ADMIN)[0] == wanted


def scalar_rows() -> Iterator[Row]:
    """Yield the rows that follow from the types of the contract: every scalar at its extremes."""
    for path in roots():
        for key, value in scalars(path):
            yield Row(f"{path}: {key} = {str(value)[:20]}", path, {**base(path), key: value})


@pytest.mark.long
def test_every_scalar_is_taken_or_refused_at_its_extremes(target: Target) -> None:
    """Scalars cannot be large: what they may break is the answer, so their time is not measured one by one."""
    statuses = {row.name: target.send(row.method, row.path, row.data(), ADMIN)[0] for row in scalar_rows()}
    assert {name: status for name, status in statuses.items() if status not in (200, 400, 404)} == {}
    assert len(statuses) > 100


def faults(cost: Cost, slowness: float) -> list[str]:
    """Return which promises an answer breaks, on a machine that is this much slower than one at rest."""
    found = []
    if not (200 <= cost.status < 300 or 400 <= cost.status < 500):
        found.append(f"status {cost.status}")
    if cost.status >= 400 and b'"error"' not in cost.body:
        found.append("no envelope")
    if cost.seconds > SECONDS * slowness:
        found.append(f"{cost.seconds:.1f} s")
    if cost.megabytes > MEGABYTES:
        found.append(f"{cost.megabytes:.0f} MB")
    if cost.silence > SILENCE * slowness:
        found.append(f"{cost.silence:.2f} s of silence")
    if cost.rate < RATE / slowness:
        found.append(f"the other stream has {cost.rate:.0%} of its rate")
    return found


def tried(target: Target, row: Row) -> list[str]:
    """Run a row until it breaks no promise, at most three times; returns what it broke the last time."""
    data = row.data()
    found: list[str] = []
    slowness = 1.0
    for _ in range(TRIES):
        found = faults(target.cost(row.method, row.path, data, row.headers), slowness)
        if not found:
            return []
        slowness = max(machine(), target.control() / STALLED_BY_OTHERS)
    return found


@pytest.mark.long
def test_no_hostile_request_hurts_others(target: Target) -> None:
    """All rows are one test, because measurements beside each other would disturb each other."""
    assert len(ROWS) > 80
    assert {row.name: found for row in ROWS if (found := tried(target, row))} == {}
    assert target.send("POST", "/tokenize", json.dumps(base("/tokenize")).encode(), {})[0] == 200


@pytest.mark.long
def test_no_form_of_another_server_hurts_others() -> None:
    """The same rows are in `ROWS`, where the server refuses them and looks for the hint."""
    with running("--max-num-batched-tokens", "256", "--lenient") as lenient:
        assert {row.name: found for row in FORM_ROWS if (found := tried(lenient, row))} == {}
