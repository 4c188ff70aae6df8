"""Read requests and results, one a line, in the format of K2-Vendor-Verifier, and write results.

A request is the body of a chat completion. A result has the number of its request from 1 (`data_index`), `status`
(`success` or `failed`), and `response`, a chat completion; the other members are what a reader finds in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec

from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.transcript.answer_fold import Answer, fold_whole
from plumbline_conformance.transcript.sse import load_json

__all__ = ["AnswerFacts", "Row", "line_of", "read_results", "read_samples", "result_of"]

Json = dict[str, Any]
_MOST_ROWS = 100_000
_LONGEST_LINE = 64 * 1024**2


class Row(msgspec.Struct, frozen=True):
    """A request."""

    number: int
    """Its line, from 1."""
    body: Json

    @property
    def tools(self) -> Mapping[str, Json]:
        """The parameters of each tool, by its name."""
        found: dict[str, Json] = {}
        for tool in self.body.get("tools") or []:
            function = tool.get("function") if isinstance(tool, dict) else None
            if isinstance(function, dict) and isinstance(name := function.get("name"), str):
                parameters = function.get("parameters")
                found[name] = parameters if isinstance(parameters, dict) else {}
        return found


class AnswerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one answer to a request shows."""

    row: int
    finish: str = ""
    """The finish reason; empty if the request failed."""
    calls: tuple[tuple[str, str], ...] = ()
    """The name and the arguments of each call."""
    known: bool = True
    """Whether every call is of a tool that the request has."""
    valid: bool = True
    """Whether the arguments of every call of a known tool are JSON that matches its parameters."""
    content: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str = ""
    """Why there is no answer."""

    @property
    def triggers(self) -> bool:
        """Whether the model called a tool."""
        return self.finish == "tool_calls"


def read_samples(path: Path) -> list[Row]:
    """Read the requests.

    Raises:
        UnusableInput: the file cannot be read, or a line is not a request; the message names it.
    """
    rows: list[Row] = []
    for number, value in _lines(path):
        if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
            raise UnusableInput(
                f"{path}, line {number}: a request needs `messages`, as chat completions have"
            )
        if not isinstance(value.get("tools"), list | None):
            raise UnusableInput(f"{path}, line {number}: `tools` is not a list")
        rows.append(Row(number, value))
    if not rows:
        raise UnusableInput(f"{path} has no requests")
    return rows


def read_results(path: Path, rows: Mapping[int, Row]) -> Iterator[AnswerFacts]:
    """Read results of these requests; those of other requests are left out.

    Raises:
        UnusableInput: the file cannot be read, or a line is not a result; the message names it.
    """
    for number, value in _lines(path):
        index = value.get("data_index") if isinstance(value, dict) else None
        if type(index) is not int:
            raise UnusableInput(
                f"{path}, line {number}: a result needs `data_index`, the line of its request"
            )
        row = rows.get(index)
        if row is None:
            continue
        if value.get("status") != "success":
            yield AnswerFacts(
                row=index, error=str(value.get("error") or value.get("status") or "failed")[:500]
            )
            continue
        yield result_of(row, fold_whole("chat", value.get("response")))


def result_of(row: Row, answer: Answer) -> AnswerFacts:
    """Return what the first choice of an answer shows."""
    if not answer.choices:
        return AnswerFacts(row=row.number, error="the answer has no choices")
    choice = answer.choices[0]
    calls = tuple((call.name, call.arguments) for call in choice.calls)
    usage = answer.usage if isinstance(answer.usage, dict) else {}
    finish = choice.finish_reason if isinstance(choice.finish_reason, str) else ""
    tools = row.tools
    return AnswerFacts(
        row=row.number,
        finish=finish or "none",
        calls=calls,
        known=all(name in tools for name, _ in calls),
        valid=all(fits(tools[name], text) for name, text in calls if name in tools),
        content=choice.content,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
    )


def line_of(row: Row, response: Any, result: AnswerFacts, seconds: float) -> str:
    """Return a result as a line of a results file, which can be a baseline later."""
    # Non-ASCII is escaped, because halves of surrogate pairs cannot be written as UTF-8.
    return json.dumps(
        {
            "data_index": row.number,
            "request": row.body,
            "response": response,
            "status": "failed" if result.error else "success",
            **({"error": result.error} if result.error else {}),
            "finish_reason": result.finish or None,
            "tool_calls_valid": result.known and result.valid if result.triggers else None,
            "duration_ms": round(seconds * 1000),
        }
    )


def fits(parameters: Json, arguments: str) -> bool:
    """Return whether arguments are a JSON object that matches the parameters of their tool."""
    value = load_json(arguments.encode("utf-8", "surrogatepass"))
    if not isinstance(value, dict):
        return False
    validator = _validator(json.dumps(parameters, sort_keys=True))
    try:
        return validator is None or bool(validator.is_valid(value))
    except ValueError:  # Lone surrogates.
        return False


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Any:
    """Return a validator of a schema; None for one that is no schema, against which nothing can be wrong."""
    try:
        return jsonschema_rs.validator_for(json.loads(schema), retriever=_nothing)
    except (ValueError, jsonschema_rs.ReferencingError):
        return None


def _nothing(uri: str) -> Any:
    """Fetch no schema that another one refers to: a file of requests must not make the judge ask other hosts."""
    raise ValueError(uri)


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line that is not empty."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_LONGEST_LINE + 1):
                number += 1
                if len(line) > _LONGEST_LINE or number > _MOST_ROWS:
                    raise UnusableInput(
                        f"{path}, line {number}: more than {_MOST_ROWS} lines, or {_LONGEST_LINE} bytes in one"
                    )
                if not line.strip():
                    continue
                value = load_json(line)
                if value is None:
                    raise UnusableInput(f"{path}, line {number}: not JSON")
                yield number, value
    except OSError as error:
        raise UnusableInput(f"{path} cannot be read: {error.strerror}") from None
