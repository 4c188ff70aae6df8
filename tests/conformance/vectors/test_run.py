"""Test that a runner is asked every question, that its faults are its own, and that each wrong answer is found."""

from __future__ import annotations

import json
import shlex
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plumbline_conformance.cli import main
from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.vectors.compare import (
    NotCompared,
    WrongAnswer,
    check_allowed,
    check_message,
    check_prompt,
    check_stream,
)
from plumbline_conformance.vectors.scoring import VectorsCommand

_TEXT = {"reasoning": "", "content": "It is sunny.", "calls": []}
_CALL = {"reasoning": "", "content": "", "calls": [{"name": "f", "arguments": '{"a": 1, "b": "x y"}'}]}
_CUT = {
    "reasoning": "",
    "content": "",
    "calls": [{"name": "f", "arguments": '{"a": "x y', "complete": False}],
}


def runner(tmp_path: Path, answer: str) -> str:
    """Return the command of a runner that answers each question with a Python expression over `q`."""
    script = tmp_path / "runner.py"
    script.write_text(
        "import json, os, sys, time\n"
        "for line in sys.stdin:\n"
        "    q = json.loads(line)\n"
        "    found = {'name': 'mine', 'version': '1'} if 'hello' in q else (" + answer + ")\n"
        "    print(found if isinstance(found, str) else json.dumps(found), flush=True)\n",
        "utf-8",
    )
    return shlex.join([sys.executable, str(script)])


def scored(tmp_path: Path, answer: str, *ids: str, timeout: float = 20.0) -> tuple[int, dict[str, Any], str]:
    """Return the exit status, the JSON and the output of a run."""
    out = StringIO()
    file = tmp_path / "scores.json"
    command = VectorsCommand(
        command=runner(tmp_path, answer), ids=ids or ("parsers/hermes/1/",), timeout=timeout, json=file
    )
    status = command.run(Console(file=out, width=200))
    return status, json.loads(file.read_bytes()), out.getvalue()


def test_right_answers_give_status_0(tmp_path: Path) -> None:
    status, scores, text = scored(tmp_path, f"{{'message': {_TEXT!r}}}")
    assert (status, scores["differences"]) == (0, [])
    assert (scores["name"], scores["version"]) == ("mine", "1")
    assert "mine 1: 2 of 2 answers are right (100.0%), 0 skipped" in text


def test_wrong_answers_are_listed_with_their_rules(tmp_path: Path) -> None:
    status, scores, text = scored(tmp_path, "{'message': {'content': 'Other.'}}")
    assert status == 1
    assert [row["id"] for row in scores["differences"]] == [
        "parsers/hermes/1/whole",
        "parsers/hermes/1/streamed",
    ]
    assert 'CHAT-19: content: expected "It is sunny.", found "Other."' in text


def test_skipped_questions_count_neither_way(tmp_path: Path) -> None:
    status, scores, text = scored(tmp_path, "{'skipped': 'no such dialect'}")
    assert (status, scores["scores"][0]["skipped"]) == (0, 2)
    assert "2 skipped (no such dialect)" in text


@pytest.mark.parametrize(
    "answer", ["'no JSON'", "[1]", "os._exit(1)", "{'error': 'KeyError'}", "{'message': 3}"]
)
def test_every_fault_of_a_runner_is_one_wrong_answer(tmp_path: Path, answer: str) -> None:
    status, scores, _ = scored(tmp_path, answer)
    assert (status, scores["scores"][0]["wrong"]) == (1, 2)


def test_an_answer_that_never_comes_is_wrong(tmp_path: Path) -> None:
    answer = f"time.sleep(60) if q['streamed'] else {{'message': {_TEXT!r}}}"
    status, scores, _ = scored(tmp_path, answer, timeout=1.0)
    assert (status, scores["scores"][0]["right"], scores["scores"][0]["wrong"]) == (1, 1, 1)
    assert scores["differences"][0]["why"] == "error: no answer in 1 s"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/no/such/program", "does not start"),
        (f"{sys.executable} -c print(1)", "first answer of the runner is not"),
        ("", "--run is empty"),
        ("'", "No closing quotation"),
    ],
)
def test_a_runner_that_cannot_be_asked_gives_a_reason(command: str, message: str) -> None:
    with pytest.raises(UnusableInput, match=message):
        VectorsCommand(command=command).run(Console(file=StringIO()))


def test_a_folder_without_vectors_and_unknown_ids_give_a_reason(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="has no vectors in parsers/"):
        VectorsCommand(vectors=tmp_path).run(Console(file=StringIO()))
    with pytest.raises(UnusableInput, match="ID is of no vector: nothing"):
        VectorsCommand(command="true", ids=("nothing",)).run(Console(file=StringIO()))
    with pytest.raises(UnusableInput, match="--run is missing"):
        VectorsCommand(ids=("parsers/hermes",)).run(Console(file=StringIO()))


def test_without_a_runner_the_vectors_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors"]) == 0
    assert "vectors in 5 files" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (_TEXT, {"content": " It\nis  sunny.\n"}),
        (_CALL, {"calls": [{"name": "f", "arguments": '{"b":"x y","a":1}'}]}),
        (_CUT, {"content": None, "calls": [{"name": "f", "arguments": '{"a":"x y'}]}),
        ({**_TEXT, "content": "<t> a </t>"}, {"content": "<t>a</t>"}),
    ],
)
def test_what_means_the_same_is_right(expected: dict[str, Any], message: dict[str, Any]) -> None:
    check_message(expected, ["<t>", "</t>"], {"message": message})


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (_TEXT, {"content": "Itis sunny."}),
        (_TEXT, {"content": "It is sunny.", "reasoning": "hm"}),
        (_TEXT, {"content": "It is sunny.", "calls": [{"name": "f", "arguments": "{}"}]}),
        (_CALL, {"calls": []}),
        (_CALL, {"calls": [{"name": "g", "arguments": '{"a": 1, "b": "x y"}'}]}),
        (_CALL, {"calls": [{"name": "f", "arguments": '{"a": true, "b": "x y"}'}]}),
        (_CALL, {"calls": [{"name": "f", "arguments": '{"a": 1.0, "b": "x y"}'}]}),
        (_CALL, {"calls": [{"name": "f", "arguments": {"a": 1, "b": "x y"}}]}),
        (_CUT, {"calls": [{"name": "f", "arguments": '{"a": "xy'}]}),
        (_CUT, {"calls": [{"name": "f", "arguments": '{"a": "x y"}'}]}),
    ],
)
def test_what_means_something_else_is_wrong(expected: dict[str, Any], message: dict[str, Any]) -> None:
    with pytest.raises(WrongAnswer):
        check_message(expected, [], {"message": message})


def test_prompts_texts_and_streams_are_compared() -> None:
    check_prompt({"prompt": "a\n"}, {"prompt": "a\n"})
    check_allowed({"allowed": False}, {"allowed": False})
    check_stream({"folded": {"content": "a"}}, {"folded": {"content": "a"}, "broken": []})
    check_stream({"broken": ["SSE-05"]}, {"broken": ["SSE-07"]})
    for check, case, answer in (
        (check_prompt, {"prompt": "a\n"}, {"prompt": "a"}),
        (check_allowed, {"allowed": False}, {"allowed": True}),
        (check_stream, {"folded": {"content": "a"}}, {"folded": {"content": "b"}}),
        (check_stream, {"folded": {"content": "a"}}, {"folded": {"content": "a"}, "broken": ["SSE-05"]}),
        (check_stream, {"broken": ["SSE-05"]}, {"broken": []}),
    ):
        with pytest.raises(WrongAnswer):
            check(case, answer)
    with pytest.raises(NotCompared):
        check_stream({"broken": ["SSE-05"]}, {"folded": {"content": "a"}})
