"""Define the interface of a served model's dialect: where an answer starts, how to parse it, how to write one.

`plumbline.answer.dialects.kinds` has the implementations, and `plumbline.answer.dialects.build` chooses among them.
Code that serves a model uses this interface only, and never depends on the family or the kind of dialect.
"""

from __future__ import annotations

import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.registry import DialectChoice
from plumbline.answer.dialects.spec.answer_syntax import AnswerSyntax
from plumbline.answer.dialects.spec.dialect import IdStyle, NewId, Unparsed, Utterance

__all__ = ["AnswerFrame", "DialectVocabulary", "ModelDialect", "ThinkingMarkers", "ThinkingState", "call_ids"]

_LETTERS = string.ascii_letters + string.digits
_MAX_ID = 64

ThinkingState = Literal["before", "inside", "after"]
"""Where an answer starts: thinking may come, goes on, or cannot come any more."""


class DialectVocabulary(Protocol):
    """The tokens of a model, as a dialect needs them. `plumbline.answer.text.tokenizer.TextTokenizer` is one."""

    @property
    def added(self) -> Mapping[str, int]:
        """The added tokens by their text."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of control tokens."""
        ...

    @property
    def table(self) -> Sequence[bytes]:
        """The bytes of each token id."""
        ...


class AnswerFrame(msgspec.Struct, frozen=True, kw_only=True):
    """The place where an answer starts, determined from its prompt."""

    thinking: ThinkingState = "before"
    begins_with_opening: bool = False
    """The message that the answer continues opens the thinking itself, and its parser reads that."""
    opening: str = ""
    """The part of the answer that the prompt contains, for response templates."""
    constrained: bool = False
    """A grammar constrains the calls of the answer, so forms of them that begin like text are text."""

    @property
    def parser_starts_inside(self) -> bool:
        """Whether the text that the parser reads starts inside thinking."""
        return self.thinking == "inside" and not self.begins_with_opening


class ThinkingMarkers(msgspec.Struct, frozen=True):
    """The texts that thinking begins and ends with, for a budget of thinking tokens."""

    open: tuple[str, ...]
    close: str
    reopen_after: tuple[str, ...]
    """After these, white space aside, thinking may begin once more."""
    anywhere: bool = False
    """Thinking may begin inside text."""


class ModelDialect(ABC):
    """How one served model writes thinking, text and calls. Immutable.

    Attributes:
        choice: which dialects were chosen for the model, and why.
        syntax: how the parts of its answers are written.
        thinking_markers: what its thinking begins and ends with; None if that is not known.
    """

    choice: DialectChoice
    syntax: AnswerSyntax
    thinking_markers: ThinkingMarkers | None

    @abstractmethod
    def frame(self, prompt_token_ids: Sequence[int], begun: str | None = None) -> AnswerFrame:
        """Determine from the prompt where the answer starts.

        Control tokens are looked for among the ids, where text of a user cannot be taken for them.

        Args:
            prompt_token_ids: the whole prompt.
            begun: the text of the message that the answer continues; None if it is a message of its own.
        """

    @abstractmethod
    def parser(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        frame: AnswerFrame,
        *,
        earlier_calls: int = 0,
        new_id: NewId | None = None,
        logprobs: bool = False,
        unparsed: Unparsed | None = None,
    ) -> AnswerParser:
        """Return a parser for one choice.

        Args:
            tools: the parameters of each tool that may be called. Without any, nothing is a call (TOOL-03).
            frame: where the answer starts; from `frame`.
            earlier_calls: how many calls the conversation has had.
            new_id: makes the ids of calls; by default in the style of the family.
            logprobs: the deltas will carry logprobs.
            unparsed: which part of the answer is constrained text, and so is text even where it looks like markup; with
                tools, unless it is calls instead.
        """

    @abstractmethod
    def render(self, utterance: Utterance) -> str:
        """Write an utterance as the model does, from the beginning of its turn to its end."""


def call_ids(style: IdStyle, earlier_calls: int) -> NewId:
    """Return a function that makes call ids in the style of a family.

    Args:
        style: the style.
        earlier_calls: how many calls the conversation has had.
    """

    def new_id(name: str, number: int) -> str:
        if style == "kimi":
            numbered = f"functions.{name}:{earlier_calls + number}"
            if len(numbered) <= _MAX_ID:  # TOOL-09
                return numbered
        if style == "mistral":
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"

    return new_id
