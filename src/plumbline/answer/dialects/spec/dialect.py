"""Describe how one family of models writes thinking and calls, mostly as data.

    reasoning:  <think> … </think>                      ReasoningDialect: markers
    calls:      <tool_call> … </tool_call>              Section: markers around calls, and how calls follow each other
                {"name": …, "arguments": {…}}           CallFormat: how one call is written

One incremental parser (`plumbline.answer.dialects.parsers.marker_parser`) reads all of them except harmony.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from plumbline.answer.dialects.spec.call_format import CallFormat, WrittenCall
from plumbline.answer.dialects.spec.thinking_control import ThinkingControl

__all__ = [
    "IdStyle",
    "NewId",
    "PromptEncoding",
    "ReasoningDialect",
    "Section",
    "ThinkingControl",
    "ToolDialect",
    "Unparsed",
    "Utterance",
]

IdStyle = Literal["call", "mistral", "kimi"]
"""How ids of calls look: `call_…`; nine letters or digits; `functions.name:index`, counted over the conversation."""

PromptEncoding = Literal["deepseek_v32", "deepseek_v4", "harmony"]
"""How prompts are encoded for models that come without a chat template."""

NewId = Callable[[str, int], str]
"""Makes the id of a call from its name and its number in the answer (TOOL-09)."""

Unparsed = Literal["all", "after thinking", "after the gap"]
"""The part of an answer that is constrained text, even where it looks like markup: all of it, everything after the
thinking and any white space, or everything after the thinking and exactly the gap that the dialect writes. Where tools
may be called, the part is calls instead if it begins like a call."""


class Utterance(msgspec.Struct, frozen=True):
    """The output of a model in one turn, before it is written in a dialect."""

    parts: tuple[str | WrittenCall, ...] = ()
    """Text and calls in their order."""
    reasoning: str | None = None


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Markers around calls.

        open  after_open  item_open CALL item_close  between  item_open CALL item_close  before_close  close

    White space between any of these is skipped; the strings with white space are how models write it.
    """

    call_format: CallFormat
    open: tuple[str, ...] = ()
    """Texts that begin a section; the first is the one to write. Without any, calls stand bare: at the beginning of the
    answer or after another call."""
    close: tuple[str, ...] = ()
    """Texts that end it. Without any, it ends where no further call follows."""
    item_open: str = ""
    item_close: str = ""
    after_open: str = ""
    before_close: str = ""
    between: str = ""
    recipient: str = ""
    """What models write before a section, with `{name}` for the tool of its only call."""
    array: bool = False
    """The calls are the elements of a JSON array: `[CALL, CALL]`."""
    single: bool = False
    """A section has one call; each further call has another section, with `between` before it."""
    starts: str = ""
    """The characters that calls may begin with. They find bare calls, and choose between sections with one marker,
    which have the same `item_open`. Without them and without markers, calls stand at the beginning of a line, where the
    name of a tool and `CallFormat.after_name` begin them."""
    inner: tuple[str, ...] = ()
    """Control tokens inside its calls that another section with the same markers does not have."""
    at_line: bool = False
    """Models write it by mistake, so no grammar enforces it. Its markers begin a call only where a line of text begins,
    and never in thinking."""
    loose: bool = False
    """It begins like ordinary text, such as a code fence. So it is not read where a grammar constrains calls, which may
    not forbid its beginning."""

    @property
    def holds_one_call(self) -> bool:
        """Whether models write a section for each call."""
        return self.single or bool(self.recipient)

    def without_beginning(self) -> Section:
        """Return the section of a call whose beginning the model has left out: `get<arg_key>city</arg_key>…`."""
        return msgspec.structs.replace(self, open=(), item_open="", single=True, at_line=True, loose=True)


Generality = Literal[0, 1, 2]
"""Who writes so: one family; several (it is chosen where no family's own dialect matches); or so many that also a
tokenizer's tokens say more."""


class ToolDialect(msgspec.Struct, frozen=True, kw_only=True):
    """How a family writes calls."""

    name: str
    aliases: tuple[str, ...] = ()
    """Names that other servers have for it."""
    sections: tuple[Section, ...]
    """The first is the one to write; the others are read too. For a served model, `variant` chooses the first."""
    messages: bool = False
    """Each call is a message with a header of its own, which ends the answer, as in harmony."""
    ids: IdStyle = "call"
    prompt_encoding: PromptEncoding | None = None
    silent: tuple[str, ...] = ()
    """Texts around calls or answers that a client does not get where an answer begins or ends."""
    headed: tuple[str, ...] = ()
    """Texts before which the name of a tool may stand where a message begins. It is part of the markup."""
    header: str = ""
    """What stands before that name. With it, any name is markup."""
    answer_key: str = ""
    """Every answer is a JSON object. This key has the text, and keys that sections begin with have the calls."""
    content_gap: str = ""
    """What models write between text and a section."""
    text_header: str = ""
    """What models write before text."""
    detect: tuple[str, ...] = ()
    """A template of this family matches all these regular expressions. If empty, the dialect must be named."""
    anywhere: bool = False
    """The markers of its calls are control tokens, which no model writes in prose: a second beginning, or an end where
    no call ends, is dropped."""
    generality: Generality = 0
    tokens: tuple[str, ...] = ()
    """Added tokens that only this family has. Where no template matches, a tokenizer with all of them does."""

    @property
    def firm(self) -> tuple[Section, ...]:
        """The sections that are read where a grammar constrains calls."""
        return tuple(section for section in self.sections if not section.loose)


class ReasoningDialect(msgspec.Struct, frozen=True, kw_only=True):
    """How a family writes thinking."""

    name: str
    aliases: tuple[str, ...] = ()
    open: tuple[str, ...]
    """Texts that begin the thinking; the first is the one to write."""
    close: tuple[str, ...]
    after_open: str = "\n"
    before_close: str = "\n"
    after_close: str = "\n\n"
    """White space around the thinking as models write it. It belongs neither to the thinking nor to the answer."""
    starts_inside: bool = False
    """The model starts with thinking even where neither it nor the prompt opens it, unless the prompt closes it."""
    calls_inside: bool = False
    """Calls may stand in thinking that no answer follows. The thinking goes on after the call, up to its end marker or
    the end of the answer."""
    anywhere: bool = False
    """The family's markers are control tokens, which no model writes in prose: thinking may begin inside text, and a
    marker where it means nothing (a second opening, an end outside thinking) is dropped."""
    headed: tuple[str, ...] = ()
    """Texts before which the name of a tool may stand where a message begins. It is part of the markup."""
    header: str = ""
    """What stands before that name. With it, any name is markup."""
    text_header: str = ""
    """What stands before the answer's text, after `after_close`."""
    next_message: str = ""
    """What another message begins with. Thinking ends before it also where its end marker is missing."""
    append: bool = False
    """The thinking stays in the text with its markers ("append think"), as some clients of the family expect."""
    silent: tuple[str, ...] = ()
    """Texts around the answer that a client does not get where it begins or ends."""
    messages: bool = False
    """Thinking is one message or several, each with its own header and followed by `after_close`, as in harmony."""
    prompt_encoding: PromptEncoding | None = None
    markers: tuple[str, ...] = ()
    """Further texts that the parser needs to see."""
    detect: tuple[str, ...] = ()
    """A chat template of this family matches all these regular expressions."""
    generality: Generality = 0
    tokens: tuple[str, ...] = ()
    """Added tokens that only this family has."""
    switch: ThinkingControl = ThinkingControl()
    """How a chat template turns thinking on, off, up and down."""
