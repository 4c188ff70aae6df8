"""A conversation at the terminal keeps what came, and takes back what was refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.chat.conversation import ChatSession, RefusedError
from plumbline.chat.terminal import Terminal, field_value, printable

_CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}


def _stream(deltas: list[dict[str, Any]]) -> bytes:
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks) + b"data: [DONE]\n\n"


def _client(answer: Callable[[dict[str, Any]], httpx2.Response]) -> httpx2.Client:
    transport = httpx2.MockTransport(lambda request: answer(json.loads(request.content)))
    return httpx2.Client(base_url="http://test/v1/", transport=transport)


@given(
    st.lists(
        st.tuples(st.sampled_from(["content", "reasoning_content", "reasoning"]), st.text(max_size=9)),
        max_size=8,
    )
)
def test_the_pieces_are_the_answer(deltas: list[tuple[str, str]]) -> None:
    talk = ChatSession(model="m")
    talk.say("hello")
    with _client(
        lambda _: httpx2.Response(200, content=_stream([{name: text} for name, text in deltas]))
    ) as client:
        pieces = list(talk.answers(client))
    text = "".join(text for name, text in deltas if name == "content")
    assert "".join(piece.text for piece in pieces if piece.kind == "text") == text
    assert "".join(piece.text for piece in pieces if piece.kind == "thinking") == "".join(
        text for name, text in deltas if name != "content"
    )
    # Thinking is not sent back, and a question that got no answer is not asked twice.
    assert [message["content"] for message in talk.messages] == (["hello", text] if text else [])


@given(st.text(max_size=30), st.data())
def test_calls_come_together_from_any_pieces(arguments: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(arguments)))
    parts = [{"index": 0, "function": {"arguments": text}} for text in (arguments[:cut], arguments[cut:])]
    talk = ChatSession(model="m")
    talk.say("look")
    with _client(
        lambda _: httpx2.Response(200, content=_stream([{"tool_calls": [part]} for part in (_CALL, *parts)]))
    ) as client:
        list(talk.answers(client))
    (call,) = talk.calls()
    assert (call["id"], call["function"]) == ("c1", {"name": "look", "arguments": arguments})
    talk.result(call, "seen")
    assert talk.calls() == []


def test_a_stopped_answer_stays_as_far_as_it_came() -> None:
    talk = ChatSession(model="m")
    talk.say("count")
    with _client(
        lambda _: httpx2.Response(200, content=_stream([{"content": "1"}, {"content": "2"}]))
    ) as client:
        answers: Iterator[Any] = talk.answers(client)
        next(answers)
        answers.close()  # type: ignore[attr-defined]
    assert [message["content"] for message in talk.messages] == ["count", "1"]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (httpx2.Response(400, json={"error": {"message": "too hot"}}), "too hot"),
        (httpx2.Response(502, text="<html>"), "the server answered 502"),
        (httpx2.Response(200, content=b'data: {"error": {"message": "gone"}}\n\n'), "gone"),
        (httpx2.Response(200, content=b"data: [[[\n\ndata: 7\n\n"), ""),
    ],
)
def test_a_refused_question_is_taken_back(response: httpx2.Response, reason: str) -> None:
    talk = ChatSession(model="m", fields={"temperature": 9})
    talk.system = "terse"
    talk.say("hello")
    with _client(lambda _: response) as client:
        if reason:
            with pytest.raises(RefusedError, match=reason):
                list(talk.answers(client))
        else:
            assert list(talk.answers(client)) == []
    assert [message["role"] for message in talk.messages] == ["system"]


def test_a_base_model_continues_the_message() -> None:
    def answer(body: dict[str, Any]) -> httpx2.Response:
        if "messages" in body:
            return httpx2.Response(400, json={"error": {"message": "This model has no chat template."}})
        assert body["prompt"] == "Once"
        return httpx2.Response(200, content=b'data: {"choices": [{"index": 0, "text": " upon"}]}\n\n')

    talk = ChatSession(model="m")
    talk.say("Once")
    with _client(answer) as client:
        assert [piece.text for piece in talk.answers(client)] == [" upon"]
    assert [message["content"] for message in talk.messages] == ["Once", " upon"]


@pytest.mark.parametrize("name", ["a.png", "with space.jpg", "ü.webp"])
@pytest.mark.parametrize("written", ["{}", "'{}'", '"{}"'])
def test_a_picture_in_a_message_is_sent(tmp_path: Path, name: str, written: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"picture")
    talk = ChatSession(model="m")
    text = str(path).replace(" ", "\\ ") if written == "{}" else str(path)
    talk.say(f"What is on {written.format(text)} there?")
    parts = talk.messages[0]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url"]
    assert parts[1]["image_url"]["url"].endswith(";base64,cGljdHVyZQ==")


def test_a_path_that_is_no_picture_is_text(tmp_path: Path) -> None:
    talk = ChatSession(model="m")
    talk.say(f"read {tmp_path}/none.png and {tmp_path} and it's 'quoted'")
    assert isinstance(talk.messages[0]["content"], str)


@given(st.text())
def test_no_code_reaches_the_terminal(text: str) -> None:
    shown = printable(text)
    assert not any((ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160 for char in shown)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
    )
)
def test_a_field_is_set_to_the_json_that_is_typed(value: Any) -> None:
    assert field_value(json.dumps(value)) == value


@pytest.mark.parametrize(
    "lines",
    [
        ['"""', "/api/chat returns null", "/bye", '"""'],
        ["/bye\nas a line of what was pasted"],
        ["/api/chat returns null"],
        ["/"],
        ['"""/bye"""'],
    ],
)
def test_only_one_word_after_a_slash_is_a_command(
    lines: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    typed = iter([*lines, "/bye", "never read"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    talk = ChatSession(model="m")
    with _client(lambda _: httpx2.Response(200, content=_stream([{"content": "yes"}]))) as client:
        assert Terminal(talk, client).talk() == 0
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]
    assert "/" in talk.messages[0]["content"]
    assert next(typed) == "never read"
