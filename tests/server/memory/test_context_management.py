"""A context that is too long is compacted before the answer (ST-15).

- The answer begins with the compaction, and the model sees the summary and the last message of the user.
- A later request has what the compaction stands for in place of all before it, however it continues.
- A summary that fails, or that the operator does not want, leaves nothing out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support.models import TOKENIZER, echo, scripted, served, text_chunks
from support.servers.asgi import Answer, Server, serving

from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.protocols.responses.compaction import SUMMARY_REQUEST

PATH = "/v1/responses"
SUMMARY = "Ada; the bolt has 41 mm."
LONG = "Which bolt? " * 95
EARLIER: list[dict[str, Any]] = [
    {"role": "user", "content": "My name is Ada."},
    {"role": "assistant", "content": "Hello, Ada."},
    {"role": "user", "content": LONG},
    {"role": "assistant", "content": "The one of 41 mm."},
]
LAST = {"role": "user", "content": "What is my name?"}
TRIGGER = {"type": "compaction_trigger"}
MANAGED = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}


class Model:
    """Writes a summary where it is asked for one, and otherwise repeats the user."""

    def __init__(self, summary: str = SUMMARY) -> None:
        self.prompts: list[str] = []
        """Of the answers."""
        self.num_summaries = 0
        self._summary = summary

    def __call__(self, request: GenerateRequest) -> Iterable[TokenChunk]:
        """Play one request."""
        prompt = TOKENIZER.decode(request.prompt_token_ids)
        if SUMMARY_REQUEST in prompt:
            self.num_summaries += 1
            return text_chunks(request, self._summary)
        self.prompts.append(prompt)
        return echo(request)


async def create(server: Server, **fields: Any) -> dict[str, Any]:
    answer = await server.post(PATH, {"model": "test-model", **MANAGED, **fields})
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def sent(answer: Answer) -> list[dict[str, Any]]:
    return [event.json for event in answer.events if event.data != "[DONE]"]


def types(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


async def test_a_long_context_is_summarised_before_the_answer() -> None:
    model = Model()
    async with serving(served(scripted(model)), compaction="summary") as server:
        first = await create(server, input=[*EARLIER, LAST], instructions="Be brief.")
        again = await create(
            server, input=[*EARLIER, LAST, *first["output"], {"role": "user", "content": "Sure?"}]
        )

    assert types(first) == ["compaction", "message"]
    assert types(again) == ["message"]
    assert model.num_summaries == 1
    for prompt in model.prompts:
        assert SUMMARY in prompt
        assert "What is my name?" in prompt
        assert "Hello, Ada." not in prompt
        assert "Which bolt?" not in prompt
    assert "Be brief." in model.prompts[0]
    assert "Sure?" in model.prompts[1]


@pytest.mark.parametrize("background", [False, True])
async def test_a_stored_chain_goes_on_from_the_compaction(tmp_path: Path, background: bool) -> None:
    model = Model()
    async with serving(served(scripted(model)), compaction="summary", store=str(tmp_path / "s.db")) as server:
        fields = {"input": [*EARLIER, LAST], "stream": True, "background": background}
        events = sent(await server.post(PATH, {"model": "test-model", **MANAGED, **fields}))
        name = events[-1]["response"]["id"]
        replayed = sent(await server.get(f"{PATH}/{name}?stream=true"))
        await create(server, previous_response_id=name, input="Sure?")

    assert replayed == events
    places = [(event["type"], event["item"]["type"]) for event in events if event.get("output_index") == 0]
    assert places == [
        ("response.output_item.added", "compaction"),
        ("response.output_item.done", "compaction"),
    ]
    assert types(events[-1]["response"]) == ["compaction", "message"]
    assert SUMMARY in model.prompts[1]
    assert "You said: " in model.prompts[1]
    assert "Sure?" in model.prompts[1]
    assert "Which bolt?" not in model.prompts[1]


async def test_a_short_context_stays_as_it_is() -> None:
    model = Model()
    async with serving(served(scripted(model)), compaction="summary") as server:
        assert types(await create(server, input=[EARLIER[0], LAST])) == ["message"]
    assert model.num_summaries == 0


@pytest.mark.parametrize(
    ("mode", "summary"), [("lossless", SUMMARY), ("auto", SUMMARY), ("summary", "x " * 999), ("summary", " ")]
)
async def test_without_a_good_summary_nothing_is_left_out(mode: str, summary: str) -> None:
    """The test model is small, so `auto` is `lossless` for it."""
    model = Model(summary)
    async with serving(served(scripted(model)), compaction=mode) as server:
        first = await create(server, input=[*EARLIER, LAST])
        await create(server, input=[*first["output"][:1], {"role": "user", "content": "Sure?"}])

    assert model.num_summaries == (mode == "summary") * len(model.prompts)
    for prompt in model.prompts:
        assert "My name is Ada." in prompt
        assert "41 mm" in prompt
        assert "What is my name?" in prompt


async def test_compacting_by_request_summarises_too() -> None:
    model = Model()
    async with serving(served(scripted(model)), compaction="summary") as server:
        answer = await server.post(f"{PATH}/compact", {"model": "test-model", "input": [*EARLIER, LAST]})
        await create(server, input=[*answer.json["output"], {"role": "user", "content": "Sure?"}])

    assert answer.json["usage"]["output_tokens"] > 0
    assert SUMMARY in model.prompts[0]
    assert "What is my name?" in model.prompts[0]
    assert "Hello, Ada." not in model.prompts[0]


async def test_an_unknown_way_is_refused_by_name() -> None:
    async with serving(served(scripted())) as server:
        answer = await server.post(
            PATH, {"model": "test-model", "input": "Hi", "context_management": [{"type": "forget"}]}
        )

    assert (answer.status, answer.error["param"]) == (400, "context_management[0].type")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_trigger_at_the_end_is_answered_by_the_compaction_alone(stream: bool) -> None:
    model = Model()
    async with serving(served(scripted(model)), compaction="summary") as server:
        body = {"model": "test-model", "input": [*EARLIER, LAST, TRIGGER], "stream": stream}
        answer = await server.post(PATH, body)
        first = sent(answer)[-1]["response"] if stream else answer.json
        await create(server, input=[*first["output"], {"role": "user", "content": "Sure?"}])

    assert (first["status"], types(first)) == ("completed", ["compaction"])
    assert first["usage"]["output_tokens"] > 0
    assert (model.num_summaries, len(model.prompts)) == (1, 1)
    assert SUMMARY in model.prompts[0]
    assert "Hello, Ada." not in model.prompts[0]


@pytest.mark.parametrize("background", [False, True])
async def test_a_stored_chain_goes_on_from_a_triggered_compaction(tmp_path: Path, background: bool) -> None:
    """The trigger is no item of the input: it asks for something and says nothing."""
    model = Model()
    async with serving(
        served(scripted(model)), compaction="lossless", store=str(tmp_path / "s.db")
    ) as server:
        first = await create(server, input=[*EARLIER, LAST], context_management=None)
        fields = {"input": [TRIGGER], "previous_response_id": first["id"], "stream": True}
        events = sent(await server.post(PATH, {"model": "test-model", **fields, "background": background}))
        name = events[-1]["response"]["id"]
        items = (await server.get(f"{PATH}/{name}/input_items")).json["data"]
        await create(server, previous_response_id=name, input="Sure?")

    assert types(events[-1]["response"]) == ["compaction"]
    assert "compaction_trigger" not in [item["type"] for item in items]
    assert model.num_summaries == 0
    for words in ("My name is Ada.", "41 mm", "What is my name?", "Sure?"):
        assert words in model.prompts[1]


@pytest.mark.parametrize(
    ("items", "where"),
    [
        ([TRIGGER], "input"),
        ([TRIGGER, LAST], "input[0].type"),
        ([LAST, TRIGGER, TRIGGER], "input[1].type"),
    ],
)
async def test_a_trigger_comes_last_and_has_something_to_compact(
    items: list[dict[str, Any]], where: str
) -> None:
    async with serving(served(scripted())) as server:
        answer = await server.post(PATH, {"model": "test-model", "input": items})

    assert (answer.status, answer.error["param"]) == (400, where)


async def test_a_summary_has_the_priority_and_the_salt_of_its_request() -> None:
    """With another salt, a request could learn from `cached_tokens` what this conversation holds."""
    seen: list[tuple[str, int, str | None]] = []

    def play(request: GenerateRequest) -> Iterable[TokenChunk]:
        summarises = SUMMARY_REQUEST in TOKENIZER.decode(request.prompt_token_ids)
        seen.append(("summary" if summarises else "answer", request.priority, request.cache_salt))
        return text_chunks(request, SUMMARY) if summarises else echo(request)

    async with serving(served(scripted(play)), compaction="summary") as server:
        await create(server, input=[*EARLIER, LAST], priority=3, cache_salt="mine")
        await create(server, input=[*EARLIER, LAST, TRIGGER], priority=3, cache_salt="mine")
    assert seen == [(kind, 3, "mine") for kind in ("summary", "answer", "summary")]
