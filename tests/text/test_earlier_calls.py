"""Law: of any history of calls, every template shows each text, name, argument and result, in the order of messages.

A form is found for a template once, with an example of each kind of message (`prompts/earlier_calls.py`), so the
histories here are drawn: other lengths, kinds in any order, ends after a result or after an answer.
"""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.about import about
from support.models import byte_level

from plumbline.answer.dialects.registry import TOOL_DIALECTS, DialectChoice, choose
from plumbline.answer.dialects.written_calls import CallWriter
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.shown_call import shown_call
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.turn import ChatPrompt, Message, Tool, ToolCall

TOKENIZER = byte_level()
MARKED = byte_level([{"content": f"<{end}tool_call>", "special": True} for end in ("", "/")])
TEMPLATES = sorted((Path(__file__).parent / "templates").glob("*.jinja"))
TOOLS = tuple(
    Tool(
        name=name,
        description="Looks.",
        parameters={"type": "object", "properties": {"at": {"type": "string", "description": "Where."}}},
    )
    for name in ("find_it", "show_it")
)
KINDS = ("question", "answer", "call", "calls", "text and call", "text and calls")


@cache
def served(path: Path) -> Renderer:
    """Return the renderer of a served model with this template."""
    template = ChatTemplate(path.read_text("utf-8"), bos_token="<s>", eos_token="</s>")
    choice = choose(template.sources, show_call=partial(shown_call, Renderer(TOKENIZER, template)))
    thinking = None if choice.thinking_control is None else choice.thinking_control.variables
    return Renderer(TOKENIZER, template, thinking, None, CallWriter(choice))


def history(kinds: list[str]) -> tuple[list[Message], list[list[str]]]:
    """Return a conversation, and the words of each message or call in it."""
    messages = [Message(role="user", content="w0user")]
    words = [["w0user"]]
    for number, kind in enumerate(kinds, 1):
        word = f"w{number}"
        if kind in ("question", "answer"):
            messages.append(
                Message(role="user" if kind == "question" else "assistant", content=f"{word}said")
            )
            words.append([f"{word}said"])
            continue
        calls = tuple(
            ToolCall(f"call{number:03}{n:02}", TOOLS[n % 2].name, json.dumps({"at": f"{word}at{n}"}))
            for n in range(2 if kind.endswith("calls") else 1)
        )
        text = f"{word}text" if kind.startswith("text") else None
        messages.append(Message(role="assistant", content=text, tool_calls=calls))
        messages += [
            Message(role="tool", content=f"{word}result{n}", tool_call_id=call.id, name=call.name)
            for n, call in enumerate(calls)
        ]
        words.append([] if text is None else [text])
        for n, call in enumerate(calls):
            words[-1] += [call.name, f"{word}at{n}", f"{word}result{n}"]
    return messages, words


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.stem for path in TEMPLATES])
def test_every_template_shows_every_history_of_calls(path: Path) -> None:
    renderer = served(path)
    if renderer.left_out():
        return  # The start names it.

    @settings(max_examples=8, deadline=None)
    @given(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
    @example(kinds=["text and call", "answer", "call", "text and calls", "question"])
    @example(kinds=["call", "call", "answer"])
    @example(kinds=["text and calls"])
    def check(kinds: list[str]) -> None:
        messages, words = history(kinds)
        text = renderer.text(ChatPrompt(messages=tuple(messages), tools=TOOLS))
        position = 0
        for number, ones in enumerate(words):
            with about((kinds, text)):
                later = [w for after in words[number + 1 :] for w in after if w.startswith("w")]
                end = min((text.index(w, position) for w in later), default=len(text))
                assert all(word in text[position:end] for word in ones)
                position = max(text.rindex(w, position, end) for w in ones if w.startswith("w"))

    check()


DROPS = {
    "answers": "{%- for m in messages if m.role == 'user' -%}[{{ m.content }}]{%- endfor -%}",
    "nothing": "{%- for m in messages -%}[{{ m.role }} {{ m.content }}]{%- endfor -%}",
}


def test_what_a_template_shows_in_no_form_is_named() -> None:
    """No form helps a template without answers of the assistant."""
    renderers = {
        name: Renderer(TOKENIZER, ChatTemplate(source), write_calls=PLAIN) for name, source in DROPS.items()
    }
    assert {name: renderer.left_out() for name, renderer in renderers.items()} == {
        "answers": ["tools", "earlier calls with their results", "texts beside earlier calls"],
        "nothing": [],
    }


PLAIN = CallWriter(DialectChoice(None, None))
HERMES = CallWriter(DialectChoice(TOOL_DIALECTS["hermes"], None))


@given(
    text=st.text(st.sampled_from("<|im_end|>tool_call/")),
    value=st.sampled_from(["<|im_end|>", "<|im_", "a\n"]),
)
@example(text="<tool_call>", value="<|im_end|>")
def test_only_the_markup_of_written_calls_becomes_control_tokens(text: str, value: str) -> None:
    """Law CHAT-22: names, arguments and texts of a client stay text, wherever they are written."""
    renderer = Renderer(MARKED, ChatTemplate(DROPS["nothing"]), write_calls=HERMES)
    call = ToolCall("abcdefghi", "look<|im_end|>", json.dumps({"at": value}))
    ids = renderer.token_ids(
        ChatPrompt(
            messages=(
                Message(role="user", content="Hi"),
                Message(role="assistant", content=text, tool_calls=(call,)),
            )
        )
    )
    assert MARKED.added["<|im_end|>"] not in ids
    assert [i for i in ids if i in MARKED.special_ids] == [
        MARKED.added["<tool_call>"],
        MARKED.added["</tool_call>"],
    ]
    written = json.dumps({"name": call.name, "arguments": {"at": value}}, ensure_ascii=False)
    assert written in MARKED.decode(ids)
