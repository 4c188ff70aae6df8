"""Compose the grammar of an answer: free thinking first, then constrained text or calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec
from llguidance import StructTag

from plumbline.answer.dialects.model_dialect import ThinkingState
from plumbline.answer.dialects.parsers.render import openings
from plumbline.answer.dialects.spec.answer_syntax import AnswerSyntax
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Unparsed
from plumbline.answer.structured_output.grammar.builder import GrammarBuilder
from plumbline.answer.structured_output.grammar.errors import ConstraintError, named_failures
from plumbline.answer.structured_output.grammar.gbnf import to_lark
from plumbline.answer.structured_output.grammar.json_schema import MAX_TEXT
from plumbline.answer.structured_output.tool_calls import calls, text_with_calls, text_without_calls
from plumbline.answer.turn import (
    ChoiceFormat,
    GbnfFormat,
    JsonFormat,
    LarkFormat,
    OutputFormat,
    RegexFormat,
    Tag,
    TagsFormat,
    Tool,
    ToolChoice,
)
from plumbline.base.exact_number import dumps

__all__ = ["callable_tools", "compose", "text_besides_calls", "unparsed_part"]

_TEXT_ONLY = AnswerSyntax()
_NO_CALLS = ToolChoice(mode="none")


def callable_tools(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """Return the tools that may be called (TOOL-03, TOOL-06)."""
    if choice.mode == "none":
        return []
    return [tool for tool in tools if choice.names is None or tool.name in choice.names]


@named_failures()
def compose(
    builder: GrammarBuilder,
    *,
    output_format: OutputFormat | None = None,
    tools: Sequence[Tool] = (),
    choice: ToolChoice = _NO_CALLS,
    syntax: AnswerSyntax = _TEXT_ONLY,
    thinking: ThinkingState = "before",
    relaxed: Collection[str] = (),
) -> str | None:
    """Return the grammar of a whole answer; None if the answer is not constrained.

    Args:
        builder: a new builder.
        output_format: the constraint on the answer's text.
        tools: all tools that the model was shown.
        choice: which of them may or must be called.
        syntax: how the model writes thinking, text and calls; by default all is text, as in plain completions.
        thinking: where the answer starts: "inside" thinking that must end first, or "after" all thinking, for example
            because a template has turned it off.
        relaxed: names of tools that are constrained to the names and types of their parameters only, because the engine
            cannot enforce their schemas. Strict tools and text constraints are never relaxed.

    Raises:
        ConstraintError: a constraint cannot be enforced.
    """
    if thinking == "after" and syntax.text_header:
        # The prompt has the header, and the text that the answer continues.
        syntax = msgspec.structs.replace(syntax, text_header="")
    callable_ = callable_tools(tools, choice)
    constrained = _calls_are_constrained(tools, callable_, choice)
    if output_format is None and not constrained and choice.mode != "required":
        return _unconstrained(builder, choice, syntax, thinking)
    if not syntax.is_plain_text:
        raise ConstraintError(
            "This model's answers are parsed by its tokenizer's response template, which transforms their text, so "
            "they cannot be constrained."
        )
    syntax = _still_thinking(syntax, output_format, thinking)
    # Without a dialect the model cannot call, which only matters if a call is required.
    may_call = bool(callable_) and (syntax.calls is not None or choice.mode != "auto")
    text_or_calls = may_call and choice.mode != "required"
    # The parser tells calls from constrained text by how the answer begins, so the text must not begin like a call.
    call_openings = (
        openings(syntax.calls, _names(callable_)) if syntax.calls is not None and text_or_calls else ()
    )
    text = None if output_format is None else _text_grammar(builder, output_format, syntax, call_openings)
    # Text may begin with white space, so the parser must know the exact gap after thinking.
    exact = output_format is not None and choice.mode != "required" and _may_begin_with_space(output_format)
    if text is None or may_call:
        if not callable_:
            return None
        kind: Literal["json", "text"] = "json" if isinstance(output_format, JsonFormat) else "text"
        text = _with_calls(builder, syntax, callable_, choice, relaxed, text, kind)
    return builder.build(_after_thinking(builder, syntax, text, thinking, exact=exact))


def _unconstrained(
    builder: GrammarBuilder, choice: ToolChoice, syntax: AnswerSyntax, thinking: ThinkingState
) -> str | None:
    """Return the grammar of an answer without a constraint: None, unless it must not begin a call.

    TOOL-03: a model that may not call must not begin a call, or its markup would be in the text.
    """
    if not choice.forbidden or not syntax.call_starts or not syntax.is_plain_text:
        return None
    body = text_without_calls(builder, syntax)
    return builder.build(_after_thinking(builder, _still_thinking(syntax, None, thinking), body, thinking))


def _with_calls(
    builder: GrammarBuilder,
    syntax: AnswerSyntax,
    tools: Sequence[Tool],
    choice: ToolChoice,
    relaxed: Collection[str],
    text: str | None,
    kind: Literal["json", "text"],
) -> str:
    """Return the calls, with the constrained text as an alternative if there is one, or with free text before them.

    Raises:
        ConstraintError: the model has no dialect for calls, or a schema cannot be enforced.
    """
    if syntax.calls is None:
        raise ConstraintError(
            "This model has no dialect for tool calls (--tool-parser), so calls cannot be required or constrained."
        )
    parallel = choice.parallel
    if choice.mode == "required":
        return calls(builder, syntax.calls, tools, parallel=parallel, relaxed=relaxed)
    if text is None:
        return text_with_calls(builder, syntax, tools, parallel=parallel, relaxed=relaxed)
    called = calls(builder, syntax.calls, tools, parallel=parallel, relaxed=relaxed, alternative=kind)
    return builder.choice([called, text])


@named_failures()
def text_besides_calls(
    builder: GrammarBuilder,
    output_format: OutputFormat | None,
    tools: Sequence[Tool],
    choice: ToolChoice,
    syntax: AnswerSyntax,
) -> str | None:
    """Return the grammar of a regex without the texts that begin like a call; None if calls exclude no text.

    If no text is left, the engine refuses this grammar; in the whole grammar the calls would hide that.

    Raises:
        ConstraintError: the constraint cannot be enforced.
    """
    callable_ = callable_tools(tools, choice)
    if (
        syntax.calls is None
        or syntax.text_header
        or not callable_
        or choice.mode == "required"
        or not isinstance(output_format, RegexFormat)
    ):
        return None
    return builder.build(_constrained_text(builder, output_format, openings(syntax.calls, _names(callable_))))


def unparsed_part(
    output_format: OutputFormat | None,
    tools: Sequence[Tool],
    choice: ToolChoice,
    syntax: AnswerSyntax,
    thinking: ThinkingState,
) -> Unparsed | None:
    """Return the part of an answer that is constrained text and must not be parsed; the arguments are `compose`'s.

    None if every part is parsed: the text is not constrained, or calls are required. If calls are allowed as well, an
    answer that begins with one of their `openings` is calls.
    """
    if output_format is None or not syntax.is_plain_text:
        return None
    if choice.mode == "required" and callable_tools(tools, choice):
        return None
    if _still_thinking(syntax, output_format, thinking).reasoning is None:
        return "all"
    return "after the gap" if _may_begin_with_space(output_format) else "after thinking"


def _still_thinking(
    syntax: AnswerSyntax, output_format: OutputFormat | None, thinking: ThinkingState
) -> AnswerSyntax:
    """Return the syntax, without thinking if the answer cannot contain any."""
    reasoning = syntax.reasoning
    if reasoning is None or reasoning.messages:  # Messages with headers can think at any time.
        return syntax
    ended = thinking == "after"
    if thinking == "before" and isinstance(output_format, ChoiceFormat):
        # Optional thinking cannot be distinguished from a choice that begins with its marker.
        ended = any(one.startswith(reasoning.open) for one in output_format.choices)
    return msgspec.structs.replace(syntax, reasoning=None) if ended else syntax


def _may_begin_with_space(output_format: OutputFormat) -> bool:
    match output_format:
        case JsonFormat():
            return False
        case ChoiceFormat(choices=choices):
            return any(choice[:1].isspace() for choice in choices)
        case _:
            return True


def _calls_are_constrained(tools: Sequence[Tool], callable_: Sequence[Tool], choice: ToolChoice) -> bool:
    """Return whether calls must be constrained although the answer need not call.

    That is the case for strict arguments (TOOL-01), inputs of custom tools (TOOL-14), tools that are shown but not
    allowed (TOOL-06), and if a second call is forbidden (TOOL-07).
    """
    if not callable_:
        return False
    constrained = any(tool.strict is True or tool.custom for tool in callable_)
    return constrained or len(callable_) < len(tools) or not choice.parallel


def _names(tools: Sequence[Tool]) -> list[str]:
    return [tool.name for tool in tools]


def _text_grammar(
    builder: GrammarBuilder, output_format: OutputFormat, syntax: AnswerSyntax, call_openings: Sequence[str]
) -> str:
    """Return the constrained text, with the header that some dialects write before text."""
    if not syntax.text_header:
        return _constrained_text(builder, output_format, call_openings)
    # A call has another header, so no text begins like one.
    return builder.sequence(
        [builder.literal(syntax.text_header), _constrained_text(builder, output_format, ())]
    )


def _constrained_text(
    builder: GrammarBuilder, output_format: OutputFormat, call_openings: Sequence[str]
) -> str:
    """Return the constrained text, without texts that begin with one of `call_openings`.

    Raises:
        ConstraintError: the constraint cannot be enforced, or a choice begins like a call.
    """
    match output_format:
        case JsonFormat(schema=schema, strict=strict):
            # `json_object` requires an object with any members (SO-02).
            with builder.relaxing(not strict):  # SO-01 is about strict schemas.
                return builder.json({"type": "object"} if schema is None else schema)
        case RegexFormat(pattern=pattern):
            return builder.regex(pattern, call_openings)
        case ChoiceFormat(choices=choices):
            if max(map(len, choices), default=0) > MAX_TEXT:
                raise ConstraintError(f"A choice has more than {MAX_TEXT} characters.")
            for choice in choices:
                if choice.startswith(tuple(call_openings)):
                    raise ConstraintError(
                        f"The choice {choice[:40]!r} begins like a call of this model and cannot be distinguished. "
                        "Leave the tools out, or send 'tool_choice': 'none'."
                    )
            return builder.one_of(choices)
        case LarkFormat(grammar=grammar):
            return builder.lark(grammar)
        case GbnfFormat(grammar=grammar):
            return builder.lark(to_lark(grammar))
        case TagsFormat(tags=tags):
            return builder.lark(_tags_grammar(tags))


def _tags_grammar(tags: Sequence[Tag]) -> str:
    """Return the Lark grammar of free text with tags."""
    described = [
        StructTag(trigger=tag.trigger, begin=tag.begin, grammar=dumps(tag.schema), end=tag.end)
        for tag in tags
    ]
    return str(StructTag.to_grammar(described, assume_special=False))


def _after_thinking(
    builder: GrammarBuilder, syntax: AnswerSyntax, body: str, thinking: ThinkingState, *, exact: bool = False
) -> str:
    """Return the body after free thinking; thinking that the prompt has begun must end first.

    With `exact` the gap between them is required, so that the parser knows where the body begins.
    """
    reasoning = syntax.reasoning
    if reasoning is None:
        return body
    inside = thinking == "inside"
    closed = builder.sequence(
        [
            builder.until(reasoning.close[0], without=list(syntax.not_in_thinking)),
            *_gap(builder, reasoning, exact=exact or reasoning.messages),
        ]
    )
    opened = builder.sequence([builder.choice(map(builder.literal, reasoning.open)), closed])
    if reasoning.messages:
        body = builder.sequence([builder.repeat(opened), body])
        return builder.sequence([closed, body]) if inside else body
    return builder.sequence([closed, body] if inside else [builder.optional(opened), body])


def _gap(builder: GrammarBuilder, reasoning: ReasoningDialect, *, exact: bool) -> list[str]:
    """Return the text between thinking and answer that belongs to neither."""
    if not reasoning.after_close:
        return []
    gap = builder.literal(reasoning.after_close)
    return [gap if exact else builder.optional(gap)]
