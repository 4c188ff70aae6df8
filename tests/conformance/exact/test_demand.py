"""Expected answers of `plumbline exact` and their comparison, without a server."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from plumbline_conformance.exact import scripts
from plumbline_conformance.exact.answer import ReceivedAnswer, ReceivedCall, answer_of
from plumbline_conformance.exact.demand import Reads, cut_short, demanded, misses, stopped, unlike
from plumbline_conformance.exact.scripts import Script, ScriptSet
from plumbline_conformance.transcript.exchange import Exchange


def read_set(*scripts: Any, **more: Any) -> ScriptSet:
    return msgspec.convert({"scripts": scripts, **more}, ScriptSet)


def test_the_first_stop_sequence_that_is_complete_ends_an_answer() -> None:
    wanted = ReceivedAnswer(content="one two three", finish="stop")

    assert stopped(wanted, ("two three", "wo")).content == "one t"
    assert stopped(wanted, ("o", "two", "wo t")).content == ""
    assert stopped(wanted, ("wo", "two")).content == "one "
    assert stopped(wanted, ("four", "")) == wanted


def test_a_stream_is_compared_by_its_content() -> None:
    """JSON has many spellings, and white space beside markup is ignored."""
    script = Script(prompt="a", output="b")
    whole = ReceivedAnswer(content="b", calls=(ReceivedCall("c", '{"x": 1e10, "y": [1.0]}'),))
    other = ReceivedAnswer(content="b\n", calls=(ReceivedCall("c", '{"y":[1],"x":10000000000}'),))
    wrong = ReceivedAnswer(content="b", calls=(ReceivedCall("c", '{"y":[1],"x":1.5}'),))

    assert not [*unlike(script, "chat", "whole", whole, other, exact=False)]
    assert [*unlike(script, "chat", "whole", whole, other, exact=True)]
    assert [*unlike(script, "chat", "whole", whole, wrong, exact=False)]


def test_white_space_counts_in_a_cut_answer_only_where_nothing_was_read() -> None:
    script = Script(prompt="a", output="b")
    wanted, got = ReceivedAnswer(content="b c"), ReceivedAnswer(content="\n\nb ", finish="length")

    assert not [*cut_short(script, "chat", wanted, got, exact=False)]
    assert [miss.facet for miss in cut_short(script, "chat", wanted, got, exact=True)] == ["content"]


def test_numbers_are_compared_by_value() -> None:
    found = read_set(
        {
            "prompt": "a",
            "output": "<tool_call>",
            "message": {"tool_calls": [{"name": "c", "arguments": {"x": 1.0}}]},
        }
    )
    wanted = demanded(found, found.scripts[0], "chat", Reads(thinking=True, calls=True))
    assert wanted is not None

    def wrong(arguments: str) -> bool:
        got = ReceivedAnswer(calls=(ReceivedCall("c", arguments),), finish="tool_calls")
        return bool([*misses(found.scripts[0], "chat", "whole", wanted, got, exact=False)])

    assert not wrong('{"x":1}')
    assert not wrong('{"x":1.0}')
    assert wrong('{"x":true}')
    assert wrong('{"x":"1"}')


def test_of_control_tokens_nothing_is_demanded() -> None:
    found = read_set(
        {"prompt": "a", "output": "<|x|>b"}, {"prompt": "b", "output": "<x>b"}, special=["<|x|>"]
    )
    reads = Reads(thinking=False, calls=False)

    assert demanded(found, found.scripts[0], "completions", reads) is None
    assert demanded(found, found.scripts[1], "completions", reads) == ReceivedAnswer(
        content="<x>b", finish="stop"
    )


def test_a_set_that_names_no_markers_has_those_of_the_scripts() -> None:
    assert read_set().markers == msgspec.convert({"scripts": []}, scripts.ScriptSet).markers


def test_a_response_is_read_alike_in_one_piece_and_streamed() -> None:
    """Arguments may come without a delta, and a summary beside the thought is not a second thought."""
    thought = {"type": "reasoning", "content": [{"text": "long"}], "summary": [{"text": "short"}]}
    called = {"type": "function_call", "name": "c", "arguments": "{}"}
    response = {"status": "completed", "output": [thought, called]}
    events = [
        {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "long"},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "short"},
        {"type": "response.output_item.added", "output_index": 1, "item": called},
        {"type": "response.function_call_arguments.done", "output_index": 1, "arguments": "{}"},
        {"type": "response.completed", "response": response},
    ]
    streamed = "".join(f"data: {json.dumps(event)}\n\n" for event in events)

    def read(stream: bool, body: str) -> ReceivedAnswer | None:
        asked = json.dumps({"stream": stream}).encode()
        exchange = Exchange(
            method="POST",
            url="",
            request_headers={},
            request_body=asked,
            status=200,
            frames=[(0.0, body.encode())],
        )
        return answer_of("responses", exchange)

    expected = ReceivedAnswer(reasoning="long", calls=(ReceivedCall("c", "{}"),), finish="tool_calls")
    assert read(False, json.dumps(response)) == expected
    assert read(True, streamed) == expected
