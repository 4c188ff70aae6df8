"""Compile the constraint of a turn: compose its grammar and let the engine check it before the answer starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence

import msgspec

from plumbline.answer.dialects.model_dialect import AnswerFrame
from plumbline.answer.dialects.spec.answer_syntax import AnswerSyntax
from plumbline.answer.dialects.spec.dialect import Unparsed
from plumbline.answer.structured_output.answer_grammar import (
    callable_tools,
    compose,
    text_besides_calls,
    unparsed_part,
)
from plumbline.answer.structured_output.grammar.builder import GrammarBuilder
from plumbline.answer.structured_output.grammar.errors import ConstraintError, named_failures
from plumbline.answer.structured_output.markup_schema import unsupported_reason
from plumbline.answer.structured_output.tool_calls import next_call
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.answer.turn import ChatPrompt, Tool, ToolChoice, Turn
from plumbline.port.engine import Engine, RefusedRequestError

__all__ = ["OVERLAPPING", "Constraint", "ConstraintCompiler", "is_best_effort", "refused_keyword"]

_SEARCH_TIME = 5.0
"""Seconds for finding out which tools of a request cannot be enforced."""


class Constraint(msgspec.Struct, frozen=True):
    """The constraint on a turn's answers."""

    grammar: str | None = None
    """The grammar, which the engine has compiled; None for no constraint."""
    unparsed: Unparsed | None = None
    """The part of an answer that is constrained text and is not parsed for markup."""
    warnings: tuple[str, ...] = ()
    """Log lines about tools without `strict` whose schema is not fully enforced, with the reason."""
    unenforced: tuple[str, ...] = ()
    """The places of keywords that are not enforced, such as `#/properties/a/format` of the text's schema or
    `get_weather#/properties/day/format` of a tool's; `get_weather#` means that only its names and types are."""


class ConstraintCompiler:
    """Compose and compile the grammars of one served model. Stateless.

    Args:
        engine: the engine that generates the answers.
        tokenizer: the model's tokenizer.
        client: whose requests have the grammars.
    """

    def __init__(self, engine: Engine, tokenizer: TextTokenizer, client: str = "") -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._client = client

    async def grammar(self, turn: Turn, syntax: AnswerSyntax, frame: AnswerFrame) -> Constraint:
        """Return the constraint on the turn's answers.

        A tool without `strict` whose schema cannot be enforced is relaxed to the names and types of its parameters,
        with a warning. Strict tools and text constraints are enforced or refused.

        Args:
            turn: the turn.
            syntax: how the model writes its answer.
            frame: where the answer starts.

        Raises:
            ConstraintError: a constraint cannot be enforced; the text states why, `tool` names the tool.
        """
        reasoning = syntax.reasoning
        appended = reasoning is not None and reasoning.append and frame.thinking != "after"
        if turn.output_format is not None and reasoning is not None and appended:
            raise ConstraintError(
                f"The reasoning parser of this server ({reasoning.name}) leaves the thinking in the text, so the text "
                "cannot be constrained. Turn thinking off, or serve the model with a parser that separates it."
            )
        relaxed: dict[str, str] = {}
        given_up: list[str] = []
        deadline = time.monotonic() + _SEARCH_TIME
        while True:
            try:
                grammar, notes = await self._compiled(turn, syntax, frame, relaxed, given_up=given_up)
            except ConstraintError as error:
                refused = [refused_keyword(str(error)), *(["not"] if _may_negate(turn) else [])]
                if more := [name for name in refused if name and name not in given_up]:
                    given_up.append(more[0])  # Once more, with what may be relaxed.
                    continue
                unsupported = await self._unsupported(turn, syntax, relaxed, deadline)
                if not unsupported:
                    raise ConstraintError(
                        str(error), tool=error.tool or await self._first_unsupported_tool(turn)
                    ) from error
                relaxed |= unsupported
            else:
                unparsed = unparsed_part(
                    turn.output_format, _tools(turn), turn.tool_choice, syntax, frame.thinking
                )
                warnings = [_warning(name, reason) for name, reason in relaxed.items()]
                unenforced = [*(f"{name}#" for name in relaxed), *notes]
                if grammar is not None:
                    left_out = await asyncio.to_thread(self._left_out, turn, syntax, relaxed)
                    warnings += left_out.values()
                    unenforced += [f"{name}#" for name in left_out]
                return Constraint(grammar, unparsed, tuple(warnings), tuple(unenforced))

    async def next_call(
        self, tools: Sequence[Tool], syntax: AnswerSyntax, *, before: str, continues: bool
    ) -> str | None:
        """Return the grammar of one call of these tools, as far as it can be enforced; None if it cannot.

        Args:
            tools: the tools, of which one is called.
            syntax: how the model writes its answer.
            before: text before the call and its markup.
            continues: the call follows another one whose section is still open.
        """
        assert syntax.calls is not None
        names = [tool.name for tool in tools]
        for given_up, relaxed in (((), ()), (OVERLAPPING, ()), (OVERLAPPING, names)):
            builder = self._builder()
            builder.given_up = given_up
            try:
                call = await asyncio.to_thread(
                    next_call,
                    builder,
                    syntax.calls,
                    tools,
                    before=before,
                    continues=continues,
                    relaxed=relaxed,
                )
                grammar = builder.build(call)
            except ConstraintError:
                continue
            if await self._refusal(grammar) is None:
                return grammar
        return None

    def _left_out(self, turn: Turn, syntax: AnswerSyntax, relaxed: Collection[str]) -> dict[str, str]:
        """Return warnings about what the call format cannot enforce, by the names of tools without `strict`."""
        if syntax.calls is None:
            return {}
        call_format = syntax.calls.sections[0].call_format
        found: dict[str, str] = {}
        for tool in _may_be_relaxed(turn, relaxed):
            try:
                with named_failures():
                    reason = unsupported_reason(call_format, tool.parameters or {})
            except ConstraintError as error:
                reason = str(error)
            if reason is not None:
                found[tool.name] = f"the parameters of {tool.name} are not fully enforced: {reason}"
        return found

    async def _compiled(
        self,
        turn: Turn,
        syntax: AnswerSyntax,
        frame: AnswerFrame,
        relaxed: Collection[str],
        *,
        given_up: Collection[str],
    ) -> tuple[str | None, Collection[str]]:
        """Return the grammar of the answer after the engine has compiled it, and what it does not enforce.

        Raises:
            ConstraintError: the grammar cannot be enforced.
        """
        builder = self._builder()
        builder.given_up = given_up
        grammar = await asyncio.to_thread(
            compose,
            builder,
            output_format=turn.output_format,
            tools=_tools(turn),
            choice=turn.tool_choice,
            syntax=syntax,
            thinking=frame.thinking,
            relaxed=relaxed,
        )
        if grammar is None or (is_best_effort(turn) and turn.sampling.allowed_token_ids is not None):
            return (
                None,
                (),
            )  # Engines accept no grammar with allowed_token_ids, which the client has requested.
        info = self._engine.info
        reason: str | None = f"The engine of this server ({info.name}) does not support structured output."
        if "grammar" in info.features:
            reason = await self._refusal(grammar)
        if reason is not None and is_best_effort(turn):
            return None, ()
        if reason is not None:
            raise ConstraintError(reason)
        await self._check_reachable(turn, syntax)
        return grammar, builder.notes

    def _builder(self) -> GrammarBuilder:
        return GrammarBuilder(self._tokenizer.added, self._tokenizer.special_ids)

    async def _check_reachable(self, turn: Turn, syntax: AnswerSyntax) -> None:
        """Check that a text constraint combined with tools allows a text that does not begin like a call.

        Raises:
            ConstraintError: it allows no such text, so only calls would be possible.
        """
        builder = self._builder()
        text = text_besides_calls(builder, turn.output_format, _tools(turn), turn.tool_choice, syntax)
        if text is not None and await self._refusal(text) is not None:
            raise ConstraintError(
                "Every text that the constraint allows begins like a call of this model and cannot be distinguished. "
                "Leave the tools out, or send 'tool_choice': 'none'."
            )

    async def _refusal(self, grammar: str) -> str | None:
        """Return the reason why the engine refuses a grammar; None if it accepts it."""
        try:
            await self._engine.check_grammar(grammar, self._client)
        except RefusedRequestError as error:
            return str(error)
        return None

    async def _unsupported(
        self, turn: Turn, syntax: AnswerSyntax, relaxed: Mapping[str, str], deadline: float
    ) -> dict[str, str]:
        """Return the tools to relax, with the reason; all candidates if none fails alone.

        Compiling each may take as long as the limit for one grammar, so after `deadline` the others are
        relaxed untried.
        """
        candidates = _may_be_relaxed(turn, relaxed)
        found: dict[str, str] = {}
        for tool in candidates:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    reason = await self._alone(tool, syntax)
            except TimeoutError:
                reason = "no time was left to try it"
            if reason is not None:
                found[tool.name] = reason
        return found or {tool.name: "together the tools exceed the engine's limits" for tool in candidates}

    async def _alone(self, tool: Tool, syntax: AnswerSyntax) -> str | None:
        """Return the reason why calls of this tool alone cannot be enforced; None if they can."""
        try:
            builder = self._builder()
            builder.given_up = OVERLAPPING
            grammar = await asyncio.to_thread(
                compose,
                builder,
                tools=(tool,),
                choice=ToolChoice(mode="required", parallel=False),
                syntax=syntax,
            )
        except ConstraintError as error:
            return str(error)
        return None if grammar is None else await self._refusal(grammar)

    async def _first_unsupported_tool(self, turn: Turn) -> str | None:
        """Return the first strict tool whose parameters alone cannot be enforced, for the error's `param`."""
        for tool in callable_tools(_tools(turn), turn.tool_choice):
            if tool.strict is True and tool.parameters:
                builder = GrammarBuilder({}, frozenset())
                try:
                    grammar = builder.build(builder.json(tool.parameters))
                except ConstraintError:
                    return tool.name
                if await self._refusal(grammar) is not None:
                    return tool.name
        return None


OVERLAPPING = ("oneOf", "patternProperties", "pattern", "not")
"""Keywords that only the engine can refuse: it compares what their parts allow, and has limits for what
`not`, `if`, `oneOf`, `contains` and `uniqueItems` are rewritten to."""
_NEGATING = ('"not"', '"if"', '"oneOf"', '"contains"', '"uniqueItems"')


def refused_keyword(reason: str) -> str:
    """Return which of `OVERLAPPING` an engine refuses with this reason; empty for none."""
    if "determine if regex is empty" in reason:
        return "pattern"  # It gives up to intersect several conditions on a text.
    return next((name for name in OVERLAPPING if f"'{name}'" in reason), "")


def _may_negate(turn: Turn) -> bool:
    """Return whether a schema of the turn may have a keyword that is rewritten to larger schemas."""
    schemas = [turn.output_format, *(tool.parameters for tool in _tools(turn))]
    text = msgspec.json.encode(schemas, enc_hook=float).decode()
    return any(name in text for name in _NEGATING)


def is_best_effort(turn: Turn) -> bool:
    """Return whether the grammar of the turn only excludes calls with `tool_choice: none` (TOOL-03).

    Such a grammar is left out if it is not supported; calls are then text.
    """
    return turn.output_format is None and turn.tool_choice.mode == "none"


def _may_be_relaxed(turn: Turn, relaxed: Collection[str]) -> list[Tool]:
    """Return the callable tools without `strict` that are not relaxed yet."""
    return [
        tool
        for tool in callable_tools(_tools(turn), turn.tool_choice)
        if tool.strict is not True and tool.parameters and not tool.custom and tool.name not in relaxed
    ]


def _tools(turn: Turn) -> Sequence[Tool]:
    return turn.prompt.tools if isinstance(turn.prompt, ChatPrompt) else ()


def _warning(name: str, reason: str) -> str:
    return f"only the names and types of the parameters of {name} are enforced: {reason.rstrip('.')}"
