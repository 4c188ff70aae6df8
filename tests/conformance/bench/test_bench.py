"""Test `plumbline bench`.

Laws:
* what is counted of a stream does not depend on how its bytes are cut;
* an answer that is not whole, or has no end, counts as failed, with the reason, at a bounded cost;
* at most N requests run at a time, and at a rate requests do not wait for answers;
* the same seed asks the same, and no two prompts begin alike.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from array import array
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from example_servers.good_server import KEY, MODEL, serving
from example_servers.reference import application
from hypothesis import given
from hypothesis import strategies as st
from support.models import TOKENIZER, scripted, served
from support.servers.live import live

from plumbline.answer.text.render import Renderer
from plumbline.server.settings import Settings
from plumbline_conformance.bench.dialects import APIS
from plumbline_conformance.bench.load import Load, LoadRun, apply
from plumbline_conformance.bench.page import page
from plumbline_conformance.bench.prompts import Lengths, lengths_of, prompts, read_prompts
from plumbline_conformance.bench.sample import RequestSample, Sender
from plumbline_conformance.bench.summary import bounds_of, percentile, ratio, summarise
from plumbline_conformance.cli import main
from plumbline_conformance.console.options import UnusableInput


def frames(*events: dict[str, Any], end: str = "") -> bytes:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode() + end.encode()


DONE = "data: [DONE]\n\n"
STREAMS = {
    "chat": frames(
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"content": "é\n\n"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}},
        end=DONE,
    ),
    "completions": frames(
        {"choices": [{"text": "a"}]},
        {"choices": [{"text": ""}]},
        {"choices": [{"text": "b"}], "usage": {"prompt_tokens": 5, "completion_tokens": 7}},
        end=DONE,
    ),
    "responses": frames(
        {"type": "response.created", "response": {"usage": None}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.reasoning_text.delta", "delta": "b"},
        {"type": "response.reasoning_summary_text.delta", "delta": "b"},
        {"type": "response.completed", "response": {"usage": {"input_tokens": 5, "output_tokens": 7}}},
    ),
    "messages": frames(
        {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 0}}},
        {"type": "ping"},
        {"type": "content_block_delta", "delta": {"text": "a"}},
        {"type": "content_block_delta", "delta": {"text": "b"}},
        {"type": "message_delta", "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ),
}


async def answered(
    api: str, pieces: Iterable[bytes], status: int = 200, seconds: float = 60.0
) -> RequestSample:
    """Read a stream that arrives in these pieces."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
            await asyncio.sleep(0)

    async def handle(request: httpx2.Request) -> httpx2.Response:
        asked = json.loads(request.content)
        assert (asked["model"], asked["stream"]) == ("m", True)
        return httpx2.Response(status, content=body())

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(handle)) as client:
        return await Sender(client, "http://server/v1", APIS[api], {"model": "m"}, seconds).send("hi", 7)


@pytest.mark.parametrize("api", APIS)
@given(st.data())
def test_counts_do_not_depend_on_how_the_stream_is_cut(api: str, data: st.DataObject) -> None:
    stream = STREAMS[api].replace(b"\n", data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"])))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=8)))
    pieces = [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]
    sample = asyncio.run(answered(api, pieces))
    assert sample.error == ""
    assert (sample.pieces, sample.prompt_tokens, sample.output_tokens) == (2, 5, 7)
    assert len(sample.gaps) == 1
    assert sample.sent <= sample.first <= sample.last <= sample.ended


@pytest.mark.parametrize("api", APIS)
@given(st.data())
def test_an_answer_that_breaks_off_has_failed(api: str, data: st.DataObject) -> None:
    stream = STREAMS[api]
    whole = len(stream) - len(stream.split(b"\n\n")[-2]) - 2
    sample = asyncio.run(answered(api, [stream[: data.draw(st.integers(0, whole))]]))
    assert sample.error


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"error": {"message": "no such model"}}', 404, "HTTP 404: .*no such model"),
        (frames({"error": {"message": "out of memory"}}, end=DONE), 200, "out of memory"),
        (b"data: {nonsense\n\n", 200, "malformed|invalid"),
        (b"data: [1]\n\n", 200, "not a JSON object"),
        (b"", 200, "before the answer was complete"),
        (b"x" * 100_000, 500, "HTTP 500"),
        (b"data: " + b"[" * 100_000 + b"\n\n", 200, "nested too deeply"),
        (frames({"error": {"message": "\x1b[2J"}}, end=DONE), 200, "u001b"),
        (b"\x1b[2J", 404, r"HTTP 404: \\x1b"),
    ],
)
async def test_failures_have_their_reason(body: bytes, status: int, words: str) -> None:
    sample = await answered("chat", [body], status)
    assert len(sample.error) <= 300
    assert re.search(words, sample.error)


@pytest.mark.parametrize(
    ("piece", "status", "words"),
    [
        (b": wait\n\n", 200, "more than 0.05 seconds"),
        (STREAMS["chat"].split(b"\n\n")[1] + b"\n\n", 200, "more than 100 pieces"),
        (b"x" * 2**20, 200, "no end"),
        (b"x" * 2**20, 500, "HTTP 500: x"),
    ],
)
async def test_an_answer_without_an_end_has_failed(
    piece: bytes, status: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plumbline_conformance.bench.sample._MOST_PIECES", 100)
    seconds = 0.05 if piece.startswith(b":") else 60.0
    sample = await asyncio.wait_for(answered("chat", itertools.repeat(piece), status, seconds), 60)
    assert re.search(words, sample.error)
    assert not sample.gaps


def test_a_long_event_costs_as_much_in_small_pieces() -> None:
    stream = frames({"choices": [{"delta": {"content": "a" * 2**20}}]}, end=DONE)
    pieces = [
        stream[place : place + 32] for place in range(0, len(stream), 32)
    ]  # Took minutes when quadratic.
    assert asyncio.run(answered("chat", pieces)).pieces == 1


async def test_counts_that_no_answer_can_have_are_not_believed() -> None:
    for count in (-1, 10**400, True, "7"):
        event = frames(
            {"choices": [{"delta": {"content": "a"}}], "usage": {"completion_tokens": count}}, end=DONE
        )
        assert (await answered("chat", [event])).tokens == 1


@given(st.integers(1, 5), st.integers(1, 12))
def test_at_most_as_many_requests_run_as_are_asked_for(concurrency: int, requests: int) -> None:
    running = most = 0

    async def send(prompt: Any, tokens: int) -> RequestSample:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return RequestSample(sent=0.0)

    run = asyncio.run(apply(Load(concurrency), send, itertools.repeat(("p", 1)), requests, 0))
    assert len(run.samples) == requests
    assert most == min(concurrency, requests)


async def test_at_a_rate_requests_do_not_wait_for_answers() -> None:
    all_sent = asyncio.Event()
    sent = 0

    async def send(prompt: Any, tokens: int) -> RequestSample:
        nonlocal sent
        sent += 1
        if sent == 20:
            all_sent.set()
        await all_sent.wait()  # No answer comes before the last request.
        return RequestSample(sent=0.0)

    run = await asyncio.wait_for(
        apply(Load(rate=10_000.0), send, itertools.repeat(("p", 1)), 20, seed=1), timeout=30
    )
    assert len(run.samples) == 20


def test_the_same_seed_asks_the_same_and_no_two_prompts_begin_alike() -> None:
    def first(seed: int) -> list[tuple[Any, int]]:
        return list(itertools.islice(prompts(seed, Lengths(3, 9), Lengths(1, 4), None), 50))

    assert first(1) == first(1)
    beginnings = {prompt.split()[0] for seed in (1, 2) for prompt, _ in first(seed)}
    assert len(beginnings) == 100
    assert all(3 <= len(prompt.split()) <= 9 and 1 <= tokens <= 4 for prompt, tokens in first(1))


def test_prompts_of_a_file_are_texts_and_conversations(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "b"}]
    lines = ["plain text", '"a \\n b"', json.dumps({"messages": messages}), json.dumps({"prompt": "c"}), "[x"]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join([*lines, ""]))
    assert read_prompts(path) == ["plain text", "a \n b", messages, "c", "[x"]
    for wrong in ("", "\n", '{"x": 1}', '{"prompt": 3}'):
        path.write_text(wrong)
        with pytest.raises(UnusableInput, match=r"prompts\.jsonl"):
            read_prompts(path)
    with pytest.raises(UnusableInput, match="cannot be read"):
        read_prompts(tmp_path / "missing")


@pytest.mark.parametrize("text", ["", "x", "0", "5-4", "1-", "-1", "9" * 9, "1.5"])
def test_invalid_lengths_are_refused(text: str) -> None:
    with pytest.raises(UnusableInput, match="--prompt-words"):
        lengths_of(text, "--prompt-words")


@pytest.mark.parametrize(
    "texts", [["ttft"], ["ttft:x"], ["ttft:-1"], ["ttft:nan"], ["x:1"], ["ttft:1", "ttft:2"]]
)
def test_invalid_bounds_are_refused(texts: list[str]) -> None:
    with pytest.raises(UnusableInput, match="--goodput"):
        bounds_of(texts)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0, 1))
def test_percentiles_lie_within_the_values_and_grow(values: list[float], part: float) -> None:
    values.sort()
    assert percentile(values, 0) == values[0]
    assert percentile(values, 1) == values[-1]
    found = percentile(values, part)
    assert values[0] - 1e-6 <= found <= values[-1] + 1e-6
    assert percentile(values, part / 2) <= found + 1e-6


def sample(first: float, tokens: int, error: str = "") -> RequestSample:
    """An answer whose tokens come 10 ms apart."""
    last = first + 0.01 * (tokens - 1)
    return RequestSample(
        sent=0.0,
        first=first,
        last=last,
        ended=last,
        pieces=tokens,
        gaps=array("d", [0.01] * (tokens - 1)),
        error=error,
    )


def test_a_point_counts_only_whole_answers() -> None:
    runs = [
        LoadRun([sample(0.1, 11), sample(0.3, 11), sample(0.1, 5, "broken")], 2.0, 0.1),
        LoadRun([sample(0.2, 11)], 1.0, 0.9),
    ]
    point = summarise("s", "l", runs, bounds_of(["ttft:250", "tpot:20"]))
    assert (point.requests, point.failed, point.error) == (4, 1, "broken")
    assert point.rounds == [11.0, 11.0]
    assert point.requests_per_second == 1.0
    assert point.goodput == 0.5
    assert point.time_to_first_token is not None
    assert point.time_to_first_token.p50 == pytest.approx(200)
    assert point.time_per_output_token is not None
    assert point.time_per_output_token.p99 == pytest.approx(10)
    assert ratio(point, point) == (1.0, 1.0, 1.0)
    nothing = summarise("s", "l", [LoadRun([sample(0.1, 5, "broken")], 1.0, 0.0)], {})
    assert (nothing.time_to_first_token, nothing.goodput, ratio(point, nothing)) == (None, None, None)
    assert "<script" not in page([point, nothing], "<script>")


def test_an_answer_in_one_piece_has_no_time_per_token() -> None:
    whole = RequestSample(sent=0.0, first=1.0, last=1.0, ended=1.0, pieces=1, output_tokens=50)
    assert summarise("s", "l", [LoadRun([whole], 1.0, 0.0)], {}).time_per_output_token is None


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(application()) as base_url:
        yield base_url


@pytest.mark.parametrize("api", ["chat", "completions", "responses"])
def test_two_servers_are_compared(
    api: str, server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, html = tmp_path / "r.json", tmp_path / "r.html"
    options = ["--api", api, "--concurrency", "2", "--requests", "3", "--rounds", "2", "--api-key", KEY]
    options += ["--goodput", "ttft:60000", "--json", str(report), "--html", str(html), "--model", MODEL]
    assert main(["bench", server, server, *options]) == 0
    printed = capsys.readouterr().out
    assert "A: 2 at a time" in printed
    assert "times the tokens per second of B" in printed
    points = json.loads(report.read_text())["points"]
    assert [point["requests"] for point in points] == [6, 6]
    assert all(point["goodput"] == 1.0 and point["output_tokens"] >= 1 for point in points)
    assert KEY not in report.read_text() + html.read_text() + printed
    assert "http" not in html.read_text().replace(server, "").replace("http-equiv", "")


def test_a_server_that_does_not_run_is_to_be_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "http://127.0.0.1:1/v1"]) == 2
    assert "URL http://127.0.0.1:1/v1 does not answer" in (printed := capsys.readouterr().err)
    assert "Start the server" in printed


def test_a_base_model_is_measured_with_completions(capsys: pytest.CaptureFixture[str]) -> None:
    with live(lambda: served(scripted(), renderer=Renderer(TOKENIZER, None)), Settings()) as base:
        assert main(["bench", f"{base.url}/v1"]) == 2
        assert "Measure a base model with --api completions." in capsys.readouterr().err
        load = ("--concurrency", "1", "--requests", "1", "--output-tokens", "4")
        assert main(["bench", f"{base.url}/v1", "--api", "completions", *load]) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--api-key", "wrong"], "lists no models|did not answer"),
        (["--model", "a", "--model", "b"], "--model is given more often"),
        (["--body", "[]"], "--body"),
        (["--concurrency", "5000"], "--concurrency"),
        (["--rate", "1e9"], "do not fit in memory"),
        (["--requests", "1000000", "--output-tokens", "64"], "do not fit in memory"),
        (["--requests", "1000000", "--rounds", "2", "--output-tokens", "1"], "do not fit in memory"),
        (["--json", "/nowhere/x.json"], "does not exist"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    options: list[str], words: str, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", server, *options]) == 2
    printed = capsys.readouterr().err
    assert re.search(words, printed)
    assert printed.startswith("plumbline: ")
    assert printed.count("\n") == 1
