"""What a target lacks is found out once, said as the reason, and never held against it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from good_server import KEY, MODEL, serving
from reference import application

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.case import CAPABILITIES, CHECKS, SCENARIOS, Target, scenario
from plumbline_conformance.cli import check
from plumbline_conformance.judge import judge, record
from plumbline_conformance.transcript import Transcript

ERROR = {"error": {"message": "not here", "type": "invalid_request_error", "param": None, "code": None}}


def but(changes: Any) -> Any:
    """The reference, but for requests whose body or path the function answers with (status, JSON)."""
    inner = application()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await inner(scope, receive, send)
        message = await receive()
        body = message.get("body", b"")
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        answer = changes(scope["path"], value if isinstance(value, dict) else {})
        if answer is not None:
            status, content = answer
            headers = [(b"content-type", b"application/json"), (b"x-request-id", b"1")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            return await send({"type": "http.response.body", "body": json.dumps(content).encode()})

        async def again() -> Any:
            return message

        return await inner(scope, again, send)

    return serve


def seen(changes: Any, *names: str, key: str | None = KEY) -> dict[str, Transcript]:
    with serving(but(changes)) as base_url:
        target = Target(base_url=base_url, model=MODEL, api_key=key)
        found = asyncio.run(record([SCENARIOS[name] for name in names], target))
    return {one.scenario: one for one in found}


LACKS = [
    ("responses", "responses/tool", lambda path, _: (404, ERROR) if path == "/v1/responses" else None),
    ("completions", "completions/stop", lambda path, _: (405, ERROR) if path == "/v1/completions" else None),
    ("tools", "chat/tool", lambda _, body: (400, ERROR) if body.get("tools") else None),
    ("reasoning", "chat/reasoning", lambda _, body: (400, ERROR) if body.get("reasoning_effort") else None),
    ("stored", "responses/stored", lambda _, body: (400, ERROR) if body.get("store") else None),
    ("count", "responses/count", lambda path, _: (501, ERROR) if path.endswith("input_tokens") else None),
]


@pytest.mark.parametrize(("capability", "scenario", "changes"), LACKS, ids=[row[0] for row in LACKS])
def test_what_is_lacking_is_skipped_with_the_reason(capability: str, scenario: str, changes: Any) -> None:
    assert capability in SCENARIOS[scenario].needs

    found = judge(seen(changes, scenario)[scenario])

    assert {finding.verdict for finding in found} == {"skipped"}
    assert all(finding.reason and len(finding.reason) > 10 for finding in found)


def test_a_field_that_is_ignored_is_no_capability() -> None:
    """`structured_outputs` is an extension: a server that does not know it may ignore it."""
    inner: dict[str, Any] = {"choices": [{"message": {"content": "No."}}]}

    found = seen(lambda _, body: (200, inner) if "structured_outputs" in body else None, "chat/regex")

    assert {finding.verdict for finding in judge(found["chat/regex"])} == {"skipped"}


def test_a_model_that_shows_no_reasoning_is_not_asked_for_it() -> None:
    silent: dict[str, Any] = {"choices": [{"message": {"content": "Hi."}}]}

    found = seen(lambda _, body: (200, silent) if body.get("reasoning_effort") else None, "chat/reasoning")

    assert "no reasoning" in str(found["chat/reasoning"].skipped)


def test_without_a_key_nothing_is_said_of_keys() -> None:
    assert seen(lambda *_: None, "errors/key", key=None)["errors/key"].skipped


def test_what_a_probe_showed_is_kept_as_evidence() -> None:
    found = seen(lambda path, _: (404, ERROR) if path == "/v1/responses" else None, "responses/tool")

    assert [exchange.status for exchange in found["responses/tool"].exchanges] == [404]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_probe_that_fails_says_nothing(status: int) -> None:
    """The scenario is run all the same, and says what it sees."""
    found = seen(lambda path, _: (status, ERROR) if path == "/v1/responses" else None, "responses/tool")

    assert found["responses/tool"].skipped is None


def test_every_capability_is_needed_by_somebody() -> None:
    assert {name for found in SCENARIOS.values() for name in found.needs} == set(CAPABILITIES)


def test_a_scenario_cannot_need_what_nobody_looks_for() -> None:
    with pytest.raises(ValueError, match="nobody looks for"):
        scenario("no/such", "Nothing", needs=("luck",))(SCENARIOS["chat/text"].steps)


def test_a_forced_call_that_is_not_made_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    """The server accepted `required` and gave text: the rule fails, and what rests on it is untestable."""
    message = {"role": "assistant", "content": "No.", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
    text = {**head, "choices": [choice], "usage": usage}

    with serving(but(lambda _, body: (200, text) if body.get("tool_choice") == "required" else None)) as url:
        target = Target(base_url=url, model=MODEL, api_key=KEY)
        assert check(target, ["chat/tool-required/called"]) == 1
        assert check(target, ["chat/tool-required/arguments"]) == 1

    assert "untestable chat/tool-required/arguments" in capsys.readouterr().out


def test_there_are_enough_checks_of_streams() -> None:
    """Those of scenarios whose streams they look at, by their own words."""
    of_streams = [
        name
        for name, found in CHECKS.items()
        if "stream" in name or any(rule.startswith(("SSE", "CS-", "RS-")) for rule in found.rules)
    ]

    assert len(of_streams) >= 200
