"""A template that drops earlier thinking ends the prefix cache there, and the server tells its operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.models import CHATML, chatml, served, tiny_engine
from support.servers.api_calls import chat
from support.servers.asgi import serving

from plumbline.answer.text.earlier_thinking import dropped_thinking, keeps_earlier_thinking
from plumbline.cli import main
from plumbline.server.start import serve as start

_KEPT = "if message.reasoning_content"
DROPPING = (
    "{%- set turns = namespace(all=0, seen=0) %}"
    "{%- for message in messages if message.role == 'user' %}{%- set turns.all = loop.index %}{%- endfor %}"
) + CHATML.replace(
    "{%- for message in messages %}\n",
    "{%- for message in messages %}\n"
    "{%- if message.role == 'user' %}{%- set turns.seen = turns.seen + 1 %}{%- endif %}\n",
).replace(_KEPT, f"{_KEPT} and (turns.seen == turns.all or preserve_thinking)")
"""Keeps thinking behind the last question only, as most families do."""
REFUSING = "{{ raise_exception('one turn only') if messages | length > 1 else messages[0].content }}"
WITHOUT_THINKING = CHATML.replace(_KEPT, "if false")

THOUGHT = "I look up the weather of Paris, and then I think about what it means. " * 2
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
TURN: list[dict[str, Any]] = [
    {"role": "user", "content": "How is the weather?"},
    {"role": "assistant", "content": None, "reasoning_content": THOUGHT, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "It is sunny and warm in all of Paris today."},
]
NEXT_TURN = [*TURN, {"role": "assistant", "content": "Sunny."}, {"role": "user", "content": "Tomorrow?"}]


@pytest.mark.parametrize(
    ("template", "variables", "kept"),
    [
        (CHATML, {}, True),
        (DROPPING, {}, False),
        (DROPPING, {"preserve_thinking": True}, True),
        (WITHOUT_THINKING, {}, False),
        (REFUSING, {}, None),
    ],
)
def test_what_a_template_does_with_earlier_thinking(
    template: str, variables: dict[str, bool], kept: bool | None
) -> None:
    assert keeps_earlier_thinking(chatml(template), variables) is kept


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        (CHATML, ""),
        (REFUSING, ""),
        (WITHOUT_THINKING, ""),  # Nothing that the reader of the line could do.
        (DROPPING, "--default-chat-template-kwargs '{\"preserve_thinking\": true}' keeps it"),
    ],
)
def test_the_operator_learns_that_thinking_is_dropped_and_how_to_keep_it(template: str, printed: str) -> None:
    line = dropped_thinking(chatml(template))

    assert line.endswith(printed)
    assert bool(line) == bool(printed)


@pytest.mark.parametrize(
    ("template", "options", "kept"),
    [
        (CHATML, {}, True),
        (DROPPING, {}, False),
        (DROPPING, {"chat_template_kwargs": {"preserve_thinking": True}}, True),
    ],
)
async def test_cached_tokens_of_the_next_turn_show_whether_thinking_is_kept(
    template: str, options: dict[str, Any], kept: bool
) -> None:
    async with serving(served(tiny_engine(), renderer=chatml(template))) as server:
        first = (await chat(server, messages=TURN, max_completion_tokens=1, **options))["usage"]
        second = (await chat(server, messages=NEXT_TURN, max_completion_tokens=1, **options))["usage"]
    cached = second["prompt_tokens_details"]["cached_tokens"]

    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    if kept:
        assert cached > first["prompt_tokens"] - 20, "all of the first turn but the rest of a block"
    else:
        assert 0 < cached < len(THOUGHT) // 2, "nothing from the thinking on"


class _Silent:
    """A listener that ends at once."""

    started = True
    failed = False

    def run(self, **_: object) -> None:
        pass


def _silent(*_: object, announce: Callable[[], None], **__: object) -> _Silent:
    announce()
    return _Silent()


@pytest.mark.usefixtures("in_one_process")
def test_the_line_is_printed_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start, "listener", _silent)
    for name, source in (("drops", DROPPING), ("keeps", CHATML)):
        path = tmp_path / f"{name}.jinja"
        path.write_text(source, "utf-8")
        assert main(["serve", "--port", "0", "--chat-template", str(path)]) == 0
        assert ("drops the thinking" in capfd.readouterr().err) == (name == "drops")
