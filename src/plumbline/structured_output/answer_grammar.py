"""The grammar of a turn, composed in this one place: free thinking first, then what is promised."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from plumbline.dialects.model_dialect import ThinkingState
from plumbline.dialects.parsers.render import openings
from plumbline.dialects.spec.answer_syntax import AnswerSyntax
from plumbline.dialects.spec.dialect import ReasoningDialect, Unread
from plumbline.structured_output.grammar.builder import GrammarBuilder
from plumbline.structured_output.grammar.errors import ConstraintError
from plumbline.structured_output.grammar.json_schema import MAX_TEXT
from plumbline.structured_output.tool_calls import calls, text_with_calls, text_without_calls
from plumbline.turn import ChoiceFormat, JsonFormat, LarkFormat, OutputFormat, RegexFormat, Tool, ToolChoice

__all__ = ["alone", "callable_tools", "compose", "unread_part"]

_TEXT_ONLY = AnswerSyntax()
_NO_CALLS = ToolChoice(mode="none")


def callable_tools(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """The tools that may be called (TOOL-03, TOOL-06)."""
    if choice.mode == "none":
        return []
    return [tool for tool in tools if choice.names is None or tool.name in choice.names]


def compose(
    builder: GrammarBuilder,
    *,
    output_format: OutputFormat | None = None,
    tools: Sequence[Tool] = (),
    choice: ToolChoice = _NO_CALLS,
    syntax: AnswerSyntax = _TEXT_ONLY,
    thinking: ThinkingState = "before",
    loose: Collection[str] = (),
) -> str | None:
    """The grammar of a whole answer; None if nothing is promised.

    Args:
        builder: a fresh one.
        output_format: the form of the answer's text.
        tools: all tools that the model was shown.
        choice: which of them may or must be called.
        syntax: how the model writes thinking, text and calls; by default all is text, as in plain completions.
        thinking: where the answer starts: "inside" thinking that has to end first, or "after" all thinking, as where a
            template has turned it off.
        loose: names of tools that are held to the names and types of their parameters only, because the engine cannot
            hold their schemas as they are. What is strict or a form of text is never loosened.

    Raises:
        ConstraintError: what is promised cannot be held.
    """
    callable_ = callable_tools(tools, choice)
    lazy = _must_be_held(tools, callable_, choice)
    if output_format is None and not lazy and choice.mode != "required":
        # TOOL-03: a model that may not call does not begin to, and so no markup of calls gets into its text.
        if not choice.forbidden or not syntax.call_starts or not syntax.is_plain_text:
            return None
        body = text_without_calls(builder, syntax, begun=thinking == "after")
        return builder.build(
            _after_thinking(builder, _still_thinking(syntax, None, thinking), body, thinking)
        )
    if not syntax.is_plain_text:
        raise ConstraintError(
            "This model's answers are read by its tokenizer's response template, which says more of their text than "
            "that it is text, so it cannot be held to a form."
        )
    syntax = _still_thinking(syntax, output_format, thinking)
    no_calls = not callable_ or (syntax.calls is None and choice.mode == "auto")
    either = choice.mode != "required" and not no_calls
    begun = openings(syntax.calls, _names(callable_)) if syntax.calls is not None and either else ()
    form = None if output_format is None else _of_text(builder, output_format, syntax, begun)
    exact = output_format is not None and choice.mode != "required" and _may_begin_with_space(output_format)
    if form is not None and no_calls:
        return builder.build(_after_thinking(builder, syntax, form, thinking, exact=exact))
    if not callable_:
        return None
    if syntax.calls is None:
        raise ConstraintError(
            "This model has no dialect for tool calls (--tool-parser), so calls cannot be promised."
        )
    if form is None or output_format is None or choice.mode == "required":
        if choice.mode == "required":
            body = calls(builder, syntax.calls, callable_, parallel=choice.parallel, loose=loose)
        else:
            body = text_with_calls(builder, syntax, callable_, parallel=choice.parallel, loose=loose)
    else:
        beside: Literal["json", "text"] = "json" if isinstance(output_format, JsonFormat) else "text"
        parallel = choice.parallel
        called = calls(builder, syntax.calls, callable_, parallel=parallel, loose=loose, beside=beside)
        body = builder.choice([called, form])
    return builder.build(_after_thinking(builder, syntax, body, thinking, exact=exact))


def alone(
    builder: GrammarBuilder,
    output_format: OutputFormat | None,
    tools: Sequence[Tool],
    choice: ToolChoice,
    syntax: AnswerSyntax,
) -> str | None:
    """The grammar of a text that calls may come instead of, where they take away some of its form.

    What begins like a call is none. If nothing is left, the engine says so of this grammar, and not of the whole.

    Raises:
        ConstraintError: the form cannot be held.
    """
    callable_ = callable_tools(tools, choice)
    if (
        syntax.calls is None
        or not callable_
        or choice.mode == "required"
        or not isinstance(output_format, RegexFormat)
    ):
        return None
    return builder.build(_form(builder, output_format, openings(syntax.calls, _names(callable_))))


def unread_part(
    output_format: OutputFormat | None,
    tools: Sequence[Tool],
    choice: ToolChoice,
    syntax: AnswerSyntax,
    thinking: ThinkingState,
) -> Unread | None:
    """What of an answer is text whatever it looks like, because its form is promised; the arguments are `compose`'s.

    None if nothing is: there is no form of text, or there have to be calls. Where calls may come instead, they are what
    begins with one of their `openings`.
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
    """The syntax, without thinking if there can be none."""
    reasoning = syntax.reasoning
    if reasoning is None or reasoning.messages:  # A header can be written at any time.
        return syntax
    ended = thinking == "after"
    if thinking == "before" and isinstance(output_format, ChoiceFormat):
        # Thinking that may be left out cannot be told from a choice that begins like it.
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


def _must_be_held(tools: Sequence[Tool], callable_: Sequence[Tool], choice: ToolChoice) -> bool:
    """Whether an answer that need not call has to be held all the same.

    That is so for arguments that are strict (TOOL-01) or a custom tool's input (TOOL-14), for tools that are shown but
    not allowed (TOOL-06), and where a second call is forbidden (TOOL-07).
    """
    if not callable_:
        return False
    promised = any(tool.strict is True or tool.custom for tool in callable_)
    return promised or len(callable_) < len(tools) or not choice.parallel


def _names(tools: Sequence[Tool]) -> list[str]:
    return [tool.name for tool in tools]


def _of_text(
    builder: GrammarBuilder, output_format: OutputFormat, syntax: AnswerSyntax, begun: Sequence[str]
) -> str:
    form = _form(builder, output_format, begun)
    if not syntax.text_header:
        return form
    return builder.sequence([builder.literal(syntax.text_header), form])


def _form(builder: GrammarBuilder, output_format: OutputFormat, begun: Sequence[str]) -> str:
    """The form; what begins with one of the texts `begun` is a call.

    Raises:
        ConstraintError: the form cannot be held, or a choice of it begins like a call.
    """
    match output_format:
        case JsonFormat(schema=schema):
            # `json_object` promises an object, whatever is in it (SO-02).
            return builder.json({"type": "object"} if schema is None else schema)
        case RegexFormat(pattern=pattern):
            return builder.regex(pattern, begun)
        case ChoiceFormat(choices=choices):
            if max(map(len, choices), default=0) > MAX_TEXT:
                raise ConstraintError(f"A choice has more than {MAX_TEXT} characters.")
            for choice in choices:
                if choice.startswith(tuple(begun)):
                    raise ConstraintError(
                        f"The choice {choice[:40]!r} begins like a call of this model, so it cannot be told from one. "
                        "Leave the tools out, or send 'tool_choice': 'none'."
                    )
            return builder.one_of(choices)
        case LarkFormat(grammar=grammar):
            return builder.lark(grammar)


def _after_thinking(
    builder: GrammarBuilder, syntax: AnswerSyntax, body: str, thinking: ThinkingState, *, exact: bool = False
) -> str:
    """The body, after thinking that is free. Thinking that the prompt has begun has to come to its end first.

    With `exact` the gap between them has to be there, so that it is known where the body begins.
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
    """What stands between the thinking and the answer and belongs to neither."""
    if not reasoning.after_close:
        return []
    gap = builder.literal(reasoning.after_close)
    return [gap if exact else builder.optional(gap)]
