"""The grammar of a turn, composed in this one place: free thinking first, then what is promised."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from plumbline.dialects.formats.harmony import HEADERS
from plumbline.dialects.parsers.render import openings
from plumbline.dialects.registry import DialectChoice
from plumbline.dialects.spec.dialect import ReasoningDialect, ToolDialect, Unread
from plumbline.structured_output.grammar.builder import GrammarBuilder
from plumbline.structured_output.grammar.errors import ConstraintError
from plumbline.structured_output.grammar.json_schema import MAX_TEXT
from plumbline.structured_output.tool_calls import calls, markers, text_with_calls, text_without_calls
from plumbline.turn import ChoiceFormat, JsonFormat, LarkFormat, OutputFormat, RegexFormat, Tool, ToolChoice

__all__ = ["alone", "callable_tools", "compose", "unread_part"]

_NOTHING = DialectChoice(None, None)
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
    dialects: DialectChoice | None = None,
    inside: bool = False,
    thought: bool = False,
    loose: Collection[str] = (),
) -> str | None:
    """The grammar of a whole answer; None if nothing is promised.

    Args:
        builder: a fresh one.
        output_format: the form of the answer's text.
        tools: all tools that the model was shown.
        choice: which of them may or must be called.
        dialects: how the model writes thinking and calls; None for plain completions, all of which is text.
        inside: generation starts inside the thinking.
        thought: the prompt has ended the thinking already, as templates do that turn it off; there is no more of it.
        loose: names of tools that are held to the names and types of their parameters only, because the engine cannot
            hold their schemas as they are. What is strict or a form of text is never loosened.

    Raises:
        FormError: what is promised cannot be held.
    """
    callable_ = callable_tools(tools, choice)
    lazy = _must_be_held(tools, callable_, choice)
    if output_format is None and not lazy and choice.mode != "required":
        # TOOL-03: a model that may not call does not begin to, and so no markup of calls gets into its text.
        framed = _framed(dialects or _NOTHING)
        body = _without_calls(builder, dialects or _NOTHING, begun=thought) if choice.forbidden else None
        if body is None or framed.template is not None:
            return None
        thinks = _still_thinking(framed, None, inside=inside, thought=thought)
        return builder.build(_after_thinking(builder, thinks, body, inside=inside))
    dialects = _framed(dialects or _NOTHING)
    if dialects.template is not None:
        raise ConstraintError(
            "This model's answers are read by its tokenizer's response template, which says more of their text than "
            "that it is text, so it cannot be held to a form."
        )
    dialects = _still_thinking(dialects, output_format, inside=inside, thought=thought)
    no_calls = not callable_ or (dialects.tool is None and choice.mode == "auto")
    either = choice.mode != "required" and not no_calls
    begun = openings(dialects.tool, _names(callable_)) if dialects.tool is not None and either else ()
    form = None if output_format is None else _of_text(builder, output_format, dialects, begun)
    exact = output_format is not None and choice.mode != "required" and _may_begin_with_space(output_format)
    if form is not None and no_calls:
        return builder.build(_after_thinking(builder, dialects, form, inside=inside, exact=exact))
    if not callable_:
        return None
    if dialects.tool is None:
        raise ConstraintError(
            "This model has no dialect for tool calls (--tool-parser), so calls cannot be promised."
        )
    if form is None or output_format is None or choice.mode == "required":
        body = _free_answer(builder, dialects.tool, callable_, choice, loose=loose)
    else:
        beside: Literal["json", "text"] = "json" if isinstance(output_format, JsonFormat) else "text"
        parallel = choice.parallel
        called = calls(builder, dialects.tool, callable_, parallel=parallel, loose=loose, beside=beside)
        body = builder.choice([called, form])
    return builder.build(_after_thinking(builder, dialects, body, inside=inside, exact=exact))


def alone(
    builder: GrammarBuilder,
    output_format: OutputFormat | None,
    tools: Sequence[Tool],
    choice: ToolChoice,
    dialects: DialectChoice | None,
) -> str | None:
    """The grammar of a text that calls may come instead of, where they take away some of its form.

    What begins like a call is none. If nothing is left, the engine says so of this grammar, and not of the whole.

    Raises:
        FormError: the form cannot be held.
    """
    tool = None if dialects is None else dialects.tool
    callable_ = callable_tools(tools, choice)
    if (
        tool is None
        or not callable_
        or choice.mode == "required"
        or not isinstance(output_format, RegexFormat)
    ):
        return None
    return builder.build(_form(builder, output_format, openings(tool, _names(callable_))))


def unread_part(
    output_format: OutputFormat | None,
    tools: Sequence[Tool],
    choice: ToolChoice,
    dialects: DialectChoice | None,
    *,
    inside: bool,
    thought: bool,
) -> Unread | None:
    """What of an answer is text whatever it looks like, because its form is promised; the arguments are `compose`'s.

    None if nothing is: there is no form of text, or there have to be calls. Where calls may come instead, they are what
    begins with one of their `openings`.
    """
    dialects = _framed(dialects or _NOTHING)
    if output_format is None or dialects.template is not None:
        return None
    dialects = _still_thinking(dialects, output_format, inside=inside, thought=thought)
    if choice.mode == "required" and callable_tools(tools, choice):
        return None
    if dialects.reasoning is None:
        return "all"
    return "after the gap" if _may_begin_with_space(output_format) else "after thinking"


def _framed(dialects: DialectChoice) -> DialectChoice:
    """The dialects; a response template that knows thinking and plain text only as the reasoning dialect that it is."""
    frame = None if dialects.template is None else dialects.template.frame()
    return dialects if frame is None else DialectChoice(None, frame.reasoning)


def _still_thinking(
    dialects: DialectChoice, output_format: OutputFormat | None, *, inside: bool, thought: bool
) -> DialectChoice:
    """The dialects, without the reasoning if there can be none."""
    reasoning = dialects.reasoning
    if reasoning is None or reasoning.reader == "harmony":
        return dialects
    if not inside and isinstance(output_format, ChoiceFormat):
        # Thinking that may be left out cannot be told from a choice that begins like it.
        thought = thought or any(one.startswith(reasoning.open) for one in output_format.choices)
    return msgspec.structs.replace(dialects, reasoning=None) if thought else dialects


def _may_begin_with_space(output_format: OutputFormat) -> bool:
    match output_format:
        case JsonFormat():
            return False
        case ChoiceFormat(choices=choices):
            return any(choice[:1].isspace() for choice in choices)
        case _:
            return True


def _without_calls(builder: GrammarBuilder, dialects: DialectChoice, *, begun: bool) -> str | None:
    """Text in which no call begins; None if calls have no marker that could be kept out, or if there are none."""
    if dialects.template is not None:
        begins = dialects.template.call_begins
        return builder.text(without=begins) if begins else None
    dialect = dialects.tool
    if dialect is None or (dialect.reader != "harmony" and not all(s.open for s in dialect.sections)):
        return None
    return text_without_calls(builder, dialect, begun=begun)


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


def _free_answer(
    builder: GrammarBuilder,
    dialect: ToolDialect,
    tools: Sequence[Tool],
    choice: ToolChoice,
    *,
    loose: Collection[str],
) -> str:
    """An answer whose text has no form: calls alone where they are required, else text with calls in it."""
    if choice.mode == "required":
        return calls(builder, dialect, tools, parallel=choice.parallel, loose=loose)
    return text_with_calls(builder, dialect, tools, parallel=choice.parallel, loose=loose)


def _of_text(
    builder: GrammarBuilder, output_format: OutputFormat, dialects: DialectChoice, begun: Sequence[str]
) -> str:
    form = _form(builder, output_format, begun)
    if dialects.reasoning is not None and dialects.reasoning.reader == "harmony":
        return builder.sequence([builder.literal("<|channel|>final<|message|>"), form])
    return form


def _form(builder: GrammarBuilder, output_format: OutputFormat, begun: Sequence[str]) -> str:
    """The form; what begins with one of the texts `begun` is a call.

    Raises:
        FormError: the form cannot be held, or a choice of it begins like a call.
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
    builder: GrammarBuilder, dialects: DialectChoice, body: str, *, inside: bool, exact: bool = False
) -> str:
    """The body, after thinking that is free. Thinking that the prompt has begun has to come to its end first.

    With `exact` the gap between them has to be there, so that it is known where the body begins.
    """
    reasoning = dialects.reasoning
    if reasoning is None:
        return body
    # Where a call ends the thinking by itself, one that begins in there would be a call that nobody holds.
    without = markers(dialects.tool) if reasoning.call_ends and dialects.tool is not None else []
    if reasoning.reader == "harmony":
        without = list(HEADERS)
    closed = builder.sequence(
        [builder.until(reasoning.close[0], without=without), *_gap(builder, reasoning, exact=exact)]
    )
    opened = builder.sequence([builder.choice(map(builder.literal, reasoning.open)), closed])
    if reasoning.reader == "harmony":  # Its thinking may be several messages.
        body = builder.sequence([builder.repeat(opened), body])
        return builder.sequence([closed, body]) if inside else body
    return builder.sequence([closed, body] if inside else [builder.optional(opened), body])


def _gap(builder: GrammarBuilder, reasoning: ReasoningDialect, *, exact: bool) -> list[str]:
    """What stands between the thinking and the answer and belongs to neither."""
    if reasoning.reader == "harmony":
        return [builder.literal("<|start|>assistant")]
    if not reasoning.after_close:
        return []
    gap = builder.literal(reasoning.after_close)
    return [gap if exact else builder.optional(gap)]
