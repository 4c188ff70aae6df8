"""What a dialect is: how one family of models writes its thinking and its calls. Mostly data.

    reasoning:  <think> … </think>                      ReasoningDialect: markers
    calls:      <tool_call> … </tool_call>              Section: markers around calls, and how calls follow each other
                {"name": …, "arguments": {…}}           CallFormat: how one call is written

One incremental parser (`plumbline.dialects.parsers.marker_parser`) reads all of them. A call format is an object with
three sides that must agree: it reads a call, writes one, and returns the grammar of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from plumbline.dialects.spec.call_format import Call, CallFormat
from plumbline.dialects.spec.thinking_control import ThinkingControl

__all__ = [
    "IdStyle",
    "NewId",
    "PromptEncoding",
    "ReasoningDialect",
    "Section",
    "ThinkingControl",
    "ToolDialect",
    "Unread",
    "Utterance",
]

IdStyle = Literal["call", "mistral", "kimi"]
"""`call_…`; nine letters or digits; `functions.name:index` counted over the conversation."""

PromptEncoding = Literal["deepseek_v32", "deepseek_v4", "harmony"]
"""How prompts are encoded for models that come without a chat template."""

NewId = Callable[[str, int], str]
"""Makes the id of a call from its name and its number in the answer (TOOL-09)."""

Unread = Literal["all", "after thinking", "after the gap"]
"""What of an answer has a promised form, and so is text whatever it looks like: all of it, what follows the thinking
and white space after it, or what follows the thinking and exactly the gap that the dialect writes. Where tools may be
called, an answer that goes on there as calls begin is calls instead."""


class Utterance(msgspec.Struct, frozen=True):
    """What a model says in one turn, to be written in its dialect."""

    parts: tuple[str | Call, ...] = ()
    """Text and calls in their order."""
    reasoning: str | None = None


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Markers around calls.

        open  after_open  item_open CALL item_close  between  item_open CALL item_close  before_close  close

    Between all of these any white space is read; the strings with white space say how models write it.
    """

    call_format: CallFormat
    open: tuple[str, ...] = ()
    """Texts that begin a section; the first is the one to write. Without one calls stand bare, at the beginning of the
    answer or after another call."""
    close: tuple[str, ...] = ()
    """Texts that end it. Without one it ends where no further call follows."""
    item_open: str = ""
    item_close: str = ""
    after_open: str = ""
    before_close: str = ""
    between: str = ""
    array: bool = False
    """The calls are the elements of a JSON array: `[CALL, CALL]`."""
    single: bool = False
    """A section holds one call, and each further call has a section of its own, `between` them."""
    starts: str = ""
    """The characters that calls may begin with: by these bare calls are found, and of several sections with the same
    marker one is chosen."""
    inner: tuple[str, ...] = ()
    """Control tokens inside of its calls, where another section of the family has the same markers and not these."""
    at_line: bool = False
    """Its markers mean a call only where a line of text begins. In thinking they are what the model thinks of."""


class ToolDialect(msgspec.Struct, frozen=True, kw_only=True):
    """How a family writes calls."""

    name: str
    aliases: tuple[str, ...] = ()
    """Names that other servers have for it."""
    sections: tuple[Section, ...]
    """The first is the one to write; the others are read too. For a served model `section_choice` says which it is."""
    messages: bool = False
    """Each call is a message with a header of its own, which ends the answer, as in harmony."""
    ids: IdStyle = "call"
    prompt_encoding: PromptEncoding | None = None
    silent: tuple[str, ...] = ()
    """Texts around calls or answers that mean nothing to a client where an answer begins or ends."""
    content_gap: str = ""
    """What stands between text and a section after it, as models write it."""
    detect: tuple[str, ...] = ()
    """Regular expressions, all of which a chat template of this family matches."""
    unlike: str = ""
    """A regular expression that no template of this family matches, though its relatives' do."""
    general: bool = False
    """Many families write so: it is chosen only where no other dialect fits."""
    tokens: tuple[str, ...] = ()
    """Added tokens that are this family's alone: where the template says nothing, all of them say as much."""


class ReasoningDialect(msgspec.Struct, frozen=True, kw_only=True):
    """How a family writes its thinking."""

    name: str
    aliases: tuple[str, ...] = ()
    open: tuple[str, ...]
    """Texts that begin the thinking; the first is the one to write."""
    close: tuple[str, ...]
    after_open: str = "\n"
    before_close: str = "\n"
    after_close: str = "\n\n"
    """How models write the white space around it; none of it is part of the thinking or of the answer."""
    starts_inside: bool = False
    """The model writes its thinking without opening it, also where the prompt does not open it; a prompt that closes it
    counts all the same."""
    call_ends: bool = False
    """A call ends the thinking even if its end was not written."""
    append: bool = False
    """The thinking stays in the text, markers and all ("append think"), as some clients of the family expect."""
    silent: tuple[str, ...] = ()
    """Texts around the answer that mean nothing to a client where it begins or ends."""
    messages: bool = False
    """Thinking is one message or several, each with a header of its own and with `after_close` behind it, as in
    harmony."""
    prompt_encoding: PromptEncoding | None = None
    markers: tuple[str, ...] = ()
    """Further texts that the parser has to see."""
    detect: tuple[str, ...] = ()
    """Regular expressions, all of which a chat template of this family matches."""
    unlike: str = ""
    """A regular expression that no template of this family matches, though its relatives' do."""
    general: bool = False
    """Many families write so: it is chosen only where no other dialect fits."""
    tokens: tuple[str, ...] = ()
    """Added tokens that are this family's alone."""
    switch: ThinkingControl = ThinkingControl()
    """How thinking is turned on, off, up and down."""
