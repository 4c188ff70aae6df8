"""Laws of the vectors: they are what their sources give, they fit the schema, and our code answers them.

* The files are up to date.
* The files fit their schema; names of tools and rules exist; the pieces have no empty ones.
* Our parsers, templates, judge and grammars give the expected answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import pytest

from own_server.runner import answer
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.vectors.compare import NotCompared
from plumbline_conformance.vectors.questions import FOLDER, SUITES, counts, questions

_SCHEMA = json.loads((FOLDER / "vectors.schema.json").read_text("utf-8"))
_PARTS = 9
_FAST = 1
"""How many parts are tried in the fast suite; the laws of `tests/properties` try the same dialects."""


def test_the_files_are_what_their_sources_give() -> None:
    script = str(Path(__file__).with_name("make.py"))
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("suite", SUITES)
def test_the_files_fit_the_schema_and_name_rules_that_exist(suite: str) -> None:
    validator = jsonschema_rs.validator_for({"$ref": f"#/$defs/{suite}", "$defs": _SCHEMA["$defs"]})
    tools = json.loads((FOLDER / "tools.json").read_text("utf-8"))
    for path in (FOLDER / suite).glob("*.json"):
        file = json.loads(path.read_text("utf-8"))
        assert [str(error) for error in validator.iter_errors(file)] == [], path.name
        for case in file["cases"]:
            assert set(case["rules"]) <= set(rules()), (path.name, case["id"])
            assert suite != "parsers" or case.get("tools", "none") in tools, (path.name, case["id"])


def test_every_dialect_has_forty_vectors() -> None:
    known = {path.stem for path in (FOLDER / "parsers").glob("*.json")}
    for dialect in (*TOOL_DIALECTS.values(), *REASONING_DIALECTS.values()):
        assert {dialect.name, f"reasoning-{dialect.name}"} & known, dialect.name  # type: ignore[attr-defined]
    # The schema demands at least forty in each file.
    assert all(cases >= 40 for _, cases in counts(FOLDER).values())


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.long] if part >= _FAST else []) for part in range(_PARTS)]
)
def test_our_code_gives_the_expected_answers(part: int) -> None:
    skipped = 0
    for question in list(questions(FOLDER))[part::_PARTS]:
        found = answer(question.line)
        if "skipped" in found:
            skipped += 1
            continue
        try:
            question.check(found)
        except NotCompared:
            pytest.fail(f"{question.id}: our judge does not look for faults")
    assert skipped < 20
