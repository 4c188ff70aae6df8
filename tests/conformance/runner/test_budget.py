"""A run stays within its budget and reports what it left out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from example_servers.good_server import KEY, MODEL, serving, transcripts
from example_servers.reference import application
from hypothesis import given
from hypothesis import strategies as st
from support.about import about

from plumbline_conformance.cli import main
from plumbline_conformance.runner.budget import Budget, BudgetTracker, OverBudget, cost_of, spent_on
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.scenario import SCENARIOS, Request, Target
from plumbline_conformance.transcript.exchange import Exchange, Transcript
from plumbline_conformance.transcript.sse import load_json

TARGET = Target(base_url="http://127.0.0.1:1/v1", model=MODEL)


def exchanges(seen: list[Transcript]) -> list[Exchange]:
    return [exchange for transcript in seen for exchange in transcript.everything]


def reported(exchange: Exchange) -> int:
    """The tokens that the usage of an answer reports; 0 without usage."""
    return spent_on(exchange, 0)


def test_no_answer_costs_more_than_was_reserved_for_its_request() -> None:
    """Only tokens of answers are compared: the reference server counts each character of a prompt as a token."""
    for name in SCENARIOS:
        with about(name):
            for exchange in transcripts()[name].exchanges:
                body = load_json(exchange.request_body)
                if not isinstance(body, dict) or exchange.method == "WEBSOCKET":
                    continue
                usage = (exchange.json or {}).get("usage") if isinstance(exchange.json, dict) else None
                if isinstance(usage, dict):
                    written = usage.get("completion_tokens", usage.get("output_tokens"))
                    path = exchange.url.partition("/v1")[2]
                    cost = cost_of(Request(path=path, json=body))
                    assert isinstance(written, int)
                    assert written <= cost


def test_the_cost_counts_the_longest_answer_for_each_choice_and_prompt() -> None:
    def cost(**body: object) -> int:
        return cost_of(Request(path="/completions", json=body))

    assert cost(max_tokens=10, n=3) >= 30
    assert cost(max_tokens=10, prompt=["a", "b"]) >= 20
    assert cost(max_tokens=100, prompt=[1, 2]) < 200
    assert cost() > 200
    assert cost(max_tokens=0) < 20
    assert cost_of(Request(path="/models", method="GET")) == 0


@given(st.integers(1, 3000))
def test_no_more_tokens_are_spent_than_the_budget_has(tokens: int) -> None:
    tracker = BudgetTracker(Budget(tokens=tokens))
    request = Request(path="/chat/completions", json={"max_tokens": 40})
    answer = Exchange(
        method="POST", url="", request_headers={}, request_body=b"", status=200, frames=[(0.0, b"{}")]
    )
    try:
        for _ in range(100):
            tracker.settle(answer, tracker.reserve(request, 0))
    except OverBudget:
        pass
    assert tracker.spent <= tokens


def test_requests_under_way_are_counted() -> None:
    tracker = BudgetTracker(Budget(tokens=100))
    request = Request(path="/chat/completions", json={"max_tokens": 60})
    tracker.reserve(request, 0)
    with pytest.raises(OverBudget):
        tracker.reserve(request, 0)


def test_no_scenario_starts_after_the_time_limit() -> None:
    now = [0.0]
    tracker = BudgetTracker(Budget(seconds=5), clock=lambda: now[0])
    tracker.open(SCENARIOS["models/list"], TARGET)
    now[0] = 5.0
    with pytest.raises(OverBudget, match="5 seconds"):
        tracker.open(SCENARIOS["models/list"], TARGET)


@pytest.mark.parametrize("tokens", [1, 400, 2000])
def test_a_run_stays_within_its_tokens(tokens: int) -> None:
    chosen = [found for name, found in SCENARIOS.items() if name.startswith(("chat/", "errors/", "models/"))]
    with serving(application()) as base_url:
        target = Target(base_url=base_url, model=MODEL, api_key=KEY)
        seen = asyncio.run(record(chosen, target, budget=Budget(tokens=tokens)))

    spent = sum(reported(exchange) for exchange in exchanges(seen))
    assert spent <= tokens
    assert any("budget" in str(transcript.skipped) for transcript in seen)


def test_a_scenario_over_its_own_budget_is_skipped_and_the_rest_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(application()) as base_url:
        options = [base_url, "--model", MODEL, "--api-key", KEY, "--max-tokens-each", "60"]
        assert main(["check", *options, "chat/text", "chat/reasoning-cut", "models"]) == 0

    lines = capsys.readouterr().out.splitlines()
    [line] = [line for line in lines if line.startswith("skipped")]
    assert "chat/reasoning-cut" in line
    assert "budget" in line
    assert any("pass" in line for line in lines)


def test_a_recorded_run_reports_again_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.jsonl"
    with serving(application()) as base_url:
        options = [base_url, "--model", MODEL, "--api-key", KEY, "--max-tokens-total", "100"]
        first = main(
            ["check", *options, "--record", str(run), "--concurrency", "1", "chat/text", "chat/many"]
        )
    output = capsys.readouterr().out
    assert main(["judge", str(run)]) == first == 0
    assert capsys.readouterr().out == output
    assert "skipped chat/many" in output
