"""Test capability probes: a missing feature is found once, reported as the reason, and is no violation."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Generator
from typing import Any

import pytest
from example_servers.good_server import KEY, MODEL, serving, transcripts
from example_servers.odd_servers import NOT_HERE, reference_but
from example_servers.reference import application
from mutants.mutations import changed

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli.check import check
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.scenario import CAPABILITIES, CHECKS, SCENARIOS, Request, Target, scenario
from plumbline_conformance.transcript.exchange import Exchange, Transcript


def seen(changes: Any, *names: str, key: str | None = KEY) -> dict[str, Transcript]:
    with serving(reference_but(changes)) as base_url:
        target = Target(base_url=base_url, model=MODEL, api_key=key)
        found = asyncio.run(record([SCENARIOS[name] for name in names], target))
    return {one.scenario: one for one in found}


LACKS: list[Any] = [
    ("responses", "responses/tool", lambda path, _: (404, NOT_HERE) if path == "/v1/responses" else None),
    (
        "completions",
        "completions/stop",
        lambda path, _: (405, NOT_HERE) if path == "/v1/completions" else None,
    ),
    ("tools", "chat/tool", lambda _, body: (400, NOT_HERE) if body.get("tools") else None),
    (
        "reasoning",
        "chat/reasoning",
        lambda _, body: (400, NOT_HERE) if body.get("reasoning_effort") else None,
    ),
    ("stored", "responses/stored", lambda _, body: (400, NOT_HERE) if body.get("store") else None),
    ("count", "responses/count", lambda path, _: (501, NOT_HERE) if path.endswith("input_tokens") else None),
    (
        "stored-chat",
        "chat/stored",
        lambda path, body: (405, NOT_HERE) if path.endswith("/chat/completions") and not body else None,
    ),
    (
        "conversations",
        "responses/conversation",
        lambda path, _: (404, NOT_HERE) if path.endswith("/conversations") else None,
    ),
    (
        "continuation",
        "chat/prefill",
        lambda _, body: (200, {"choices": []}) if body.get("continue_final_message") else None,
    ),
]


@pytest.mark.parametrize(("capability", "scenario", "changes"), LACKS, ids=[row[0] for row in LACKS])
def test_what_is_lacking_is_skipped_with_the_reason(capability: str, scenario: str, changes: Any) -> None:
    assert capability in SCENARIOS[scenario].needs

    found = judge(seen(changes, scenario)[scenario])

    assert {finding.verdict for finding in found} == {"skipped"}
    assert all(finding.reason and len(finding.reason) > 10 for finding in found)


def test_a_page_is_no_list_of_completions() -> None:
    """Some servers answer unknown paths with an HTML page."""
    changes = lambda path, body: (200, "Welcome") if path.endswith("/chat/completions") and not body else None  # noqa: E731

    assert seen(changes, "chat/stored")["chat/stored"].skipped == "GET /chat/completions returns no list"


def test_a_field_that_is_ignored_is_no_capability() -> None:
    """A server may ignore `structured_outputs`, because it is an extension."""
    inner: dict[str, Any] = {"choices": [{"message": {"content": "No."}}]}

    found = seen(lambda _, body: (200, inner) if "structured_outputs" in body else None, "chat/regex")

    assert {finding.verdict for finding in judge(found["chat/regex"])} == {"skipped"}


def test_a_model_that_shows_no_reasoning_gets_no_request_for_it() -> None:
    silent: dict[str, Any] = {"choices": [{"message": {"content": "Hi."}}]}

    found = seen(lambda _, body: (200, silent) if body.get("reasoning_effort") else None, "chat/reasoning")

    assert "no reasoning" in str(found["chat/reasoning"].skipped)


def of_chat(message: dict[str, str]) -> Exchange:
    body = json.dumps({"choices": [{"message": message}]}).encode()
    return Exchange(
        method="POST", url="", request_headers={}, request_body=b"", status=200, frames=[(0.0, body)]
    )


@pytest.mark.parametrize("thoughtless", [1, 2])
def test_a_model_may_answer_without_a_thought_and_still_shows_reasoning(thoughtless: int) -> None:
    answers = [{"content": "51"}] * thoughtless + [{"content": "51", "reasoning": "Three times 17."}]
    steps = CAPABILITIES["reasoning"].probe(Target(base_url="", model=MODEL))
    next(steps)

    for message in answers[:-1]:
        assert steps.send(of_chat(message))
    with pytest.raises(StopIteration) as ended:
        steps.send(of_chat(answers[-1]))

    assert ended.value.value is None


def test_without_a_key_checks_of_keys_are_skipped() -> None:
    assert seen(lambda *_: None, "errors/key", key=None)["errors/key"].skipped


def test_what_a_probe_showed_is_kept_as_evidence() -> None:
    found = seen(lambda path, _: (404, NOT_HERE) if path == "/v1/responses" else None, "responses/tool")

    assert [exchange.status for exchange in found["responses/tool"].exchanges] == [404]


def probe_result(steps: Generator[Request, Exchange, str | None], answer: Exchange) -> str | None:
    """Return the result of a probe with the same answer to every request."""
    try:
        while True:
            steps.send(answer)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CAPABILITIES)
def test_a_probe_that_comes_to_no_verdict_enables_nothing(name: str) -> None:
    """A busy server, a gateway or a broken connection shows no capability."""
    refusals = () if name == "key" else (401, 403)  # With these a server says that it wants a key.
    for status in (0, *refusals, 408, 409, 425, 429, 502, 503, 504):
        steps = CAPABILITIES[name].probe(Target(base_url="", model=MODEL, api_key=KEY, mcp="a:1"))
        answer = Exchange(method="POST", url="", request_headers={}, request_body=b"", status=status)
        next(steps)

        result = str(probe_result(steps, answer))
        assert re.search("could not be found out|there is no WebSocket", result), status


def test_what_could_not_be_found_out_is_skipped_with_the_reason() -> None:
    found = seen(lambda path, _: (429, NOT_HERE) if path == "/v1/responses" else None, "responses/tool")

    assert found["responses/tool"].skipped == "could not be found out: status 429"


def test_the_last_lines_count_what_was_skipped_as_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The last lines alone must show that the server was busy and not judged."""
    with serving(reference_but(lambda _, body: (429, NOT_HERE) if "tools" in body else None)) as base_url:
        target = Target(base_url=base_url, model=MODEL, api_key=KEY)
        assert check(target, ["chat/text", "chat/tool"]) == 0
    *_, counts, last = capsys.readouterr().out.splitlines()

    skipped = sum(name.startswith("chat/tool") for name in CHECKS)
    assert counts.endswith(f" {skipped} skipped")
    assert last.startswith(
        f"{skipped} checks were skipped because the server's capabilities could not be determined"
    )


def test_a_failure_at_a_right_request_is_no_excuse() -> None:
    """The scenario runs nevertheless, and reports the failure."""
    found = seen(lambda path, _: (500, NOT_HERE) if path == "/v1/responses" else None, "responses/tool")

    assert found["responses/tool"].skipped is None


def test_a_server_that_is_busy_for_a_moment_is_not_accused_of_ignoring_an_extension() -> None:
    """The server ignores `structured_outputs`, but its answer to the probe was that it is busy."""

    def changes(_: str, body: dict[str, Any]) -> Any:
        if body.get("structured_outputs") == {"regex": 5}:
            return 429, NOT_HERE
        return (200, {"choices": [{"message": {"content": "No."}}]}) if "structured_outputs" in body else None

    found = seen(changes, "chat/regex", "errors/bad-regex")

    assert {finding.verdict for one in found.values() for finding in judge(one)} == {"skipped"}


def keyless(models: int) -> Any:
    """Return the reference without a key, with a list of models that is public, missing or busy."""
    inner = application()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/models") and models != 200:
            await send({"type": "http.response.start", "status": models, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
            return
        if scope["type"] != "lifespan":
            headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
            scope = {**scope, "headers": [*headers, (b"authorization", f"Bearer {KEY}".encode())]}
        await inner(scope, receive, send)

    return serve


@pytest.mark.parametrize("models", [200, 404, 405, 429, 500])
def test_a_server_without_a_key_is_not_accused_of_taking_any(models: int) -> None:
    with serving(keyless(models)) as base_url:
        target = Target(base_url=base_url, model=MODEL, api_key=KEY)
        wanted = [SCENARIOS["errors/key"], SCENARIOS["websocket/key"]]
        found = asyncio.run(record(wanted, target))

    assert {one.skipped for one in found} == {"the server requires no key"}


def refusing(chat: int, models: int) -> Any:
    """Return the reference, which answers a wrong key with these statuses."""
    inner = application()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        sent_key = dict(scope.get("headers", ())).get(b"authorization", b"").decode()
        if scope["type"] != "http" or sent_key == f"Bearer {KEY}":
            await inner(scope, receive, send)
            return
        status = models if scope["path"].startswith("/v1/models") else chat
        headers = [(b"content-type", b"application/json"), (b"x-request-id", b"1")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(NOT_HERE).encode()})

    return serve


@pytest.mark.parametrize(("chat", "models"), [(500, 500), (400, 400), (404, 404), (400, 500), (402, 200)])
def test_another_status_for_a_wrong_key_is_reported(chat: int, models: int) -> None:
    with serving(refusing(chat, models)) as base_url:
        target = Target(base_url=base_url, model=MODEL, api_key=KEY)
        [found] = asyncio.run(record([SCENARIOS["errors/key"]], target))

    assert found.skipped is None
    assert {one.check: one.verdict for one in judge(found)}["errors/key/refused"] == "fail"


def test_refusing_the_right_key_in_the_same_way_shows_nothing_of_keys() -> None:
    """For example a server with only the Responses API and without keys."""
    found = seen(lambda path, _: (404, NOT_HERE) if "responses" not in path else None, "errors/key")

    assert found["errors/key"].skipped == "could not be found out: status 404, with a wrong key"


@pytest.mark.parametrize("body", [{"id": "x", "object": "wrong", "choices": []}, "text", {"choices": [{}]}])
def test_an_answer_to_reasoning_that_cannot_be_read_is_judged(body: Any) -> None:
    changes = lambda _, request: (200, body) if request.get("reasoning_effort") else None  # noqa: E731

    found = seen(changes, "chat/reasoning")["chat/reasoning"]

    assert found.skipped is None
    assert "fail" in {finding.verdict for finding in judge(found)}


@pytest.mark.parametrize(("right", "skipped"), [(None, None), (500, "could not be found out: status 500")])
def test_who_fails_at_what_is_no_regular_expression_knows_the_field(
    right: int | None, skipped: str | None
) -> None:
    def changes(_: str, body: dict[str, Any]) -> Any:
        if body.get("structured_outputs") == {"regex": 5}:
            return 500, NOT_HERE
        return (right, NOT_HERE) if right is not None and "structured_outputs" in body else None

    assert seen(changes, "errors/bad-regex")["errors/bad-regex"].skipped == skipped


def test_a_key_is_seen_where_the_list_of_models_is_open() -> None:
    models = {"object": "list", "data": []}
    found = seen(lambda path, _: (200, models) if path == "/v1/models" else None, "errors/key")

    assert {finding.verdict for finding in judge(found["errors/key"])} == {"pass"}


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ((401, 401), "pass"),
        ((400, 401), "pass"),
        ((401, 400), "fail"),
        ((200, 401), "fail"),
        ((401, 200), "fail"),
    ],
)
def test_an_empty_header_may_be_called_malformed(statuses: tuple[int, int], verdict: str) -> None:
    """Gateways do this; a wrong key must still give 401."""
    every = transcripts()["errors/key"].exchanges
    exchanges = [changed(one, status=status) for one, status in zip(every, statuses, strict=True)]

    found = {one.check: one.verdict for one in judge(Transcript(scenario="errors/key", exchanges=exchanges))}

    assert found["errors/key/refused"] == verdict


def test_an_operation_that_does_not_know_the_model_is_not_there_for_it() -> None:
    unknown = {"error": {**NOT_HERE["error"], "code": "model_not_found"}}
    found = seen(lambda path, _: (404, unknown) if path == "/v1/completions" else None, "completions/stop")

    assert "does not know the model" in str(found["completions/stop"].skipped)


def test_every_capability_is_needed_by_somebody() -> None:
    assert {name for found in SCENARIOS.values() for name in found.needs} == set(CAPABILITIES)


def test_a_scenario_cannot_need_an_unknown_capability() -> None:
    with pytest.raises(ValueError, match="no such capability is registered"):
        scenario("no/such", "Nothing", needs=("luck",))(SCENARIOS["chat/text"].steps)


def test_a_forced_call_that_is_not_made_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    """If the server accepts `required` and returns text, the rule fails, and dependent checks are untestable."""
    message = {"role": "assistant", "content": "No.", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
    text = {**head, "choices": [choice], "usage": usage}

    with serving(
        reference_but(lambda _, body: (200, text) if body.get("tool_choice") == "required" else None)
    ) as url:
        target = Target(base_url=url, model=MODEL, api_key=KEY)
        assert check(target, ["chat/tool-required/called"]) == 1
        assert check(target, ["chat/tool-required/arguments"]) == 1

    assert "untestable chat/tool-required/arguments" in capsys.readouterr().out


def test_there_are_enough_checks_of_streams() -> None:
    """Checks about streams, by their id or rules."""
    of_streams = [
        name
        for name, found in CHECKS.items()
        if "stream" in name or any(rule.startswith(("SSE", "CS-", "RS-")) for rule in found.rules)
    ]

    assert len(of_streams) >= 200
