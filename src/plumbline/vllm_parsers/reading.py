"""Read one answer for vLLM's two steps: thinking first, then the rest, from one pass of our parser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.formats.json_calls import JsonCall
from plumbline.answer.dialects.model_dialect import AnswerFrame, ModelDialect
from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.registry import DialectChoice, choose
from plumbline.answer.dialects.spec.dialect import Section, ToolDialect
from plumbline.answer.events import OutputEvent, ReasoningDelta, TextDelta

__all__ = ["REQUIRED_CALLS", "OutputReader", "SharedStream", "dialect_of", "joined", "no_id"]

REQUIRED_CALLS: Final = build_dialect(
    DialectChoice(
        ToolDialect(
            name="required",
            sections=(
                Section(
                    call_format=JsonCall(arguments_key="parameters"), starts="[", at_line=True, array=True
                ),
            ),
        ),
        None,
    )
)
"""The array of calls to which vLLM constrains `tool_choice: required`."""


class _Vocabulary(msgspec.Struct, frozen=True):
    """The tokens of vLLM's tokenizer, as a dialect looks for them at the end of a prompt."""

    tokenizer: Any

    @property
    def added(self) -> Mapping[str, int]:
        """The added tokens by their text."""
        return dict(self.tokenizer.get_added_vocab())

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of control tokens."""
        return frozenset(self.tokenizer.all_special_ids)

    @property
    def table(self) -> Any:
        """The bytes of each token id."""
        return self

    def __getitem__(self, token_id: int) -> bytes:
        text: str = self.tokenizer.decode([token_id])
        return text.encode()


@lru_cache(maxsize=8)
def dialect_of(tokenizer: Any, tool: str, reasoning: str) -> ModelDialect:
    """Return the dialects with these names, in the variant that the model's template shows."""
    template = getattr(tokenizer, "chat_template", None)
    choice = choose(
        template if isinstance(template, str) else "",
        tool=tool,
        reasoning=reasoning,
        added_tokens=tokenizer.get_added_vocab(),
    )
    return build_dialect(choice, _Vocabulary(tokenizer))


def no_id(name: str, number: int) -> str:
    """Leave the id of a call to its delta, which has the request."""
    return ""


class OutputReader:
    """A parser of one answer, with the events that no delta has had yet."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self.events: list[OutputEvent] = []

    def push(self, text: str) -> None:
        """Parse more of the output."""
        self.events += self._parser.push(TextDelta(text))

    def finish(self) -> None:
        """Parse what is left as of a cut output: vLLM does not say what ended it, and no cut call may look whole."""
        self.events += self._parser.finish("length")

    def take(self) -> list[OutputEvent]:
        """Return the events so far, once."""
        events, self.events = self.events, []
        return events

    def whole(self, text: str) -> list[OutputEvent]:
        """Return the events of a whole output."""
        self.push(text)
        self.finish()
        return self.take()


class SharedStream:
    """One streamed answer, read with the tools and without: only the tool parser learns whether calls may come."""

    def __init__(self, dialect: ModelDialect, tools: Mapping[str, Any], frame: AnswerFrame) -> None:
        self.calls = OutputReader(dialect.parser(tools, frame, new_id=no_id))
        self.text = OutputReader(dialect.parser({}, frame))
        self.sent = 0
        """Characters of thinking that the client has."""

    def push(self, text: str) -> None:
        """Parse more of the output in both ways."""
        self.calls.push(text)
        self.text.push(text)

    def thoughts(self) -> str | None:
        """Return new thinking; None if something else has come, for which all events are kept."""
        if not all(isinstance(event, ReasoningDelta) for event in self.calls.events):
            self._skip_sent()
            return None
        text = joined(self.calls.take(), ReasoningDelta)
        self.sent += len(text)
        return text

    def _skip_sent(self) -> None:
        kept: list[OutputEvent] = []
        for event in self.text.take():
            if isinstance(event, ReasoningDelta):
                skipped = min(self.sent, len(event.text))
                self.sent -= skipped
                event = ReasoningDelta(event.text[skipped:])
            kept.append(event)
        self.text.events = kept


def joined(events: Iterable[OutputEvent], kind: type[TextDelta] | type[ReasoningDelta]) -> str:
    """Return the text of the events of one kind."""
    return "".join(event.text for event in events if isinstance(event, kind))
