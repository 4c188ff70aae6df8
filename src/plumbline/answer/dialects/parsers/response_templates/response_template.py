"""Parse answers by a Hugging Face response template, in which a tokenizer declares how its model writes.

transformers provides the template language, its checks and its content parsers; the search for regions is ours, so
that these answers obey the same laws as all others. Source: `response_template` of `tokenizer_config.json`, version 1,
as transformers reads it.

Arguments come in one piece, when the region of their call closes. Before that nothing is certain, even in JSON that
begins with the name: of two properties with one name the last counts, a region that is not JSON at its end is not a
call, and a region ends at its delimiter even inside a string. To stream arguments, give a dialect by its name
(`hermes`); its rules allow that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from plumbline.answer.dialects.parsers.cursor_parser import CursorParser
from plumbline.answer.dialects.parsers.response_templates.delimiters import (
    Delimiter,
    Delimiters,
    PatternHead,
    head,
)
from plumbline.answer.dialects.spec.dialect import NewId, ReasoningDialect
from plumbline.answer.dialects.streams.coercion import allowed_types, coerce, part_schema
from plumbline.answer.dialects.streams.cursor import MalformedError, Steps, UndeclaredToolError
from plumbline.answer.events import OutputEvent, TextDelta

__all__ = ["BadResponseTemplateError", "PlainText", "ResponseTemplate", "ResponseTemplateParser"]

_LITTLE = 256
"""Characters that are searched again with every token."""
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_MARKUP = re.compile(r'(?![{"\w]|.[{["]).{3}', re.DOTALL)
"""The beginning of a text that is rare in prose, unlike `[` and the beginnings of JSON."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_FIELDS = (*_THOUGHTS, "content", "tool_calls")


class BadResponseTemplateError(ValueError):
    """The tokenizer's response template cannot be used; the message states why."""


class PlainText(msgspec.Struct, frozen=True):
    """How a template frames plain text."""

    reasoning: ReasoningDialect | None
    """How the thinking before it is written, if there may be any."""


class ResponseTemplate:
    """A checked template. Immutable.

    Raises:
        BadResponseTemplateError: it is not valid, or has fields that no API can show.
    """

    def __init__(self, source: Mapping[str, Any]) -> None:
        loaded, self._process = _loaded(source)
        self.fields: Mapping[str, Any] = loaded.fields
        self.implicit: str | None = loaded.implicit
        self._loaded = loaded
        opens = [
            _delimiter(field.open_re, field.open_literals, field.open_literal_can_extend, field)
            for field in self.fields.values()
            if field.open_re is not None
        ]
        closes = {
            name: [_delimiter(field.close_re, field.close_literals, field.close_literal_can_extend, None)]
            for name, field in self.fields.items()
            if field.close_re is not None
        }
        self.delimiters: Mapping[str | None, Delimiters] = {
            name: Delimiters([*(opens if name == self.implicit else ()), *closes.get(name or "", ())])
            for name in (*self.fields, self.implicit)
        }
        """The delimiters that may come next, by the field of the open region."""
        self.anchors: tuple[str, ...] = tuple(loaded.start_anchor_literals or ())
        self.markers = frozenset(
            text
            for field in self.fields.values()
            for text in (*(field.open_literals or ()), *(field.close_literals or ()))
        )
        self.call_begins = _call_begins(opens)
        """Every call begins with one of these, white space aside; empty if that is not known or looks like prose."""

    def opening(self, token_ids: Sequence[int], added: Mapping[str, int], table: Sequence[bytes]) -> str:
        """Return the part of the answer that the prompt contains: its text after the last start anchor.

        An anchor that begins with an added token is searched for among the ids, where text of a user cannot match.
        """
        firsts = {
            token_id
            for text, token_id in added.items()
            if any(anchor.startswith(text) for anchor in self.anchors)
        }
        start = next((i for i in range(len(token_ids) - 1, -1, -1) if token_ids[i] in firsts), 0)
        text = b"".join(table[token_id] for token_id in token_ids[start:]).decode("utf-8", "replace")
        rest: str = self._loaded.truncate_past_last_anchor(text)
        return "" if rest == text else rest

    def plain_text(self) -> PlainText | None:
        """Return how thinking and plain text are framed; None if the template transforms text."""
        content = self.fields.get("content")
        thoughts = [field for name, field in self.fields.items() if name in _THOUGHTS]
        if content is None or self.implicit != "content" or content.content != "text" or content.transform:
            return None
        if not thoughts:
            return PlainText(None)
        (thought, *others) = thoughts
        plain = thought.content == "text" and not thought.transform and not others
        if not plain or not thought.open_literals or not thought.close_literals:
            return None
        opens, closes = tuple(thought.open_literals), tuple(thought.close_literals)
        return PlainText(ReasoningDialect(name="hf", open=opens, close=closes))

    def value(self, field: Any, body: str, captures: Mapping[str, str]) -> Any:
        """Parse the content of a region.

        Raises:
            MalformedError: it is not what the template declares.
        """
        try:
            return self._process(body, field, captures)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise MalformedError(str(error)) from error


class ResponseTemplateParser(CursorParser):
    """Parse one choice by a response template."""

    def __init__(
        self,
        template: ResponseTemplate,
        opening: str,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        new_id: NewId,
        logprobs: bool = False,
        marker_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._template = template
        self._field: str | None = template.implicit
        self._captures: dict[str, str] = {}
        self._body: list[str] = []
        self._raw: list[str] = []
        self._quiet = True
        # Empty delimiters at this place. There could be endlessly many: one that ends the implicit field, or a region
        # that another has just begun, is not read a second time.
        self._empties = 0
        self._opening = opening
        super().__init__(
            tools, inside=False, new_id=new_id, logprobs=logprobs, hold=True, marker_ids=marker_ids
        )

    def continue_message(self, text: str, *, echo: bool) -> list[OutputEvent]:
        """Return the text if the client wants it. It is part of the opening, and so has been parsed already."""
        return [TextDelta(text)] if echo else []

    @property
    def is_inside_markup(self) -> bool:
        """Never known: the template decides when its regions close."""
        return False

    def _answer(self) -> Steps[None]:
        self._run_opening()
        cursor, delimiters = self._cursor, self._template.delimiters
        if self._field in _THOUGHTS:
            self._thought_start = 0
        # A delimiter that begins with any amount of white space would be searched for in all of it with every token.
        again = 0
        while True:
            if again > _LITTLE < len(cursor.text) - cursor.pos < again and not cursor.closed:
                yield
                continue
            text, watched = cursor.text, delimiters[self._field]
            start = cursor.pos + (self._empties > 1)
            end, match, field = watched.search(text, start, closed=cursor.closed)
            if cursor.cut:
                begun = watched.begun(text, start)
                if match is None or match.start() > begun:
                    end, match = begun, None
            if end > cursor.pos:
                piece, offset = text[cursor.pos : end], cursor.offset
                cursor.pos = end
                self._empties = 0
                if self._field == "tool_calls":
                    self._body.append(piece)
                    self._raw.append(piece)
                elif self._field is not None:
                    self._route(self._field, piece, offset)
            if match is not None:
                again = 0
                cursor.pos = match.end()
                self._switch(match, field, cursor.offset)
            elif cursor.closed:
                break
            else:
                again = (len(text) - end) * 9 // 8
                yield
        cursor.pos = len(cursor.text)
        self._close_region(cursor.offset, ended=False)
        self._content.flush()

    def _run_opening(self) -> None:
        """Read the regions that the prompt has begun."""
        text, pos = self._opening, 0
        while True:
            watched = self._template.delimiters[self._field]
            end, match, field = watched.search(text, pos + (self._empties > 1), closed=False)
            if end > pos:
                self._empties = 0
            if match is None:
                break
            pos = match.end()
            self._switch(match, field, 0)
        self._quiet = False
        self._empties = 0
        self._body, self._raw = [], []
        if self._field == "tool_calls":
            self._body = [text[pos:]]
            self._prose_offset = 0

    def _route(self, field: str, piece: str, offset: int) -> None:
        """Pass on text or thinking."""
        if field == "content":
            self._content.write(piece, offset)
            return
        if self._thought_start is None:
            self._thought_start = offset
        self._thought.write(piece, offset)

    def _switch(self, match: Any, field: Any, offset: int) -> None:
        """End one region and begin another, at a delimiter."""
        if match.start() < match.end():
            self._empties = 0
        else:
            self._empties += 2 if field is None and self._field == self._template.implicit else 1
        if self._field == "tool_calls":
            self._raw.append(match.group())
        self._close_region(offset)
        if field is None:
            self._field = self._template.implicit
            return
        self._field = field.name
        self._captures = {key: value for key, value in match.groupdict().items() if value is not None}
        self._body = []
        self._raw = [match.group()]
        if self._quiet:
            return
        start = offset - len(match.group())
        if field.name == "tool_calls":
            self._prose_offset = (
                start  # LP-03: a region that turns out not to be a call is text with its logprobs.
            )
            return
        self._content.drop()
        if field.name in _THOUGHTS:
            self._thought.drop()
            self._thought_start = start

    def _close_region(self, offset: int, *, ended: bool = True) -> None:
        """Emit the events of a region. It has not `ended` if the output has, before its delimiter."""
        name = self._field
        if self._quiet or name is None or name == "content":
            return
        if name in _THOUGHTS:
            self._end_thought(offset)
            return
        raw, body = "".join(self._raw), "".join(self._body)
        self._raw, self._body = [], []
        if self._cursor.cut and not ended and raw:
            self._prose_offset = None
            self._warn("the token limit cut a call before its name")
            return
        field = self._template.fields[name]
        try:
            # Incomplete JSON is recognisable. Incomplete lines and tags are not, so arguments would be lost.
            if not ended and field.close_re is not None and field.content != "json":
                raise MalformedError("the call has no end")
            calls = self._calls(self._template.value(field, body, self._captures))
        except MalformedError as error:
            self._prose_offset = None
            if isinstance(error, UndeclaredToolError):
                self._note_undeclared(error.name)
            if raw.strip():
                self._warn(f"markup that is not a call was kept as text: {error}")
            self._content.write(raw, offset - len(raw))
            return
        self._prose_offset = None
        for called, arguments in calls:
            self.begin_call(called, None)
            self.call_arguments(arguments)
            self._end_call(complete=True)
        self._content.drop()

    def _calls(self, value: Any) -> list[tuple[str, str]]:
        """Return name and arguments of each call of a region.

        Raises:
            MalformedError: one of them is not a call.
        """
        found = []
        for name, arguments in map(_call, value if isinstance(value, list) else [value]):
            if name not in self._tools:
                raise UndeclaredToolError(name)
            try:
                found.append((name, _json(arguments, self._tools[name])))
            except (ValueError, RecursionError) as error:
                raise MalformedError(f"the arguments are not a JSON object: {error}") from error
        return found


def _check_tags(arguments: Any, compiled: Callable[[str], Any]) -> None:
    """Check that patterns of tags compile: transformers compiles them only when it parses."""
    while isinstance(arguments, Mapping):
        if "tag_pattern" in arguments:
            compiled(arguments["tag_pattern"])
        parser = arguments.get("value_parser")
        arguments = parser.get("args") if isinstance(parser, Mapping) else None


def _loaded(source: Mapping[str, Any]) -> tuple[Any, Callable[..., Any]]:
    """Load a template with transformers. Returns it, and the function that makes a value of a field's text.

    Raises:
        BadResponseTemplateError: the template is not valid, or has fields that no API can show.
    """
    try:
        from transformers.utils.chat_parsing import content_parsers
        from transformers.utils.chat_parsing.response_templates import load_response_template
    except ImportError as error:
        raise BadResponseTemplateError(
            "this release of transformers does not support response templates"
        ) from error
    try:
        loaded: Any = load_response_template(dict(source))
        for field in loaded.fields.values():
            _check_tags(field.content_args, content_parsers.re.compile)
    except (ValueError, TypeError, KeyError, content_parsers.re.error) as error:
        raise BadResponseTemplateError(f"the tokenizer's response template is not valid: {error}") from error
    unknown = sorted(set(loaded.fields) - set(_FIELDS))
    if unknown:
        raise BadResponseTemplateError(
            f"the tokenizer's response template has fields that no API can show: {', '.join(unknown)}"
        )
    return loaded, content_parsers.process_field


def _call_begins(opens: Sequence[Delimiter]) -> tuple[str, ...]:
    """Return the texts that calls begin with, white space aside; empty if one of them looks like prose."""
    begins = [one.head for one in opens if one.field.name == "tool_calls"]
    texts = tuple(text for one in begins if one is not None for text in one.texts)
    return texts if all(map(_MARKUP.match, texts)) else ()


def _delimiter(pattern: Any, literals: Sequence[str] | None, can_extend: bool, field: Any) -> Delimiter:
    begins = PatternHead(tuple(literals), False) if literals is not None else head(pattern.pattern)
    return Delimiter(pattern, begins, literals is not None and not can_extend, field)


def _call(value: Any) -> tuple[str, Any]:
    """Return name and arguments of a call in the chat API's shape.

    Raises:
        MalformedError: it has another shape.
    """
    function = value.get("function", value) if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise MalformedError("a call without a name")
    arguments = function.get("arguments", function.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise MalformedError("the arguments are not a JSON object") from error
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise MalformedError("the arguments are not a JSON object")
    return name, arguments


def _json(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Encode arguments as JSON; strings become other values where the schema allows no strings.

    Raises:
        ValueError: a number has no JSON.
        RecursionError: the arguments nest too deeply.
    """
    parts: list[str] = []
    for key, value in arguments.items():
        types = allowed_types(part_schema(schema, schema, key), schema)
        if isinstance(value, str) and types and "string" not in types:
            text = coerce(value, types)
        else:
            text = _encoded(value)
        parts.append(f"{_encoded(key)}: {text}")
    # Half of a surrogate pair can be escaped in JSON, but not sent as a character.
    return _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", "{" + ", ".join(parts) + "}")
