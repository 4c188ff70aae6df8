"""Check that the status of a response, of its items and the members about its end agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plumbline_conformance.checks.identity import EARLIEST, LATEST
from plumbline_conformance.suite.scenario import Problem
from plumbline_conformance.suite.wording import as_json

__all__ = ["STATES", "agreeing"]

STATES = ("R-03", "R-05", "R-07", "R-08", "R-01", "R-10", "R-11")
"""The rules that `agreeing` observes, and the rule about echoed parameters."""
REASONS = ("max_output_tokens", "content_filter")
ENDED = ("completed", "incomplete")
SMALLEST_CONTEXT = 1024
"""Tokens that every model in use has room for, as GPT-2 does."""


def agreeing(response: dict[str, Any], limit: int | None) -> Iterator[Problem]:
    """Check one response that has ended (R-03, R-05), and the states and ids of its items (R-07, R-08).

    A response that has not ended has no usage yet (R-10).

    Args:
        response: the response object.
        limit: the token limit of the request; None if it has no limit.
    """
    state = response.get("status")
    if state == "failed" and response.get("error") is None:
        yield _problem("R-03", "an error", None, "error")
    if state not in ENDED:
        if state in ("queued", "in_progress") and response.get("usage") is not None:
            yield _problem("R-10", f"null while {state}", response["usage"], "usage")
        return
    yield from _of_end(response, state)
    yield from _of_times(response)
    for key in ("id", "model"):
        if response.get(key) == "":
            yield _problem("R-01", f"a {key}", "''", key)
    if limit is not None:
        yield from _of_limit(response, limit)
    output = response.get("output")
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    yield from _of_items(items)


def _of_limit(response: dict[str, Any], limit: int) -> Iterator[Problem]:
    """Check that the answer keeps the limit, and that the limit cut no short answer to a short prompt (R-05).

    A full context cuts an answer for the same reason, and some servers do not count the tokens around thinking and
    calls.
    """
    usage, details = response.get("usage"), response.get("incomplete_details")
    prompt, tokens = (
        usage.get(name) if isinstance(usage, dict) else None for name in ("input_tokens", "output_tokens")
    )
    if not isinstance(tokens, int):
        return
    if tokens > limit:
        yield _problem("R-05", f"at most {limit} tokens", tokens, "usage.output_tokens")
    cut = isinstance(details, dict) and details.get("reason") == "max_output_tokens"
    fits = isinstance(prompt, int) and prompt + limit <= SMALLEST_CONTEXT
    if cut and fits and 2 * tokens < limit:
        yield _problem("R-05", f"the limit of {limit} tokens", tokens, "usage.output_tokens")


def _of_end(response: dict[str, Any], state: str) -> Iterator[Problem]:
    """Check the members that describe how a response ended."""
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    if response.get("error") is not None:
        yield _problem("R-03", "null while " + state, response["error"], "error")
    if state == "completed" and details is not None:
        yield _problem("R-03", "null while completed", details, "incomplete_details")
    if state == "incomplete" and reason not in REASONS:
        yield _problem("R-05", " or ".join(REASONS), reason, "incomplete_details.reason")
    # The schema requires the member; without it, `shape` reports the same rule.
    if "completed_at" in response and (state == "completed") != (response["completed_at"] is not None):
        yield _problem(
            "R-03",
            "a time if completed, and only then",
            f"{response['completed_at']} while {state}",
            "completed_at",
        )


def _of_times(response: dict[str, Any]) -> Iterator[Problem]:
    begun, ended = response.get("created_at"), response.get("completed_at")
    if isinstance(begun, int | float) and not EARLIEST <= begun < LATEST:
        yield _problem("R-01", "seconds since 1970", begun, "created_at")
    if isinstance(begun, int | float) and isinstance(ended, int | float) and ended < begun - 1:
        yield _problem("R-03", f"{begun} or later", ended, "completed_at")
    elif isinstance(ended, int | float) and ended >= LATEST:
        yield _problem("R-03", "seconds since 1970", ended, "completed_at")


def _of_items(items: list[dict[str, Any]]) -> Iterator[Problem]:
    for place, item in enumerate(items):
        state, kind = item.get("status"), item.get("type")
        where = f"output[{place}].status"
        if kind in ("message", "function_call") and state is None:
            yield _problem("R-08", "a status", state, where)
        if kind in ("function_call", "custom_tool_call") and not (item.get("name") and item.get("call_id")):
            yield _problem("R-08", "a name and a call_id", item, f"output[{place}]")
        if state == "in_progress":
            yield _problem("R-07", "completed, or incomplete at the end", state, where)
        if state == "incomplete" and place < len(items) - 1:
            yield _problem("R-07", "completed before the last item", state, where)
    names = [item.get("id") for item in items]
    if len({as_json(name) for name in names}) != len(names):
        yield _problem("R-08", "ids that differ", names, "output[].id")
    if not all(isinstance(name, str) and name for name in names):
        yield _problem("R-08", "an id of every item", names, "output[].id")


def _problem(rule: str, expected: str, actual: object, pointer: str) -> Problem:
    shown = actual if isinstance(actual, str) else as_json(actual)
    return Problem(expected=expected, actual=shown[:200], pointer=pointer, rule=rule)
