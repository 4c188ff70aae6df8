"""One conversation, sent through chat, Responses and Messages, is one conversation for the model.

Laws:
    1. The messages of a drawn conversation (instructions, texts in one or several parts, images, thinking, calls alone,
       between texts and several at once, results of any text) and its tools are the same in each API, and so is then
       the prompt of every chat template.
    2. Content that is a string is content of one text part.

Neighbouring texts of one message are left out: Messages makes lines of them in every template, the other APIs where a
template reads strings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.about import about

from plumbline.answer.turn import ChatPrompt, MediaReference, Message
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.messages import CreateMessageRequest
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.decode import decode, encode
from plumbline.server.protocols.chat.reader import read_chat
from plumbline.server.protocols.messages.reader import read_message
from plumbline.server.protocols.responses.reader import read_response

from .message_requests import SEALER, Json
from .minimal_requests import DEFAULTS

IMAGE = "iVBORw0KGgo="
URL = f"data:image/png;base64,{IMAGE}"
TEXTS = st.sampled_from(
    ["Hi", "  spaced  ", "two\nlines", "é €", "<b>x</b>", "null", '{"a": 1}', "`x`\n\n", "Error: "]
)
RESULTS = TEXTS | st.just("")
ARGUMENTS: st.SearchStrategy[Json] = st.dictionaries(
    st.sampled_from(["city", "days", "", "é"]),
    st.sampled_from(["Paris", 'a "q" \\ \n', 3, -1.5, True, None, [1, None], {"a": {}}]),
    max_size=2,
)
NAMES = st.sampled_from(["get_weather", "ping"])
TOOLS: list[tuple[str, str, Json]] = [
    ("get_weather", "Weather", {"type": "object", "properties": {"city": {"type": "string"}}}),
    ("ping", "Ping", {"type": "object", "properties": {}}),
]


@dataclass(frozen=True)
class Asked:
    """What a user sends: texts, and None for an image."""

    parts: list[str | None]


@dataclass(frozen=True)
class Said:
    """What the model answered, also behind its calls, and the results of these."""

    thought: str
    text: str
    calls: list[tuple[str, Json, str]]
    late: str = ""


def _said(last: bool) -> st.SearchStrategy[Said]:
    calls = st.lists(st.tuples(NAMES, ARGUMENTS, RESULTS), min_size=1, max_size=3)
    calling = st.builds(Said, st.just("") | TEXTS, st.just("") | TEXTS, calls, st.just("") | TEXTS)
    return st.builds(Said, st.just("") | TEXTS, TEXTS, st.just([])) if last else calling


def _asked(parts: list[str | None]) -> Asked:
    """Leave out texts that follow a text."""
    return Asked(
        [part for part, before in zip(parts, [None, *parts], strict=False) if None in (part, before)]
    )


_questions = st.lists(TEXTS | st.none(), min_size=1, max_size=3).map(_asked)
_turns = st.tuples(
    _questions,
    st.lists(_said(last=False), max_size=2),
    _said(last=True),
).map(lambda found: [found[0], *found[1], found[2]])
_conversations = st.tuples(
    st.none() | TEXTS,
    st.lists(_turns, max_size=3).map(lambda turns: [step for turn in turns for step in turn]),
    _questions,
)


@given(_conversations, st.booleans(), st.booleans())
def test_a_conversation_is_the_same_in_every_api(
    conversation: tuple[str | None, list[Asked | Said], Asked], as_strings: bool, tools: bool
) -> None:
    system, steps, last = conversation
    steps = [*steps, last]
    found = [read(system, steps, as_strings, tools) for read in (chat, responses, messages)]
    with about(f"{conversation}"):
        assert _plain(found[1]) == _plain(found[0])
        assert _plain(found[2]) == _plain(found[0])


def _plain(prompt: ChatPrompt) -> Any:
    """What templates see of a prompt."""
    tools = [(tool.name, tool.description, tool.parameters) for tool in prompt.tools]
    return [*map(_seen, prompt.messages)], tools


def _seen(message: Message) -> Any:
    calls = [(call.id, call.name, json.loads(call.arguments)) for call in message.tool_calls]
    parts = [
        part.url if isinstance(part, MediaReference) else part
        for part in message.parts or [message.content]
        if part
    ]
    return message.role, message.content or "", message.reasoning or "", calls, message.tool_call_id, parts


def _content(parts: list[str | None], as_string: bool, text: Callable[[str], Json], image: Json) -> Any:
    if as_string and len(parts) == 1 and parts[0] is not None:
        return parts[0]
    return [image if part is None else text(part) for part in parts]


def chat(system: str | None, steps: list[Asked | Said], as_strings: bool, tools: bool) -> ChatPrompt:
    def text(value: str) -> Json:
        return {"type": "text", "text": value}

    sent: list[Json] = [] if system is None else [{"role": "system", "content": system}]
    for at, step in enumerate(steps):
        if isinstance(step, Asked):
            image = {"type": "image_url", "image_url": {"url": URL}}
            sent.append({"role": "user", "content": _content(step.parts, as_strings, text, image)})
            continue
        texts = [text for text in (step.text, step.late) if text]
        said: Json = {"role": "assistant", "content": "\n\n".join(texts) or None}
        if step.thought:
            said["reasoning_content"] = step.thought
        if step.calls:
            said["tool_calls"] = [
                {
                    "id": _id(at, n),
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(given_)},
                }
                for n, (name, given_, _) in enumerate(step.calls)
            ]
        sent.append(said)
        sent += [
            {"role": "tool", "tool_call_id": _id(at, n), "content": _content([result], as_strings, text, {})}
            for n, (_, _, result) in enumerate(step.calls)
        ]
    offered = [
        {"type": "function", "function": {"name": name, "description": about_, "parameters": schema}}
        for name, about_, schema in TOOLS
    ]
    body = {"model": "m", "messages": sent, **({"tools": offered} if tools else {})}
    return _prompt(
        read_chat(decode(CreateChatCompletionRequest, encode(body)), DEFAULTS, modalities=("image",))
    )


def responses(system: str | None, steps: list[Asked | Said], as_strings: bool, tools: bool) -> ChatPrompt:
    def text(value: str) -> Json:
        return {"type": "input_text", "text": value}

    sent: list[Json] = []
    for at, step in enumerate(steps):
        if isinstance(step, Asked):
            image = {"type": "input_image", "image_url": URL}
            sent.append({"role": "user", "content": _content(step.parts, as_strings, text, image)})
            continue
        if step.thought:
            thought = [{"type": "reasoning_text", "text": step.thought}]
            sent.append({"type": "reasoning", "id": f"rs_{at}", "summary": [], "content": thought})
        sent += [_message(step.text)] if step.text else []
        sent += [
            {"type": "function_call", "call_id": _id(at, n), "name": name, "arguments": json.dumps(given_)}
            for n, (name, given_, _) in enumerate(step.calls)
        ]
        sent += [_message(step.late)] if step.late else []
        sent += [
            {
                "type": "function_call_output",
                "call_id": _id(at, n),
                "output": _content([result], as_strings, text, {}),
            }
            for n, (_, _, result) in enumerate(step.calls)
        ]
    offered = [
        {"type": "function", "name": name, "description": about_, "parameters": schema, "strict": False}
        for name, about_, schema in TOOLS
    ]
    body = {"model": "m", "input": sent, "instructions": system, **({"tools": offered} if tools else {})}
    request = decode(CreateResponse, encode({**body, "store": False}))
    return _prompt(read_response(request, DEFAULTS, SEALER, modalities=("image",)))


def messages(system: str | None, steps: list[Asked | Said], as_strings: bool, tools: bool) -> ChatPrompt:
    def text(value: str) -> Json:
        return {"type": "text", "text": value}

    sent: list[Json] = []
    for at, step in enumerate(steps):
        if isinstance(step, Asked):
            image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}
            sent.append({"role": "user", "content": _content(step.parts, as_strings, text, image)})
            continue
        blocks: list[Json] = []
        if step.thought:
            signature = SEALER.seal(step.thought)
            blocks.append({"type": "thinking", "thinking": step.thought, "signature": signature})
        if step.text:
            blocks.append(text(step.text))
        blocks += [
            {"type": "tool_use", "id": _id(at, n), "name": name, "input": given_}
            for n, (name, given_, _) in enumerate(step.calls)
        ]
        blocks += [text(step.late)] if step.late else []
        sent.append({"role": "assistant", "content": blocks})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": _id(at, n),
                "content": _content([result], as_strings, text, {}),
            }
            for n, (_, _, result) in enumerate(step.calls)
        ]
        if results:
            sent.append({"role": "user", "content": results})
    offered = [
        {"name": name, "description": about_, "input_schema": schema} for name, about_, schema in TOOLS
    ]
    body = {"model": "m", "max_tokens": 20, "messages": sent, **({"tools": offered} if tools else {})}
    request = decode(CreateMessageRequest, encode({**body, **({} if system is None else {"system": system})}))
    return _prompt(read_message(request, DEFAULTS, SEALER, thinks=True, modalities=("image",)))


def _message(text: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "content": [part]}


def _id(step: int, number: int) -> str:
    return f"call_{step}_{number}"


def _prompt(turn: Any) -> ChatPrompt:
    assert isinstance(turn.prompt, ChatPrompt)
    return turn.prompt
