"""From a turn to the grammar that its answer is held to, compiled by the engine before anything is promised."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence

import msgspec

from plumbline.dialects.model_dialect import AnswerFrame
from plumbline.dialects.spec.answer_syntax import AnswerSyntax
from plumbline.dialects.spec.dialect import Unread
from plumbline.engines.port import Engine, RefusedRequestError
from plumbline.structured_output.answer_grammar import alone, callable_tools, compose, unread_part
from plumbline.structured_output.grammar.builder import GrammarBuilder
from plumbline.structured_output.grammar.errors import ConstraintError
from plumbline.structured_output.markup_schema import unspelled
from plumbline.text.tokenizer import TextTokenizer
from plumbline.turn import ChatPrompt, Tool, ToolChoice, Turn

__all__ = ["Constraint", "ConstraintCompiler", "is_best_effort"]

_SEARCH_TIME = 5.0
"""Seconds for finding out which tools of a request cannot be held."""


class Constraint(msgspec.Struct, frozen=True):
    """What a turn's answers are held to."""

    grammar: str | None = None
    """None if nothing is promised."""
    unread: Unread | None = None
    """What of an answer is text whatever it looks like."""
    warnings: tuple[str, ...] = ()
    """Which tools that are not strict gave way, or are held to a part of their parameters only, and why."""


class ConstraintCompiler:
    """Composes and compiles the grammars of one served model. Has no state of its own.

    Args:
        engine: what will hold the answers.
        tokenizer: the model's.
    """

    def __init__(self, engine: Engine, tokenizer: TextTokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer

    async def grammar(self, turn: Turn, syntax: AnswerSyntax, frame: AnswerFrame) -> Constraint:
        """What the turn's answers are held to.

        Where a tool that is not strict cannot be held, that tool gives way to the names and types of its parameters,
        and a warning says so; what is strict, and every form of text, is held or refused.

        Args:
            turn: the turn.
            syntax: how the model answers it.
            frame: where its prompt leaves the model.

        Raises:
            ConstraintError: what is promised cannot be held; the text says why, and for which tool.
        """
        reasoning = syntax.reasoning
        appended = reasoning is not None and reasoning.append and frame.thinking != "after"
        if turn.output_format is not None and reasoning is not None and appended:
            raise ConstraintError(
                f"The reasoning parser of this server ({reasoning.name}) leaves the thinking in the text, and that has "
                "no form. Turn thinking off, or serve the model with the parser that takes it out."
            )
        loose: dict[str, str] = {}
        last = time.monotonic() + _SEARCH_TIME
        while True:
            try:
                grammar = await self._compiled(turn, syntax, frame, loose)
            except ConstraintError as error:
                unheld = await self._unheld(turn, syntax, loose, last)
                if not unheld:
                    raise ConstraintError(str(error), tool=error.tool or await self._culprit(turn)) from error
                loose |= unheld
            else:
                unread = unread_part(
                    turn.output_format, _tools(turn), turn.tool_choice, syntax, frame.thinking
                )
                warnings = [_warning(name, reason) for name, reason in loose.items()]
                if grammar is not None:
                    warnings += await asyncio.to_thread(self._left_out, turn, syntax, loose)
                return Constraint(grammar, unread, tuple(warnings))

    def _left_out(self, turn: Turn, syntax: AnswerSyntax, loose: Collection[str]) -> list[str]:
        """What the markup of calls keeps the grammar from holding of tools that are not strict."""
        if syntax.calls is None:
            return []
        call_format = syntax.calls.sections[0].call_format
        found: list[str] = []
        for tool in _may_give_way(turn, loose):
            reason = unspelled(call_format, tool.parameters or {})
            if reason is not None:
                found.append(f"calls of {tool.name} are not held to all that their parameters ask: {reason}")
        return found

    async def _compiled(
        self, turn: Turn, syntax: AnswerSyntax, frame: AnswerFrame, loose: Collection[str]
    ) -> str | None:
        """The whole grammar, which the engine has compiled.

        Raises:
            ConstraintError: it cannot be held.
        """
        grammar = await asyncio.to_thread(
            compose,
            GrammarBuilder(self._tokenizer.added, self._tokenizer.special_ids),
            output_format=turn.output_format,
            tools=_tools(turn),
            choice=turn.tool_choice,
            syntax=syntax,
            thinking=frame.thinking,
            loose=loose,
        )
        if grammar is None or (is_best_effort(turn) and turn.sampling.allowed_token_ids is not None):
            return None  # An engine takes no grammar beside those ids, and they are what the client asks for.
        info = self._engine.info
        reason: str | None = f"The engine of this server ({info.name}) cannot hold an answer to a form."
        if "grammar" in info.features:
            reason = await self._refusal(grammar)
        if reason is not None and is_best_effort(turn):
            return None
        if reason is not None:
            raise ConstraintError(reason)
        await self._check_reachable(turn, syntax)
        return grammar

    async def _check_reachable(self, turn: Turn, syntax: AnswerSyntax) -> None:
        """Where calls may come instead of a form, some text of the form does not begin like one.

        Raises:
            ConstraintError: none does, so the whole grammar would be one of calls, and nothing would show it.
        """
        builder = GrammarBuilder(self._tokenizer.added, self._tokenizer.special_ids)
        form = alone(builder, turn.output_format, _tools(turn), turn.tool_choice, syntax)
        if form is not None and await self._refusal(form) is not None:
            raise ConstraintError(
                "Every text of this form begins like a call of this model, so it cannot be told from one. "
                "Leave the tools out, or send 'tool_choice': 'none'."
            )

    async def _refusal(self, grammar: str) -> str | None:
        """Why the engine does not take a grammar; None if it does."""
        try:
            await self._engine.check_grammar(grammar)
        except RefusedRequestError as error:
            return str(error)
        return None

    async def _unheld(
        self, turn: Turn, syntax: AnswerSyntax, loose: Mapping[str, str], last: float
    ) -> dict[str, str]:
        """The tools that may still give way and have to, with the reason; all of them if none is at fault alone.

        Each may take as long to compile as one grammar may, and a request has any number of them: after `last` the
        others give way untried.
        """
        candidates = _may_give_way(turn, loose)
        found: dict[str, str] = {}
        for tool in candidates:
            try:
                async with asyncio.timeout(last - time.monotonic()):
                    reason = await self._alone(tool, syntax)
            except TimeoutError:
                reason = "there was no time left to try them alone"
            if reason is not None:
                found[tool.name] = reason
        return found or {tool.name: "together they are too much for the engine" for tool in candidates}

    async def _alone(self, tool: Tool, syntax: AnswerSyntax) -> str | None:
        """Why a call of this tool cannot be held by itself; None if it can."""
        try:
            grammar = await asyncio.to_thread(
                compose,
                GrammarBuilder(self._tokenizer.added, self._tokenizer.special_ids),
                tools=(tool,),
                choice=ToolChoice(mode="required", parallel=False),
                syntax=syntax,
            )
        except ConstraintError as error:
            return str(error)
        return None if grammar is None else await self._refusal(grammar)

    async def _culprit(self, turn: Turn) -> str | None:
        """The first strict tool whose parameters cannot be held by themselves; the message names its field."""
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


def is_best_effort(turn: Turn) -> bool:
    """Whether a grammar of the turn promises nothing, and only keeps out calls that nobody asked for (TOOL-03).

    It is left out where it cannot be; such calls are text then.
    """
    return turn.output_format is None and turn.tool_choice.mode == "none"


def _may_give_way(turn: Turn, loose: Collection[str]) -> list[Tool]:
    """The tools that may be called and promise nothing of their arguments, but for those that gave way."""
    return [
        tool
        for tool in callable_tools(_tools(turn), turn.tool_choice)
        if tool.strict is not True and tool.parameters and not tool.custom and tool.name not in loose
    ]


def _tools(turn: Turn) -> Sequence[Tool]:
    return turn.prompt.tools if isinstance(turn.prompt, ChatPrompt) else ()


def _warning(name: str, reason: str) -> str:
    return f"calls of {name} are held to the names and types of their arguments only: {reason.rstrip('.')}"
