"""The dialects of one served model at work: where an answer begins, what reads it, what its calls are called."""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from plumbline.dialects.parsers.harmony import HarmonyParser
from plumbline.dialects.parsers.harmony import is_inside as harmony_is_inside
from plumbline.dialects.parsers.marker_parser import MarkerParser
from plumbline.dialects.parsers.response_template import ResponseTemplateParser
from plumbline.dialects.parsers.structured import StructuredHarmonyParser, StructuredTextParser
from plumbline.dialects.registry import DialectChoice
from plumbline.dialects.spec.dialect import IdStyle, NewId, Unread
from plumbline.dialects.spec.markers import Markers

__all__ = ["ModelDialect", "Thinking"]

_LOOK_BACK = 8192
"""How many tokens from the end of a prompt are looked at for an open thinking."""
_LAST = 64
"""Tokens that a marker which is plain text, and white space after it, have room in."""
_LETTERS = string.ascii_letters + string.digits
_MAX_ID = 64


class Thinking(msgspec.Struct, frozen=True):
    """The texts that thinking begins and ends with."""

    begin: tuple[str, ...]
    end: str
    again: tuple[str, ...]
    """Behind these, white space aside, it may begin once more."""


class ModelDialect:
    """Joins a model's dialects with its vocabulary. Immutable.

    Args:
        chosen: the dialects.
        added: the added tokens by their text.
        special_ids: which of them are control tokens.
        table: the bytes of each token id.
    """

    def __init__(
        self,
        chosen: DialectChoice,
        *,
        added: Mapping[str, int],
        special_ids: frozenset[int],
        table: Sequence[bytes],
    ) -> None:
        self.chosen = chosen
        self._added = added
        self._special_ids = special_ids
        self._table = table
        self._markup = Markers(chosen.tool, chosen.reasoning)
        self._without_tools = Markers(None, chosen.reasoning)
        self._without_thinking = Markers(chosen.tool, None)
        template = chosen.template
        self._frame = None if template is None else template.frame()
        self._shown = self._among_added(self._markup.markers if template is None else template.markers)
        self._shown_without_tools = (
            self._among_added(self._without_tools.markers) if template is None else self._shown
        )
        self._harmony = "harmony" in (
            chosen.tool.reader if chosen.tool is not None else "",
            chosen.reasoning.reader if chosen.reasoning is not None else "",
        )

    def shown_ids(self, *, calls: bool) -> frozenset[int]:
        """The control tokens that the parser has to see: they are markers of the dialect, or parts of one."""
        return self._shown if calls else self._shown_without_tools

    def _among_added(self, markers: Iterable[str]) -> frozenset[int]:
        written = "\n".join(markers)
        return frozenset(token_id for text, token_id in self._added.items() if text and text in written)

    def starts_inside(self, prompt_token_ids: Sequence[int], *, begun: bool = False) -> bool:
        """Whether the answer begins inside the model's thinking.

        A marker that is a token of its own is looked for among the ids, where text that a user has written cannot be
        taken for it. One that is plain text counts only as the very end of the prompt, which the template writes.
        Where the prompt has no marker, the dialect says what its models do, unless the message has `begun` without one.
        """
        if self._frame is not None:
            return self._frame.state(self._opening(prompt_token_ids)) == "inside"
        reasoning = self.chosen.reasoning
        if reasoning is None:
            return False
        opens = {self._added[text] for text in reasoning.open if text in self._added}
        closes = {self._added[text] for text in reasoning.close if text in self._added}
        tail = prompt_token_ids[-_LOOK_BACK:]
        if reasoning.reader == "harmony":
            return harmony_is_inside(tail, self._added, self._table)
        if opens:
            for token_id in reversed(tail):
                if token_id in opens or token_id in closes:
                    return token_id in opens
                if token_id in self._special_ids:
                    break
            return reasoning.starts_inside and not begun
        last = self._text(tail[-_LAST:])
        if last.endswith((*reasoning.open, *reasoning.close)):
            return last.endswith(reasoning.open)
        return reasoning.starts_inside and not begun

    def opens_thinking(self, text: str) -> bool:
        """Whether a message that begins with this text begins with thinking."""
        reasoning = self.chosen.reasoning
        return reasoning is not None and text.lstrip().startswith(reasoning.open)

    def has_ended(self, prompt_token_ids: Sequence[int]) -> bool:
        """Whether the prompt ends with the end of a thinking, as templates write it where they turn thinking off.

        As in `starts_inside`, a marker that is a token of its own is not taken from text that looks like it.
        """
        if self._frame is not None:
            return self._frame.state(self._opening(prompt_token_ids)) == "after"
        reasoning = self.chosen.reasoning
        if reasoning is None:
            return False
        tail = prompt_token_ids[-_LAST:]
        closes = {self._added[text] for text in reasoning.close if text in self._added}
        if closes:
            solid = (token_id for token_id in reversed(tail) if self._table[token_id].strip())
            return next(solid, None) in closes
        return self._text(tail).endswith(reasoning.close)

    def _opening(self, prompt_token_ids: Sequence[int]) -> str:
        """What the prompt has written of an answer that a response template reads."""
        template = self.chosen.template
        return "" if template is None else template.opening(prompt_token_ids, self._added, self._table)

    def _text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens without white space at its end."""
        return b"".join(self._table[token_id] for token_id in token_ids).decode("utf-8", "replace").rstrip()

    def thinking(self) -> Thinking | None:
        """Where the model's thinking begins and ends; None if that is not known."""
        reasoning = self.chosen.reasoning if self._frame is None else self._frame.reasoning
        if reasoning is None or reasoning.append:
            return None
        again = ["<|start|>assistant"] if self._harmony else [*reasoning.close]
        if self.chosen.tool is not None and not self._harmony:
            again += [text for section in self.chosen.tool.sections for text in section.close]
        return Thinking(reasoning.open, reasoning.close[0], tuple(dict.fromkeys(again)))

    @cached_property
    def blank_ids(self) -> frozenset[int]:
        """The tokens that are white space and nothing else."""
        return frozenset(
            token_id for token_id, raw in enumerate(self._table) if raw and not raw.strip(b" \t\r\n")
        )

    def parser(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        inside: bool,
        prompt_token_ids: Sequence[int] = (),
        earlier_calls: int = 0,
        logprobs: bool = False,
        unread: Unread | None = None,
    ) -> MarkerParser | None:
        """What reads one choice; None if there is nothing to read in it, because all of it is text.

        Args:
            tools: the parameters of each tool that may be called. Without any, nothing is a call (TOOL-03).
            inside: generation starts inside the thinking.
            prompt_token_ids: the prompt; a response template looks at what it has begun.
            earlier_calls: how many calls the conversation has had.
            logprobs: the deltas will carry logprobs.
            unread: what of the answer has a promised form, and is text whatever it looks like; with tools, unless it is
                calls instead.
        """
        if unread == "all" and (self.chosen.tool is None or not tools):
            return None
        if unread is not None and self._frame is not None:
            return StructuredTextParser(
                Markers(None, self._frame.reasoning),
                {},
                inside=inside,
                new_id=_ids("call", earlier_calls),
                exact=unread == "after the gap",
                logprobs=logprobs,
            )
        if self.chosen.template is not None:
            return ResponseTemplateParser(
                self.chosen.template,
                self._opening(prompt_token_ids),
                tools,
                new_id=_ids("call", earlier_calls),
                logprobs=logprobs,
            )
        tool = self.chosen.tool if tools else None
        if tool is None and self.chosen.reasoning is None:
            return None
        markup = self._without_tools if tool is None else self._markup
        new_id = _ids("call" if tool is None else tool.ids, earlier_calls)
        if unread is not None:
            if self._harmony:
                return StructuredHarmonyParser(markup, tools, inside=inside, new_id=new_id, logprobs=logprobs)
            return StructuredTextParser(
                self._without_thinking if unread == "all" else markup,
                tools,
                inside=inside,
                new_id=new_id,
                exact=unread == "after the gap",
                logprobs=logprobs,
            )
        kind = HarmonyParser if self._harmony else MarkerParser
        return kind(markup, tools, inside=inside, new_id=new_id, logprobs=logprobs)


def _ids(style: IdStyle, earlier_calls: int) -> NewId:
    def new_id(name: str, number: int) -> str:
        if style == "kimi":
            found = f"functions.{name}:{earlier_calls + number}"
            if len(found) <= _MAX_ID:  # TOOL-09
                return found
        if style == "mistral":
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"

    return new_id
