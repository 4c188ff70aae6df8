"""Define the interface of a call format, which reads and writes one tool call.

A call format has three sides that must agree: it reads a call, writes one, and returns the grammar of one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Protocol

import msgspec

from plumbline.answer.dialects.streams.cursor import Cursor, Finder, Steps

__all__ = ["ArgumentSyntax", "CallFormat", "CallSink", "Grammar", "WrittenCall", "declared"]

_NAMESPACES = ("functions.", "default_api.", "tools.")
"""What models write before the names of tools, as OpenAI's and Google's prompts show them."""


class WrittenCall(msgspec.Struct, frozen=True):
    """A call for a call format to write."""

    name: str
    arguments: str
    """A JSON object."""
    number: int = 0
    """Its place among the calls of the answer, for dialects that number them."""


class ArgumentSyntax(Enum):
    """How a call format writes arguments, which decides what of a JSON Schema its grammar can enforce."""

    JSON = "one JSON document"
    PYTHON = "a Python literal for each argument"
    TAGS = "text between tags for each argument; its type follows from the schema; JSON inside objects and arrays"
    TYPED_TAGS = "as TAGS, with an attribute that states whether the value is a string"
    ELEMENTS = "elements at every level, strings without quotes"
    BRACES = "braces and brackets of the family's own at every level, strings in quotes"


class CallSink(Protocol):
    """Receive the call that a format reads: `begin` once, then `arguments` as they come."""

    @property
    def schemas(self) -> Mapping[str, Mapping[str, Any]]:
        """The parameters of each tool that may be called, by name."""
        ...

    @property
    def ends(self) -> Finder:
        """The markers of the dialect that end arguments where they come outside strings."""
        ...

    @property
    def marked(self) -> bool:
        """Whether a marker of the dialect stands before the call."""
        ...

    @property
    def loose(self) -> bool:
        """Whether the call stands where a text may stand as well (`Section.loose`)."""
        ...

    def begin(self, name: str, call_id: str | None = None) -> None:
        """Announce the call. Until then everything may still turn out to be text.

        Args:
            name: its final name.
            call_id: the id that the model gave it, if its dialect has ids of the model's own.

        Raises:
            MalformedError: no tool of the request has this name.
        """
        ...

    def arguments(self, text: str) -> None:
        """Add JSON text to the arguments."""
        ...


class Grammar(Protocol):
    """Build the grammar of a call; expressions are strings.

    Implemented by `plumbline.answer.structured_output.grammar.builder.GrammarBuilder`.
    """

    def literal(self, text: str) -> str:
        """Match exactly this text."""
        ...

    def json(self, schema: Mapping[str, Any] | bool) -> str:
        """Match one JSON document that satisfies the schema."""
        ...

    def regex(self, pattern: str) -> str:
        """Match text that the whole regex matches."""
        ...

    def until(self, marker: str) -> str:
        """Match any text without the marker, then the marker."""
        ...

    def raw_string(
        self,
        schema: Mapping[str, Any],
        after: str,
        marker: str,
        *,
        or_null: bool = False,
        not_first: str = "",
    ) -> str:
        """Match an unquoted string that satisfies a schema of strings, then `after`.

        Args:
            schema: the schema of the string.
            after: the text after the string; it contains the marker.
            marker: the reader ends the string at the first occurrence of the marker.
            or_null: the text may also be `null`.
            not_first: text that the string must not begin with; empty for none.
        """
        ...

    def choice(self, expressions: list[str]) -> str:
        """Match one of these expressions."""
        ...

    def sequence(self, expressions: list[str]) -> str:
        """Match these expressions one after the other."""
        ...

    def optional(self, expression: str) -> str:
        """Match this expression or nothing."""
        ...

    def repeat(self, expression: str, minimum: int, maximum: int | None) -> str:
        """Match this expression `minimum` to `maximum` times; None means any number."""
        ...


class CallFormat(msgspec.Struct, frozen=True):
    """Base of all call formats."""

    @property
    def argument_syntax(self) -> ArgumentSyntax:
        """How the format writes arguments."""
        return ArgumentSyntax.JSON

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts inside a call that may be control tokens."""
        return ()

    @property
    def is_object(self) -> bool:
        """Whether a call is a JSON object."""
        return False

    @property
    def is_element(self) -> bool:
        """Whether a call is written in tags."""
        return self.begins.startswith("<")

    @property
    def begins(self) -> str:
        """What every call begins with; empty if that is its name."""
        return ""

    @property
    def after_name(self) -> tuple[str, ...]:
        """What follows the name of the tool in a call that begins with the name; empty if any text may."""
        return ()

    @property
    def ends(self) -> tuple[str, ...]:
        """What ends a call or a part of one. It means nothing where no call is open."""
        return ()

    @property
    def forbidden(self) -> tuple[str, ...]:
        """Texts that a string argument cannot contain, because the format has no way to escape them."""
        return ()

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read one call from its first character to its last, without white space around it.

        Raises:
            MalformedError: the text is not a call. A call that was announced keeps the arguments read so far. The text
                that is still marked in the cursor, or the `rest` of the error, is text of the answer.
        """
        raise NotImplementedError

    def write(self, call: WrittenCall) -> str:
        """Write the call as a model of the family does."""
        raise NotImplementedError

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return the expression of a call of this tool, as `write` writes it, with arguments of this schema.

        The literal that the call begins with must be created before any other literal, because the builder may join it
        with a text that stands before the call (`GrammarBuilder.literals`).
        """
        raise NotImplementedError


def declared(name: str, schemas: Collection[str]) -> str:
    """Return the name of the tool that a model means: without a namespace if the request has only the rest."""
    if name not in schemas:
        for namespace in _NAMESPACES:
            if (rest := name.removeprefix(namespace)) in schemas:
                return rest
    return name
