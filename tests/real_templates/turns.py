"""Render a conversation with a template, and cut out the turn that the template wrote for the assistant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from plumbline.answer.dialects.model_dialect import ThinkingState
from plumbline.answer.dialects.registry import DialectChoice
from plumbline.answer.dialects.spec.markers import Markers
from plumbline.answer.text.render import Renderer
from plumbline.answer.turn import ChatPrompt, Message

__all__ = ["AssistantTurn", "assistant_turn", "prompt_text"]

_ENDS = (
    "</assistant>",
    "</s>",
    "<SPECIAL_12>",
    "<end_of_sentence>",
    "<end_of_turn>",
    "<sep>",
    "<seed:eos>",
    "<turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|assistant_end|>",
    "<|calls|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|eot|>",
    "<|EOT|>",
    "<|end_of_msg|>",
    "<|eos|>",
    "<｜hy_eos:opensource｜>",
    "<|im_end|>",
    "<|message_sep|>",
    "<|return|>",
    "<|role_end|>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)
"""Control tokens that end a turn. The server ends the answer there, so the parser never sees them."""

_TAG = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]+\]|◁/?think▷")


class AssistantTurn(NamedTuple):
    """What a model writes of a turn, behind the prompt."""

    text: str
    thinking: ThinkingState
    """Where the turn starts, as the prompt in front of it says."""


def prompt_text(renderer: Renderer, *messages: Message, generate: bool, **options: object) -> str:
    """Render messages with the tools of the report.

    Args:
        renderer: the template.
        messages: the conversation.
        generate: end with the opening of the assistant's turn.
        options: further fields of the prompt.
    """
    return renderer.text(ChatPrompt(messages=messages, add_generation_prompt=generate, **options))  # type: ignore[arg-type]


def assistant_turn(
    unopened: str, prompt: str, whole: str, choice: DialectChoice, *, question: str
) -> AssistantTurn:
    """Cut out the last turn of a conversation.

    A template may open the thinking in a prompt and leave it out of earlier turns, so the turn begins where the two
    texts part, and never amid a marker. It ends where the end of every conversation begins.

    Args:
        unopened: the conversation without the turn.
        prompt: the same with the opening of the assistant's turn.
        whole: the conversation with the turn.
        choice: the model's dialects.
        question: the text in front of the turn.
    """
    markers = Markers(choice.tool, choice.reasoning).texts
    unopened, prompt, whole = (text.rpartition(question)[2] for text in (unopened, prompt, whole))
    same = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(unopened), reversed(whole), strict=False))
    whole = whole[: _amid(whole, len(whole) - sum(1 for _ in same), markers)[1]]
    start = min(_amid(whole, start, markers)[0] for start in _parted(whole, prompt, markers))
    opening = prompt.removeprefix(unopened)
    if (
        opening and opening in whole
    ):  # Command R+ writes instructions behind every conversation, before the opening.
        start = max(start, whole.index(opening) + len(opening))
    text = _without_end(whole[start:])
    thinking = _thinking(whole[:start], choice)
    if thinking == "before" and _thinking(prompt, choice) == "inside" and _ends_thinking(text, choice):
        # Apriel leaves the opening out of earlier turns, and keeps the end.
        thinking = "inside"
    return AssistantTurn(text, thinking)


def _parted(whole: str, prompt: str, markers: Iterable[str]) -> tuple[int, int]:
    """Return where the conversation stops being the prompt, white space aside.

    The second of the two numbers is the place in the conversation of a marker of the prompt that stands across it.
    """
    at = other = 0
    places = {0: 0}
    while True:
        while at < len(whole) and whole[at].isspace():
            at += 1
        while other < len(prompt) and prompt[other].isspace():
            other += 1
        places[other] = at
        if at == len(whole) or other == len(prompt) or whole[at] != prompt[other]:
            return at, places.get(_amid(prompt, other, markers)[0], at)
        at, other = at + 1, other + 1


def _amid(text: str, position: int, markers: Iterable[str]) -> tuple[int, int]:
    """Return the beginning and the end of the markers that stand across a position; twice the position for none."""
    first = last = position
    before = max(0, position - 80)
    found = [match.span() for match in _TAG.finditer(text, before)]
    for marker in markers:
        start = text.find(marker, max(before, position - len(marker) + 1))
        found += [(start, start + len(marker))] if start >= 0 else []
    for start, end in found:
        if start < position < end:
            first, last = min(first, start), max(last, end)
    return first, last


def _thinking(before: str, choice: DialectChoice) -> ThinkingState:
    if choice.reasoning is None:
        return "before"
    end = before.rstrip()
    if end.endswith(choice.reasoning.open):
        return "inside"
    return "after" if end.endswith(choice.reasoning.close) else "before"


def _ends_thinking(text: str, choice: DialectChoice) -> bool:
    """Whether an end of thinking comes before any beginning."""
    if choice.reasoning is None:
        return False
    opens, closes = (
        min((position for marker in markers if (position := text.find(marker)) >= 0), default=len(text))
        for markers in (choice.reasoning.open, choice.reasoning.close)
    )
    return closes < opens


def _without_end(text: str) -> str:
    """Remove the control tokens that end the turn."""
    while True:
        text = text.rstrip()
        end = next((end for end in _ENDS if text.endswith(end)), None)
        if end is None:
            return text
        text = text.removesuffix(end)
