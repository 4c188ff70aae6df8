"""Read the vectors, and make of each the questions that a peer's runner is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.vectors.compare import check_allowed, check_message, check_prompt, check_stream

__all__ = ["FOLDER", "SUITES", "Question", "UnreadableVectors", "counts", "questions"]

_PACKED = Path(__file__).parent / "files"
FOLDER = _PACKED if _PACKED.is_dir() else Path(__file__).parents[2] / "vectors"
"""The vectors: a wheel has them in the package, a clone beside it."""
SUITES = ("parsers", "dialogues", "streams", "structured")

Check = Callable[[dict[str, Any]], None]


class UnreadableVectors(UnusableInput):
    """The folder has no vectors, or one of them cannot be read."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One line for the runner, and the check of its answer."""

    suite: str
    group: str
    """The file: the dialect, the template or the API."""
    title: str
    source: str
    """`law` or `hand` for parsers: where the expected message comes from. Otherwise empty."""
    rules: list[str]
    line: dict[str, Any]
    check: Check
    """Raises `WrongAnswer` if the answer is not the expected one."""

    @property
    def id(self) -> str:
        """Return `SUITE/GROUP/NUMBER`, with `/whole` or `/streamed` for parsers."""
        return str(self.line["id"])


def questions(folder: Path, suites: Sequence[str] = (), ids: Sequence[str] = ()) -> Iterator[Question]:
    """Yield the questions of these suites whose ids begin with one of `ids`, or match it; all by default.

    Raises:
        UnreadableVectors: the folder has no vectors, or a file is not JSON.
    """
    for suite in suites or SUITES:
        for name, file in _files(folder, suite):
            for question in _OF_SUITE[suite](folder, name, file):
                if not ids or any(
                    question.id.startswith(one) or fnmatchcase(question.id, one) for one in ids
                ):
                    yield question


def counts(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the numbers of files and vectors of each suite."""
    return {
        suite: (len(found), sum(len(file["cases"]) for _, file in found))
        for suite in SUITES
        for found in [list(_files(folder, suite))]
    }


def _files(folder: Path, suite: str) -> Iterator[tuple[str, dict[str, Any]]]:
    paths = sorted((folder / suite).glob("*.json"))
    if not paths:
        raise UnreadableVectors(
            f"{folder} has no vectors in {suite}/. Give a folder of vectors, such as a clone's "
            "conformance/vectors, with --vectors."
        )
    for path in paths:
        yield path.stem, _json(path)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableVectors(f"{path} cannot be read: {error}") from error


def _parsers(folder: Path, name: str, file: dict[str, Any]) -> Iterator[Question]:
    sets = _json(folder / "tools.json")
    for case in file["cases"]:
        tools = [
            {"type": "function", "function": {"name": tool, "parameters": schema}}
            for tool, schema in sets[case.get("tools", "none")].items()
        ]
        for streamed in (False, True):
            line = {
                "suite": "parsers",
                "id": f"parsers/{name}/{case['id']}/{'streamed' if streamed else 'whole'}",
                "dialect": file["dialect"],
                "tools": tools,
                "thinking": case.get("thinking", True),
                "opened": case.get("opened", ""),
                "streamed": streamed,
                "pieces": case["pieces"] if streamed else ["".join(case["pieces"])],
                "finish": case["finish"],
            }
            yield Question(
                suite="parsers",
                group=name,
                title=case["title"],
                source=case["from"],
                rules=case["rules"],
                line=line,
                check=partial(check_message, case["message"], file["dialect"]["markers"]),
            )


def _others(
    suite: str, check: Callable[[dict[str, Any], dict[str, Any]], None], asked: Sequence[str]
) -> Callable[[Path, str, dict[str, Any]], Iterator[Question]]:
    """Return the reader of a suite whose questions are some members of a case and of its file."""

    def read(folder: Path, name: str, file: dict[str, Any]) -> Iterator[Question]:
        for case in file["cases"]:
            line = {"suite": suite, "id": f"{suite}/{name}/{case['id']}"}
            line |= {key: {**file, **case}[key] for key in asked if key in file or key in case}
            yield Question(
                suite=suite,
                group=name,
                title=case["title"],
                source="",
                rules=case.get("rules", []),
                line=line,
                check=partial(check, case),
            )

    return read


_OF_SUITE: dict[str, Callable[[Path, str, dict[str, Any]], Iterator[Question]]] = {
    "parsers": _parsers,
    "dialogues": _others("dialogues", check_prompt, ("template", "messages", "tools", "variables")),
    "streams": _others("streams", check_stream, ("api", "request", "stream", "frames")),
    "structured": _others("structured", check_allowed, ("schema", "text")),
}
