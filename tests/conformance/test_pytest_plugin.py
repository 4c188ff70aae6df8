"""The pytest plugin: each check is an item that passes, fails or skips as the check does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from good_server import KEY, MODEL, serving
from odd_servers import answering, error
from reference import application
from test_capabilities import ERROR, but
from test_cli import fixed

from plumbline_conformance.case import CHECKS


def pytest_run(folder: Path, *options: str) -> tuple[int, str]:
    """Run pytest in an empty folder, with the plugin as its entry point would load it."""
    command = [sys.executable, "-m", "pytest", "-p", "plumbline_conformance.pytest_plugin", "-rA", *options]
    found = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "NO_COLOR": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return found.returncode, found.stdout + found.stderr


def test_each_check_is_an_item(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n", "utf-8")
    with serving(application()) as base_url:
        target = ["--plumbline-url", base_url, "--plumbline-model", MODEL, "--plumbline-api-key", KEY]
        status, out = pytest_run(tmp_path, *target)

    assert status == 0, out
    assert f"{len(CHECKS) + 1} passed" in out
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
        (["--plumbline-url", "http://h", "--plumbline-model", "m", "--plumbline-profile", "x"], "is one of"),
    ],
)
def test_wrong_options_are_said(tmp_path: Path, options: list[str], said: str) -> None:
    status, out = pytest_run(tmp_path, *options)

    assert status == 4
    assert said in out


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
    busy = (502, {}, error("Later."))
    with serving(answering(lambda path, _: busy if path == "/chat/completions" else None)) as base_url:
        target = ["--plumbline-url", base_url, "--plumbline-model", MODEL, "--plumbline-api-key", KEY]
        status, out = pytest_run(
            tmp_path, *target, "--plumbline-check", "chat/text", "--plumbline-check", "models"
        )

    assert status == 1
    assert "inconclusive chat/text" in out
    assert "4 passed" in out


def test_an_address_and_a_key_that_cannot_be_used_are_said_before_a_request(tmp_path: Path) -> None:
    away = ["--plumbline-model", "m", "--plumbline-check", "models"]
    port = pytest_run(tmp_path, *away, "--plumbline-url", "http://127.0.0.1:99999/v1")
    key = pytest_run(
        tmp_path, *away, "--plumbline-url", "http://127.0.0.1:1/v1", "--plumbline-api-key", "sk-one\nsk-two"
    )

    assert (port[0], key[0]) == (4, 4)
    assert "has a port that is no number from 1 to 65535" in port[1]
    assert "cannot be sent in a header" in key[1]
    assert "sk-one" not in key[1]


def test_no_key_that_a_server_repeats_is_told_by_an_item(tmp_path: Path) -> None:
    key = "sk-proj-supersecret42"
    said = {"message": f"no {key}", "type": "invalid_request_error", "param": None, "code": None}
    with serving(fixed(400, {"error": said})) as base_url:
        target = ["--plumbline-url", base_url, "--plumbline-model", "m", "--plumbline-api-key", f"{key}\n"]
        status, out = pytest_run(tmp_path, *target, "--plumbline-check", "chat/text")

    assert status == 1
    assert "status 400: no sha256:" in out
    assert key not in out


def test_what_a_profile_requires_fails_where_it_is_lacking(tmp_path: Path) -> None:
    lacking = but(lambda path, _: (404, ERROR) if path.startswith("/v1/responses") else None)
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
