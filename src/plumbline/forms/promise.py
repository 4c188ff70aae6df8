"""From a turn to the grammar that its answer is held to, compiled by the engine before anything is promised."""

from __future__ import annotations

import asyncio

from plumbline.dialects.registry import Chosen
from plumbline.engine.api import Engine, RefusedRequestError
from plumbline.forms.compose import callable_tools, compose
from plumbline.forms.errors import FormError
from plumbline.forms.grammar import GrammarBuilder
from plumbline.text.tokenizer import TextTokenizer
from plumbline.turn import ChatPrompt, Turn

__all__ = ["Promises"]


class Promises:
    """Composes and compiles the grammars of one served model. Has no state of its own.

    Args:
        engine: what will hold the answers.
        tokenizer: the model's.
        dialects: how it writes thinking and calls, None if that is not known.
    """

    def __init__(self, engine: Engine, tokenizer: TextTokenizer, dialects: Chosen | None) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._dialects = dialects

    async def grammar(self, turn: Turn, *, inside: bool, ended: bool) -> str | None:
        """The grammar of the turn's answers; None if nothing is promised.

        Args:
            turn: the turn.
            inside: generation starts inside the thinking.
            ended: the prompt has ended the thinking.

        Raises:
            FormError: what is promised cannot be held; the text says why, and for which tool.
        """
        # A message that is continued has begun with its text, so there is no thinking before what is promised.
        continues = isinstance(turn.prompt, ChatPrompt) and turn.prompt.continue_final_message
        thought = not inside and (continues or ended)
        grammar = await asyncio.to_thread(self._composed, turn, inside=inside, thought=thought)
        if grammar is None:
            return None
        info = self._engine.info
        if "grammar" not in info.features:
            raise FormError(f"The engine of this server ({info.name}) cannot hold an answer to a form.")
        try:
            await self._engine.check_grammar(grammar)
        except RefusedRequestError as error:
            # Only the tools that are not strict give way, and only if that helps.
            looser = await asyncio.to_thread(self._composed, turn, inside=inside, thought=thought, loose=True)
            if looser is None or looser == grammar or not await self._compiles(looser):
                raise FormError(str(error), tool=await self._culprit(turn)) from error
            return looser
        return grammar

    async def _compiles(self, grammar: str) -> bool:
        try:
            await self._engine.check_grammar(grammar)
        except RefusedRequestError:
            return False
        return True

    async def _culprit(self, turn: Turn) -> str | None:
        """The first strict tool whose parameters cannot be held by themselves; the message names its field."""
        tools = turn.prompt.tools if isinstance(turn.prompt, ChatPrompt) else ()
        for tool in callable_tools(tools, turn.tool_choice):
            if tool.strict is True and tool.parameters:
                builder = GrammarBuilder({}, frozenset())
                if not await self._compiles(builder.build(builder.json(tool.parameters))):
                    return tool.name
        return None

    def _composed(self, turn: Turn, *, inside: bool, thought: bool, loose: bool = False) -> str | None:
        prompt = turn.prompt
        chats = isinstance(prompt, ChatPrompt)
        try:
            return compose(
                GrammarBuilder(self._tokenizer.added, self._tokenizer.special_ids),
                output_format=turn.output_format,
                tools=prompt.tools if isinstance(prompt, ChatPrompt) else (),
                choice=turn.tool_choice,
                dialects=self._dialects if chats else None,
                inside=inside,
                thought=thought,
                loose=loose,
            )
        except FormError:
            if loose:
                raise
            return self._composed(turn, inside=inside, thought=thought, loose=True)
