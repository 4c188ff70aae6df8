"""The pytest plugin: each check is an item that passes, fails or skips as the check does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from example_servers.good_server import KEY, MODEL, serving
from example_servers.odd_servers import NOT_HERE, answering, error, fixed, reference_but
from example_servers.reference import application
from plugin_run import pytest_run

from plumbline_conformance.suite.scenario import CHECKS

pytestmark = pytest.mark.long  # Each test starts processes.


@pytest.mark.long
def test_each_check_is_an_item(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n", "utf-8")
    with serving(application()) as base_url:
        target = ["--plumbline-url", base_url, "--plumbline-model", MODEL, "--plumbline-api-key", KEY]
        status, out = pytest_run(tmp_path, *target)

    assert status == 0, out
    skipped = sum(name.startswith("responses/mcp") for name in CHECKS)
    assert f"{len(CHECKS) + 1 - skipped} passed, {skipped} skipped" in out
    assert "plumbline::chat/text/shape" in out


def test_a_broken_rule_fails_with_the_text_of_the_judge(tmp_path: Path) -> None:
    with serving(fixed(200, {})) as base_url:
        target = ["--plumbline-url", base_url, "--plumbline-model", "m"]
        status, out = pytest_run(tmp_path, *target, "--plumbline-check", "errors/empty-messages")

    assert status == 1
    assert "ERR-07: Every out-of-range value" in out
    assert "expected status 400 or 422" in out
    assert "Traceback" not in out


def test_without_the_option_nothing_is_collected(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n", "utf-8")

    status, out = pytest_run(tmp_path)

    assert status == 0
    assert "1 passed" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--plumbline-url", "http://h"], "needs --plumbline-model"),
        (
            ["--plumbline-url", "http://h", "--plumbline-model", "m", "--plumbline-check", "nope"],
            "No check begins",
        ),
        (
            ["--plumbline-url", "http://h", "--plumbline-model", "m", "--plumbline-profile", "x"],
            "must be one of",
        ),
    ],
)
def test_wrong_options_are_reported(tmp_path: Path, options: list[str], said: str) -> None:
    status, out = pytest_run(tmp_path, *options)

    assert status == 4
    assert said in out


@pytest.mark.long
@pytest.mark.parametrize("chosen", ["chat/text", "models"])
def test_an_unreachable_server_ends_the_run(tmp_path: Path, chosen: str) -> None:
    options = ["--plumbline-url", "http://127.0.0.1:1/v1", "--plumbline-model", "m"]
    status, out = pytest_run(tmp_path, *options, "--plumbline-check", chosen)

    assert status == 2
    assert "http://127.0.0.1:1/v1 cannot be reached" in out
    assert " passed" not in out


def test_a_model_that_is_not_known_ends_the_run(tmp_path: Path) -> None:
    with serving(application()) as base_url:
        options = ["--plumbline-url", base_url, "--plumbline-model", "wrong", "--plumbline-api-key", KEY]
        status, out = pytest_run(tmp_path, *options)

    assert status == 2
    assert f"does not know the model 'wrong'; it lists: {MODEL}, other/one." in out
    assert " failed" not in out


def test_what_no_server_may_refuse_fails_where_it_is_refused(tmp_path: Path) -> None:
    with serving(answering(lambda *_: (400, {}, error("Not today.")))) as base_url:
        target = ["--plumbline-url", base_url, "--plumbline-model", "m", "--plumbline-check"]
        core = pytest_run(tmp_path, *target, "chat/text/shape")
        other = pytest_run(tmp_path, *target, "chat/stop/wire")

    assert core[0] == 1
    assert "Not today." in core[1]
    assert other[0] == 0
    assert "1 skipped" in other[1]


def test_what_is_core_and_came_to_no_verdict_fails(tmp_path: Path) -> None:
    busy: tuple[int, dict[str, str], Any] = (502, {}, error("Later."))
    with serving(answering(lambda path, _: busy if path == "/chat/completions" else None)) as base_url:
        target = ["--plumbline-url", base_url, "--plumbline-model", MODEL, "--plumbline-api-key", KEY]
        status, out = pytest_run(
            tmp_path, *target, "--plumbline-check", "chat/text", "--plumbline-check", "models"
        )

    assert status == 1
    assert "inconclusive chat/text" in out
    assert f"{len(MODELS)} passed" in out


def test_an_unusable_address_or_key_is_reported_before_a_request(tmp_path: Path) -> None:
    away = ["--plumbline-model", "m", "--plumbline-check", "models"]
    port = pytest_run(tmp_path, *away, "--plumbline-url", "http://127.0.0.1:99999/v1")
    key = pytest_run(
        tmp_path, *away, "--plumbline-url", "http://127.0.0.1:1/v1", "--plumbline-api-key", "sk-one\nsk-two"
    )

    assert (port[0], key[0]) == (4, 4)
    assert "has a port that is not a number from 1 to 65535" in port[1]
    assert "cannot be sent in a header" in key[1]
    assert "sk-one" not in key[1]


def test_no_key_that_a_server_repeats_is_shown_by_an_item(tmp_path: Path) -> None:
    key = "sk-proj-supersecret42"
    said = {"message": f"no {key}", "type": "invalid_request_error", "param": None, "code": None}
    with serving(fixed(400, {"error": said})) as base_url:
        target = ["--plumbline-url", base_url, "--plumbline-model", "m", "--plumbline-api-key", f"{key}\n"]
        status, out = pytest_run(tmp_path, *target, "--plumbline-check", "chat/text")

    assert status == 1
    assert "status 400: no sha256:" in out
    assert key not in out


def test_what_a_profile_requires_fails_where_it_is_lacking(tmp_path: Path) -> None:
    lacking = reference_but(lambda path, _: (404, NOT_HERE) if path.startswith("/v1/responses") else None)
    with serving(lacking) as base_url:
        target = ["--plumbline-url", base_url, "--plumbline-model", MODEL, "--plumbline-api-key", KEY]
        chosen = [
            "--plumbline-check",
            "responses/stream-text/shape",
            "--plumbline-check",
            "models/list/shape",
        ]
        full = pytest_run(tmp_path, *target, *chosen)
        profile = pytest_run(tmp_path, *target, *chosen, "--plumbline-profile", "responses")

    assert (full[0], profile[0]) == (0, 1)
    assert "FAILED plumbline::responses/stream-text/shape" in profile[1]
    assert "1 failed, 1 passed" in profile[1]


OWN = """
def test_own():
    pass


def test_other():
    pass
"""
MODELS = tuple(sorted(name.removeprefix("models/") for name in CHECKS if name.startswith("models/")))
WORKERS = ("-p", "xdist", "-n", "2")
ALONE_AND_PARALLEL = [(), pytest.param(WORKERS, marks=pytest.mark.long)]
"""Each test starts pytest several times."""


class Counted:
    """The reference, recording requested paths; with `broken` its list of models is invalid."""

    def __init__(self, *, broken: bool = False) -> None:
        self.asked: list[str] = []
        self._broken = broken
        self.application = answering(self._answer)

    def _answer(self, path: str, _: object) -> tuple[int, dict[str, str], object] | None:
        self.asked.append(path)
        wrong = self._broken and path == "/models"
        return (200, {}, {"object": "list", "data": [{"id": MODEL}]}) if wrong else None


def judged(folder: Path, server: Counted, *options: str) -> tuple[int, str]:
    """Run pytest on the checks and two other tests."""
    (folder / "test_own.py").write_text(OWN, "utf-8")
    with serving(server.application) as base_url:
        target = ["--plumbline-url", base_url, "--plumbline-model", MODEL, "--plumbline-api-key", KEY]
        return pytest_run(folder, *target, *options)


def ids(out: str) -> list[str]:
    """The node ids of our items that a run lists or reports, in their order."""
    return re.findall(r"^(?:[A-Z]+ )?plumbline::(\S+)", out, re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize("workers", ALONE_AND_PARALLEL)
def test_items_are_chosen_as_any_are(tmp_path: Path, workers: tuple[str, ...]) -> None:
    options = ["--plumbline-check", "models", *workers]
    chosen = {
        ("-k", "nomatch"): (5, [], []),
        ("-k", "shape"): (0, ["models/list/shape"], []),
        ("-k", "not models"): (0, [], ["test_own", "test_other"]),
        ("-m", "plumbline"): (0, [f"models/{name}" for name in MODELS], []),
        ("-m", "not plumbline"): (0, [], ["test_own", "test_other"]),
        ("--deselect", "plumbline::models/list/shape"): (
            0,
            [f"models/{name}" for name in MODELS if name != "list/shape"],
            ["test_own", "test_other"],
        ),
    }
    for choice, (expected, ours, others) in chosen.items():
        server = Counted()
        status, out = judged(tmp_path, server, *options, *choice)

        assert status == expected, (choice, out)
        assert sorted(ids(out)) == ours, choice
        assert [name for name in ("test_own", "test_other") if f"PASSED test_own.py::{name}" in out] == others
        assert bool(server.asked) is bool(ours), choice


def test_only_what_is_left_is_requested(tmp_path: Path) -> None:
    server = Counted()
    judged(tmp_path, server, "-k", "models/list/shape")

    assert "/models" in server.asked
    assert "/responses" not in server.asked


@pytest.mark.parametrize("workers", ALONE_AND_PARALLEL)
def test_what_would_run_is_listed_without_a_request(tmp_path: Path, workers: tuple[str, ...]) -> None:
    server = Counted()
    options = ["--plumbline-check", "models", *workers]
    status, out = judged(tmp_path, server, *options, "--collect-only", "-q")

    assert status == 0
    assert sorted(ids(out)) == [f"models/{name}" for name in MODELS]
    assert server.asked == []


@pytest.mark.long
@pytest.mark.parametrize("workers", ALONE_AND_PARALLEL)
def test_a_printed_node_id_runs_that_item_alone(tmp_path: Path, workers: tuple[str, ...]) -> None:
    server = Counted()
    [first, *_] = ids(judged(tmp_path, server, "--collect-only", "-q")[1])
    alone = judged(tmp_path, server, *workers, f"plumbline::{first}")
    beside = judged(tmp_path, server, *workers, f"plumbline::{first}", "test_own.py::test_other")

    assert (alone[0], ids(alone[1])) == (0, [first])
    assert "1 passed in" in alone[1]
    assert (beside[0], ids(beside[1])) == (0, [first])
    assert "2 passed in" in beside[1]


def test_a_node_id_that_is_not_chosen_is_reported(tmp_path: Path) -> None:
    for wrong in ("plumbline::nope", "plumbline::chat/text/shape"):
        status, out = judged(tmp_path, Counted(), "--plumbline-check", "models", wrong)

        assert status == 4
        assert f"not found: {wrong}" in out


@pytest.mark.long
@pytest.mark.parametrize("workers", ALONE_AND_PARALLEL)
def test_a_run_ends_at_the_first_failure_where_that_is_wanted(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    options = ["--plumbline-check", "models", *workers]
    everything = judged(tmp_path, Counted(broken=True), *options)
    first = judged(tmp_path, Counted(broken=True), *options, "-x")

    assert (everything[0], len(ids(everything[1]))) == (1, len(MODELS))
    assert first[0] in (1, 2)
    assert re.findall("^FAILED plumbline::(.*?) -", first[1], re.MULTILINE) == ids(first[1])
    assert len(ids(first[1])) == 1


@pytest.mark.long
@pytest.mark.parametrize("workers", ALONE_AND_PARALLEL)
def test_what_failed_runs_again_alone(tmp_path: Path, workers: tuple[str, ...]) -> None:
    options = ["--plumbline-check", "models", *workers]
    failed = re.findall(
        "^FAILED plumbline::(.*?) -", judged(tmp_path, Counted(broken=True), *options)[1], re.M
    )
    status, out = judged(tmp_path, Counted(), *options, "--lf")

    assert failed
    assert status == 0
    assert sorted(ids(out)) == sorted(failed)
    assert "PASSED test_own.py" not in out


@pytest.mark.long
def test_under_workers_what_failed_elsewhere_runs_again_alone(tmp_path: Path) -> None:
    options = ["--plumbline-check", "models", *WORKERS]
    server = Counted()
    judged(tmp_path, server, *options)
    (tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed").write_text(
        '{"test_own.py::test_own": true}', "utf-8"
    )
    server.asked.clear()
    status, out = judged(tmp_path, server, *options, "--lf")

    assert status == 0
    assert "1 passed in" in out
    assert server.asked == []


@pytest.mark.long
def test_under_workers_every_request_and_verdict_comes_once(tmp_path: Path) -> None:
    alone, spread = Counted(), Counted()
    one = judged(tmp_path, alone, "--plumbline-check", "models")
    two = judged(tmp_path, spread, "--plumbline-check", "models", *WORKERS)

    assert one[0] == two[0] == 0
    assert f"{len(MODELS) + 2} passed in" in one[1]
    assert f"{len(MODELS) + 2} passed in" in two[1]
    assert ids(two[1]) == ids(one[1])
    assert sorted(spread.asked) == sorted(alone.asked)


@pytest.mark.long
def test_under_workers_an_unreachable_server_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(OWN, "utf-8")
    target = ["--plumbline-url", "http://127.0.0.1:1/v1", "--plumbline-model", "m"]
    status, out = pytest_run(tmp_path, *target, *WORKERS)

    assert status == 2
    assert "cannot be reached" in out


@pytest.mark.long
def test_under_workers_wrong_options_are_reported(tmp_path: Path) -> None:
    status, out = pytest_run(tmp_path, "--plumbline-url", "http://h", *WORKERS)

    assert status == 4
    assert "needs --plumbline-model" in out
