"""Describe the tags of a call format: what stands before, between and after names and values."""

from __future__ import annotations

import re
from typing import Final, Literal

from plumbline.answer.dialects.spec.call_format import ArgumentSyntax, CallFormat
from plumbline.answer.dialects.streams.coercion import allowed_types

__all__ = ["CDATA", "STRING", "Tags", "element"]

CDATA: Final = "<![CDATA["
STRING: Final = frozenset(("string",))
_NUMBERS = frozenset(("integer", "number"))
_ANYTHING: frozenset[str] = frozenset()
_ELEMENT = re.compile(r"(?<![|\uff5c\u2016])[\s=]")
"""Ends the name of the element in the tag of a parameter. A space after a bar stands before the name."""


class Tags(CallFormat, frozen=True, kw_only=True):
    """Calls written as `OPEN name OPENED (KEY key KEY_END value END)… CLOSE`, for example

        <function=get_weather>
        <parameter=city>
        Paris
        </parameter>
        </function>

    Strings, objects and arrays are passed on while they come. In a value in JSON, an `end` inside a string is part of
    that string. Where a string ends, see `tag_reader`. JSON in the place of the parameters is also read.
    """

    open: str
    """Before the name; may be empty."""
    opened: str = ""
    """After the name; empty if the name ends with its line or with a tag."""
    name_ends: tuple[str, ...] = ()
    """One of these follows a name and `opened`; otherwise it is prose. Required where `opened` is empty."""
    wrapper: str = ""
    """What begins the section of the call, if models also write it in the place of the first parameter's tag."""
    number: str = ""
    """An attribute with the call's number, between name and `opened`: `" index="`."""
    key: str
    """Before the name of a parameter."""
    other_key: str = ""
    """Another text before the name, which is read and never written."""
    key_end: str
    """After the name of a parameter."""
    value_open: str = ""
    """Before the value, if it has another tag."""
    value_gap: str = ""
    """White space before `value_open`."""
    end: str
    """After the value."""
    close: str = ""
    other_ends: tuple[str, ...] = ()
    other_closes: tuple[str, ...] = ()
    """What models write for `end` and for `close`. They are read, and never written."""
    newline: str = ""
    """Written after `opened` and after each `end`."""
    wrapped: bool = False
    """One line feed at each side of a value belongs to the markup."""
    typed: Literal["", "string", "type"] = ""
    """An attribute of each parameter: whether the value is a string (`string="true"`), or its type
    (`type="number"`)."""

    type_open: str = ""
    type_close: str = ""
    """Around the name of the value's type, which may stand before `value_open`. It is read, and never written."""
    doubled: bool = False
    """Models write a name without a namespace twice, with a dot between."""
    cdata: bool = False
    """A value may stand between `<![CDATA[` and `]]>`. They are read, and never written."""

    @property
    def argument_syntax(self) -> ArgumentSyntax:
        """How the format writes arguments."""
        return ArgumentSyntax.TYPED_TAGS if self.typed else ArgumentSyntax.TAGS

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts inside a call that may be control tokens."""
        texts = (
            self.open,
            self.opened,
            self.key,
            self.key_end,
            self.type_open,
            self.type_close,
            self.value_open,
            self.end,
            self.close,
        )
        return tuple(text for text in texts if text)

    @property
    def is_element(self) -> bool:
        """Whether a call is written in tags."""
        return self.end.startswith("</")

    @property
    def begins(self) -> str:
        """What every call begins with."""
        return self.open

    @property
    def after_name(self) -> tuple[str, ...]:
        """The tags that may follow a name with nothing before it."""
        return () if self.open else self.name_ends or (self.opened,)

    @property
    def ends(self) -> tuple[str, ...]:
        """What ends a call or a value, or the name of a value that has a tag of its own."""
        return (self.end, self.close, *self.name_close, *self.other_ends, *self.other_closes)

    @property
    def name_close(self) -> tuple[str, ...]:
        """The end of a name's element, which GLM also writes where no name is open; none if names have no element."""
        return (self.key_end,) if self.value_open else ()

    @property
    def forbidden(self) -> tuple[str, ...]:
        """Texts that a string argument cannot contain."""
        return (self.end, CDATA) if self.cdata else (self.end,)

    def given(self, kind: str, types: frozenset[str]) -> frozenset[str]:
        """Return the allowed types of a value for the type `kind` that the model wrote, where `types` are allowed."""
        if self.typed:
            return STRING if kind == "string" else _ANYTHING
        named = allowed_types({"type": kind.partition("[")[0].strip()}, {})
        if named & _NUMBERS:
            named |= _NUMBERS
        return types & named or types or named - {"integer"}


def element(tag: str) -> str:
    """Return the beginning of a tag through the name of its element."""
    return _ELEMENT.split(tag.lstrip(), maxsplit=1)[0]
