"""`plumbline diff` compares what does not depend on the server if the weights are the same."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from example_servers.asgi import with_bodies
from example_servers.good_server import MODEL, app, serving, transcripts
from hypothesis import given
from hypothesis import strategies as st

from plumbline_conformance.cli import main
from plumbline_conformance.differential import Probe, compare, probes
from plumbline_conformance.differential.answer import ComparedAnswer, answer_of
from plumbline_conformance.suite.contract import rule_of_difference, rules
from plumbline_conformance.transcript.exchange import Exchange

Send = Any


@pytest.fixture(scope="module", autouse=True)
def decoders() -> None:
    """msgspec makes a type's decoder at its first use, which two servers in one process must not do at once."""
    transcripts()


answers = st.builds(
    ComparedAnswer,
    status=st.sampled_from([200, 400]),
    error=st.none() | st.dictionaries(st.sampled_from(["type", "code"]), st.text(max_size=3)),
    text=st.none() | st.text(max_size=5),
    finish=st.lists(st.sampled_from(["stop", "length"]), max_size=2),
    usage=st.none() | st.dictionaries(st.just("total_tokens"), st.integers(0, 3)),
    logprobs=st.none() | st.lists(st.tuples(st.text(max_size=2), st.floats(-3, 0)), max_size=3),
    grammar=st.lists(st.sampled_from(["role", "content"]), max_size=3),
)
some = st.sampled_from(probes(20))


@given(some, answers)
def test_an_answer_is_like_itself(probe: Probe, answer: ComparedAnswer) -> None:
    assert list(compare(probe, answer, answer)) == []


@given(some, answers, answers)
def test_differences_do_not_depend_on_who_is_first(
    probe: Probe, a: ComparedAnswer, b: ComparedAnswer
) -> None:
    there = [(found.rule, found.facet, found.a, found.b) for found in compare(probe, a, b)]
    back = [(found.rule, found.facet, found.b, found.a) for found in compare(probe, b, a)]

    assert there == back
    assert all(rule in rules() for rule, _, _, _ in there)


@given(some, st.floats(-5, 0), st.floats(-5, 0))
def test_logprobs_may_differ_by_the_tolerance(probe: Probe, one: float, other: float) -> None:
    a, b = (ComparedAnswer(status=200, text="x", logprobs=[("x", value)]) for value in (one, other))

    assert bool(list(compare(probe, a, b, tolerance=0.1))) == (abs(one - other) > 0.1)


def test_a_logprob_that_is_no_number_is_a_difference() -> None:
    a, b = (ComparedAnswer(status=200, text="x", logprobs=[("x", value)]) for value in (-1.0, math.nan))

    assert [found.facet for found in compare(probes(1)[0], a, b)] == ["logprobs"]


@given(st.integers())
def test_a_seed_gives_the_same_requests(seed: int) -> None:
    assert probes(5, seed) == probes(5, seed)
    assert len({probe.name for probe in probes(5, seed)}) == len(probes(5, seed))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["choices", "delta", "message", "output", "logprobs", "content", "usage"]),
                inner,
            )
        ),
    ),
    some,
)
def test_answers_of_any_shape_are_read_or_not(value: object, probe: Probe) -> None:
    body = json.dumps(value).encode()
    if probe.stream:
        body = b"data: " + body + b"\n\n"
    exchange = Exchange(
        method="POST", url="", request_headers={}, request_body=b"", status=200, frames=[(0, body)]
    )

    answer_of(probe, exchange)


def test_a_server_is_like_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(app()) as a, serving(app()) as b:
        assert main(["compare", a, b, "--model", MODEL, "--examples", "25"]) == 0

    out = capsys.readouterr().out
    assert out.endswith("0 unclear: no difference\n"), out


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "facet"),
    [
        (lambda body: body.replace(b'"stop"', b'"length"'), "finish"),
        (lambda body: body.replace(b'"total_tokens":', b'"total_tokens":1'), "usage"),
        (lambda body: body.replace(b"invalid_request_error", b"BadRequest"), "error"),
        (lambda body: body.replace(b"data: [DONE]\n\n", b""), "grammar"),
        (lambda body: body.replace(b"21", b"22"), "text"),
        (lambda body: body.replace(b'"logprob":-0.69', b'"logprob":-0.99'), "logprobs"),
    ],
)
def test_each_way_to_differ_is_found_and_grouped(
    change: Any, facet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "d.json"
    with serving(app()) as a, serving(with_bodies(app(), change)) as b:
        assert main(["compare", a, b, "--model", MODEL, "--examples", "25", "--json", str(file)]) == 1

    found = {difference["facet"] for difference in json.loads(file.read_text("utf-8"))["differences"]}
    assert facet in found
    assert f"    {facet}: " in capsys.readouterr().out


def test_servers_that_cannot_be_reached_are_not_alike(capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://127.0.0.1:1/v1"

    assert main(["compare", url, url, "--model", "m", "--examples", "1"]) == 2
    assert "A cannot be reached." in capsys.readouterr().out


@pytest.mark.parametrize("facet", ["text", "finish", "usage", "logprobs", "grammar"])
@pytest.mark.parametrize("surface", ["chat", "completions", "responses"])
def test_every_difference_of_an_answer_has_a_rule(surface: str, facet: str) -> None:
    assert rule_of_difference("diff", surface, facet) in rules()
