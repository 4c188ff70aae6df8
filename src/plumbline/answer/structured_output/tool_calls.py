"""Build grammars of tool calls in the model's own dialect: markers, call format, separators."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from plumbline.answer.dialects.parsers.render import section_opening
from plumbline.answer.dialects.spec.answer_syntax import AnswerSyntax
from plumbline.answer.dialects.spec.call_format import ArgumentSyntax, CallFormat
from plumbline.answer.dialects.spec.dialect import Section, ToolDialect
from plumbline.answer.structured_output.grammar.builder import GrammarBuilder
from plumbline.answer.structured_output.grammar.ecma_regex import TEXT_FORMATS
from plumbline.answer.structured_output.grammar.errors import TOO_COMPLEX, UNNAMED, ConstraintError
from plumbline.answer.structured_output.grammar.json_schema import check_shape
from plumbline.answer.structured_output.grammar.raw_string import INPUT_CONSTRAINT
from plumbline.answer.structured_output.grammar.references import subschemas
from plumbline.answer.structured_output.markup_schema import check_listed_texts, markup_schema
from plumbline.answer.structured_output.parameter_names import with_readable_names
from plumbline.answer.turn import Tool

__all__ = ["calls", "next_call", "text_with_calls", "text_without_calls"]


def calls(
    builder: GrammarBuilder,
    dialect: ToolDialect,
    tools: Sequence[Tool],
    *,
    parallel: bool,
    relaxed: Collection[str] = (),
    alternative: Literal["json", "text"] | None = None,
) -> str:
    """Match at least one call of these tools and nothing else; exactly one if not `parallel`.

    Args:
        builder: collects the rules.
        dialect: how the model writes calls.
        tools: the tools that may be called; at least one.
        parallel: allow several calls.
        relaxed: names of tools whose arguments are constrained to the names and types of their schema only; strict
            tools are never relaxed.
        alternative: what the answer may be instead: a JSON document, or another constrained text. Calls without
            markers, and calls with a marker in JSON, are then written so that a lexer can distinguish them.

    Raises:
        ConstraintError: a schema or the constraint of a custom tool's input cannot be enforced.
    """
    section = dialect.sections[0]
    bare = not section.open and not dialect.messages
    as_json = alternative == "json" and (bare or "".join(section.open[:1]).startswith("{"))
    if section.recipient:
        groups = [(section_opening(section, tool.name), [tool]) for tool in tools]
    else:
        groups = [(section_opening(section, ""), list(tools))]
    found = [
        (opening, _call(builder, section, group, relaxed=relaxed, as_json=as_json))
        for opening, group in groups
    ]
    if bare and alternative == "text" and section.array:
        first = _call(builder, section, tools, relaxed=relaxed, before="[")
        return _rest(builder, section, found[0][1], parallel, first=first)
    if dialect.messages:
        return found[0][1]  # A call ends with an end of sequence, so there is never a second.
    with builder.literals(as_json=as_json and not bare):
        whole = builder.choice(
            builder.sequence([*_literals(builder, opening), _rest(builder, section, call, parallel)])
            for opening, call in found
        )
    if not (parallel and section.holds_one_call):
        return whole
    return builder.sequence(
        [whole, builder.repeat(builder.sequence([*_literals(builder, section.between), whole]))]
    )


def next_call(
    builder: GrammarBuilder,
    dialect: ToolDialect,
    tools: Sequence[Tool],
    *,
    before: str,
    continues: bool,
    relaxed: Collection[str] = (),
) -> str:
    """Match one call of these tools after what an answer has so far.

    Args:
        builder: collects the rules.
        dialect: how the model writes calls.
        tools: the tools that may be called; at least one.
        before: text before the call and its markup.
        continues: the call follows another one whose section is still open.
        relaxed: as for `calls`.

    Raises:
        ConstraintError: as for `calls`.
    """
    section = dialect.sections[0]
    whole = calls(builder, dialect, tools, parallel=False, relaxed=relaxed)
    if not continues or dialect.messages:
        return builder.sequence([*_literals(builder, before), whole])
    close = [section.before_close, *section.close[:1]]
    between = ", " if section.array else section.between
    if section.holds_one_call:
        return builder.sequence([*_literals(builder, before, *close, between), whole])
    item = [section.item_open, section.item_close]
    after = [item[1], "]" if section.array else "", *close]
    call = _call(builder, section, tools, relaxed=relaxed)
    return builder.sequence(
        [*_literals(builder, before, between, item[0]), call, *_literals(builder, *after)]
    )


def text_with_calls(
    builder: GrammarBuilder,
    syntax: AnswerSyntax,
    tools: Sequence[Tool],
    *,
    parallel: bool,
    relaxed: Collection[str] = (),
) -> str:
    """Match free text with calls; a text that begins as a call must be a call of these tools.

    Raises:
        ConstraintError: as for `calls`; or calls of the dialect begin like text.
    """
    dialect = syntax.calls
    assert dialect is not None, "a model without a tool dialect has no calls"
    section = dialect.sections[0]
    if dialect.messages:
        text = text_without_calls(builder, syntax)
        return builder.choice([calls(builder, dialect, tools, parallel=parallel, relaxed=relaxed), text])
    if not section.open:
        return _bare(builder, dialect, calls(builder, dialect, tools, parallel=parallel, relaxed=relaxed))
    every = _markers(dialect)
    call = _call(builder, section, tools, relaxed=relaxed)
    bare = _bare_starts(dialect)
    if bare and not (section.close or section.array or section.single):
        bare += section.between.strip()[:1]  # After a call this character begins another one.
    begun = builder.until(section.open[0], [text for text in every if text != section.open[0]], bare)
    chunk = builder.sequence([begun, _rest(builder, section, call, parallel)])
    several = builder.repeat(chunk) if parallel else builder.optional(chunk)
    return builder.sequence([several, builder.text(every, bare)])


def text_without_calls(builder: GrammarBuilder, syntax: AnswerSyntax) -> str:
    """Match free text in which no call begins.

    Args:
        builder: collects the rules.
        syntax: how the model writes text and calls; every call begins with one of its `call_starts`.
    """
    text = builder.text(without=syntax.call_starts)
    return builder.sequence([*_literals(builder, syntax.text_header), text])


def _markers(dialect: ToolDialect) -> list[str]:
    """Return every text that begins a section of calls."""
    return list(dict.fromkeys(text for section in dialect.firm for text in section.open))


def _bare(builder: GrammarBuilder, dialect: ToolDialect, section_calls: str) -> str:
    """Match calls without markers, or text that does not begin like one."""
    return builder.choice(
        [section_calls, builder.text(without=_markers(dialect), not_first_chars=_bare_starts(dialect))]
    )


def _bare_starts(dialect: ToolDialect) -> str:
    """Return the first characters of calls without markers, which text must not begin with; empty if all have markers.

    Raises:
        ConstraintError: such calls begin like any text.
    """
    bare = [section for section in dialect.firm if not section.open]
    # A call may also begin with its name, as in functionary, and so may any sentence.
    if not all(section.starts and not section.starts[0].isalnum() for section in bare):
        raise ConstraintError(
            f"The calls of this model ({dialect.name}) cannot be distinguished from text by their first character. "
            "Use 'tool_choice': 'required'."
        )
    return "".join(sorted({char for section in bare for char in section.starts}))


def _call(
    builder: GrammarBuilder,
    section: Section,
    tools: Sequence[Tool],
    *,
    relaxed: Collection[str],
    before: str = "",
    as_json: bool = False,
) -> str:
    """Match a call of one of these tools; `before` and `as_json` as in `GrammarBuilder.literals`."""
    found: list[str] = []
    for tool in tools:
        try:
            full = tool.strict is True or tool.name not in relaxed
            schema = _schema(tool, relaxed=not full)
            strict = tool.strict is True
            as_markup = section.call_format.argument_syntax is not ArgumentSyntax.JSON
            if full and tool.parameters and not tool.custom:
                schema = {**check_shape(tool.parameters), "type": "object"}
                if as_markup:
                    builder.notes |= dict.fromkeys(f"{tool.name}{place}" for place in _annotations(schema))
                schema = _matchable(section.call_format, schema, strict=strict)
            elif not tool.custom:
                schema = with_readable_names(section.call_format, schema)
            of = None if as_markup or not full else tool.name
            with builder.literals(before=before, as_json=as_json), builder.relaxing(not strict, of):
                found.append(section.call_format.grammar(builder, tool.name, schema))
        except ConstraintError as error:
            raise ConstraintError(str(error), tool=tool.name) from error
        except RecursionError:
            reason = (
                "The grammar of the input is nested too deeply."
                if tool.custom
                else "The parameters are recursive, which cannot be enforced in this model's call format."
            )
            raise ConstraintError(reason, tool=tool.name) from None
        except UNNAMED as error:
            raise ConstraintError(TOO_COMPLEX, tool=tool.name) from error
    return builder.choice(found)


def _annotations(schema: Mapping[str, Any]) -> list[str]:
    """Return the places of the formats in parameters that are not enforced in unquoted texts."""
    found: list[str] = []
    left: list[tuple[str, Any]] = [("#", schema)]
    while left:
        where, part = left.pop()
        if isinstance(part, Mapping):
            if "format" in part and part["format"] not in TEXT_FORMATS:
                found.append(f"{where}/format")
            left.extend((f"{where}/{step}", one) for step, one in subschemas(part))
    return sorted(found)


def _matchable(call_format: CallFormat, schema: Mapping[str, Any], *, strict: bool) -> Mapping[str, Any]:
    """Return the schema that the call format can enforce; without `strict`, that may be a part of it.

    Raises:
        ConstraintError: a strict schema cannot be enforced in this call format.
    """
    try:
        return markup_schema(call_format, schema)
    except (ConstraintError, RecursionError):
        if strict:
            raise
    check_listed_texts(call_format, schema)
    return with_readable_names(call_format, schema)


def _rest(
    builder: GrammarBuilder, section: Section, call: str, parallel: bool, *, first: str | None = None
) -> str:
    """Match a section after its opening marker; `first` is the first call with the array's bracket before it."""
    item = builder.sequence(
        [*_literals(builder, section.item_open), call, *_literals(builder, section.item_close)]
    )
    body = [first or item]
    if parallel and not section.holds_one_call:
        between = _literals(builder, ", " if section.array else section.between)
        body.append(builder.repeat(builder.sequence([*between, item])))
    # White space is a lexeme of its own. Joined with the closing marker, the end of a section would begin like the
    # separator of calls, and a lexer never backtracks.
    before = [section.after_open, "[" if section.array and first is None else ""]
    after = ["]" if section.array else "", section.before_close, *section.close[:1]]
    return builder.sequence([*_literals(builder, *before), *body, *_literals(builder, *after)])


def _literals(builder: GrammarBuilder, *texts: str) -> list[str]:
    return [builder.literal(text) for text in texts if text]


def _schema(tool: Tool, *, relaxed: bool) -> Mapping[str, Any]:
    """Return the schema of a call's arguments, which are always an object."""
    if tool.custom:
        return _input_schema(tool)
    parameters = tool.parameters
    if not parameters:
        # A function without parameters takes no arguments.
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not relaxed:
        return {**parameters, "type": "object"}
    properties = parameters.get("properties")
    named = properties if isinstance(properties, Mapping) else {}
    required = parameters.get("required")
    return {
        "type": "object",
        "properties": {name: _typed(schema) for name, schema in named.items()},
        "required": [name for name in named if isinstance(required, list) and name in required],
    }


def _typed(schema: Any) -> Mapping[str, Any]:
    """Return a schema with only the type, if it is valid."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return {"type": kind} if kind in _TYPES else {}


_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def _input_schema(tool: Tool) -> Mapping[str, Any]:
    """Return the schema of a custom tool's arguments: one string `input` (TOOL-14)."""
    text: dict[str, Any] = {"type": "string"}
    if tool.input_format is not None:
        text[INPUT_CONSTRAINT] = tool.input_format
    return {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }
