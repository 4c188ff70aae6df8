"""Test what the checks of MCP servers accept, where an answer of the contract is not the usual one.

- A call may lack its status, which the contract does not require.
- An approved call of a tool that fails for its arguments has no output.
- After a refusal any call is one without approval.
- An answer that the token limit cut shows nothing about a server that is not there.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.responses import mcp
from plumbline_conformance.cli import main
from plumbline_conformance.suite.scenario import Inconclusive, Target
from plumbline_conformance.transcript.exchange import Exchange, Transcript

TARGET = Target(base_url="http://a/v1", model="m")
REQUEST = {"tools": [tools.mcp(TARGET, "get_time")], "tool_choice": "required"}
MADE: dict[str, Any] = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": tools.MCP_LABEL,
    "name": "get_time",
    "arguments": '{"city": "Paris"}',
    "output": "It is noon in Paris.",
    "error": None,
}
ASKED = {name: MADE[name] for name in ("server_label", "name", "arguments")}
ASKED |= {"type": "mcp_approval_request", "id": "mcpr_1"}


def answer(*output: dict[str, Any], name: str = "whole", status: str = "completed") -> Exchange:
    body = json.dumps({"object": "response", "status": status, "output": output}).encode()
    return Exchange(
        name=name,
        method="POST",
        url="http://a/v1/responses",
        request_headers={},
        request_body=json.dumps(REQUEST).encode(),
        status=200,
        frames=[(0.0, body)],
    )


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 0),
        ({"status": None}, 0),
        ({"status": "completed"}, 0),
        ({"status": "calling"}, 1),
        ({"output": "It is one."}, 1),
        ({"arguments": "{}", "output": None, "error": {"type": "mcp_tool_execution_error"}}, 0),
    ],
)
def test_a_call_may_lack_its_status(changes: dict[str, Any], count: int) -> None:
    assert len(list(mcp._called(answer({**MADE, **changes})))) == count


def approvals(asked: dict[str, Any], approved: list[Any], declined: list[Any]) -> Transcript:
    return Transcript(
        scenario="responses/mcp-approval",
        exchanges=[
            answer(asked, name="asked"),
            answer(*approved, name="approved"),
            answer(*declined, name="declined"),
        ],
    )


@pytest.mark.parametrize(("output", "count"), [(None, 0), ("The tool failed, as it should.", 1)])
def test_an_approved_call_that_fails_has_no_output(output: str | None, count: int) -> None:
    arguments = {"arguments": '{"town": "Paris"}'}
    made = {**MADE, **arguments, "output": output, "approval_request_id": "mcpr_1"}
    assert len(list(mcp.approval_given(approvals({**ASKED, **arguments}, [made], [])))) == count


def test_an_approved_call_that_fails_must_be_there() -> None:
    asked = {**ASKED, "arguments": '{"town": "Paris"}'}
    assert len(list(mcp.approval_given(approvals(asked, [], [])))) == 1


@pytest.mark.parametrize("approved_by", ["mcpr_1", None, "mcpr_2"])
def test_any_call_after_a_refusal_is_made_without_approval(approved_by: str | None) -> None:
    made = {**MADE, "approval_request_id": approved_by}
    assert len(list(mcp.approval_denied(approvals(ASKED, [], [made])))) == 1
    assert not list(mcp.approval_denied(approvals(ASKED, [made], [])))


def test_a_cut_answer_shows_nothing_about_a_lost_server() -> None:
    listed = {"type": "mcp_list_tools", "server_label": tools.MCP_LABEL, "tools": [], "error": "lost"}
    both = [answer(listed, name=name, status="incomplete") for name in ("lost", "lost_stream")]
    cut = Transcript(scenario="responses/mcp-failure", exchanges=both)
    with pytest.raises(Inconclusive):
        list(mcp.failure_lost(cut))


def test_the_capability_needs_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "http://127.0.0.1:1/v1", "--model", "m", "--capabilities", "mcp"]) == 2
    assert "--mcp HOST:PORT" in capsys.readouterr().err


def test_an_example_shows_where_the_address_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "responses/mcp"]) == 0
    assert "http://HOST:PORT/mcp" in capsys.readouterr().out
