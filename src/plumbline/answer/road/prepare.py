"""Prepare a turn: render its prompt, check that it fits, and compile the constraint on its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from plumbline.answer.dialects.kinds.plain import PLAIN
from plumbline.answer.dialects.model_dialect import AnswerFrame, ModelDialect
from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.spec.call_format import ArgumentSyntax
from plumbline.answer.road.begun import after_beginning
from plumbline.answer.road.errors import EmptyPromptError, NoThinkingError, PromptTooLongError
from plumbline.answer.road.prompt_tokens import PromptRenderer, PromptTokens, prompt_tokens
from plumbline.answer.road.token_rules import TokenRules
from plumbline.answer.structured_output.answer_grammar import callable_tools
from plumbline.answer.structured_output.constraints import Constraint, ConstraintCompiler, is_best_effort
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.references import with_pointers
from plumbline.answer.text.render import TooManyTokensError
from plumbline.answer.text.shorten import droppable_ends, without_oldest
from plumbline.answer.turn import ChatPrompt, Prompt, TokenPrompt, Tool, Turn, begun_text
from plumbline.port.engine import Engine, MediaPrompt, RefusedRequestError, ThinkingBudget

__all__ = ["PreparedTurn", "TurnPreparer"]

_LONGEST_CUT = 1 << 18
"""Tokens of the longest prompt that is encoded in full to keep its last ones, where the context is shorter."""


@dataclass(frozen=True, slots=True)
class PreparedTurn:
    """A turn with a rendered prompt that fits."""

    turn: Turn
    prompt_token_ids: tuple[int, ...]
    constraint: Constraint
    """The constraint on every choice of the answer; the engine has compiled it."""
    dialect: ModelDialect
    """How the model writes this answer."""
    frame: AnswerFrame
    """Where the answer starts."""
    media: MediaPrompt | None = None
    """The files of the prompt, if it has any."""
    times: tuple[float, float] = field(default=(0.0, 0.0), compare=False)
    """When the turn began to be rendered and when it was ready, by `time.perf_counter`."""

    def parser(self, *, anywhere: bool = False) -> AnswerParser:
        """Return a parser for one choice.

        Args:
            anywhere: look for calls everywhere, also in text that is constrained.
        """
        prompt = self.turn.prompt
        tools: dict[str, Mapping[str, Any]] = {}
        earlier_calls = 0
        if isinstance(prompt, ChatPrompt):
            callable_ = callable_tools(prompt.tools, self.turn.tool_choice)  # TOOL-06
            tools = {tool.name: self._parameters(tool) for tool in callable_}
            earlier_calls = sum(len(message.tool_calls) for message in prompt.messages)
        return self.dialect.parser(
            tools,
            msgspec.structs.replace(self.frame, constrained=self.constraint.grammar is not None),
            earlier_calls=earlier_calls,
            logprobs=self.turn.sampling.logprobs is not None,
            unparsed=None if anywhere and tools else self.constraint.unparsed,
        )

    def _parameters(self, tool: Tool) -> Mapping[str, Any]:
        """Return the parameters of a tool for the parser, which follows JSON pointers only."""
        calls, parameters = self.dialect.syntax.calls, tool.parameters or {}
        if calls is None or calls.sections[0].call_format.argument_syntax is ArgumentSyntax.JSON:
            return parameters  # The values have their types.
        try:
            return with_pointers(parameters)
        except ConstraintError:
            return parameters


class TurnPreparer:
    """Prepare turns for one engine and one model's text. Has no state of its own.

    Args:
        engine: what will answer.
        prompts: renders the prompts.
        dialect: how the model answers messages.
        default_max_tokens: most tokens of an answer to a turn without a limit; None leaves it to the context.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: PromptRenderer,
        dialect: ModelDialect,
        default_max_tokens: int | None = None,
    ) -> None:
        self._engine = engine
        self._default_max_tokens = default_max_tokens
        self._prompts = prompts
        self._renderer = renderer = prompts.renderer
        self._dialect = dialect
        self._token_rules = TokenRules(renderer.tokenizer)

    async def prepare(self, turn: Turn, client: str) -> PreparedTurn:
        """Render the prompt and check that it fits.

        Args:
            turn: the turn.
            client: whose turn it is; clients share what compiles grammars.

        Raises:
            TemplateError: the chat template refused the messages.
            EmptyPromptError: the prompt has no tokens.
            PromptTooLongError: the prompt does not fit, and the turn does not allow truncation.
            NoThinkingError: the turn has a thinking budget that cannot be enforced.
            ConstraintError: the answer cannot be constrained as the turn asks; the message states why.
            RefusedRequestError: the engine does not take the files of the prompt.
        """
        began = time.perf_counter()
        turn, (ids, media) = await self._fitting(turn, client)
        if not ids:
            raise EmptyPromptError
        turn = self._with_limit(turn, len(ids))
        # A prompt without messages, as in plain completions, is continued by text.
        dialect = self._dialect if isinstance(turn.prompt, ChatPrompt) else PLAIN
        frame = dialect.frame(ids, _continued_text(turn.prompt))
        turn = self._with_thinking_budget(turn, dialect, frame)
        if self._token_rules.needed(turn):
            turn = await asyncio.to_thread(self._token_rules.applied, turn)
        if turn.repair_calls:
            self._check_repair(dialect)
        constraints = ConstraintCompiler(self._engine, self._renderer.tokenizer, client)
        constraint = await constraints.grammar(turn, dialect.syntax, frame)
        times = (began, time.perf_counter())
        prepared = PreparedTurn(turn, tuple(ids), constraint, dialect, frame, media, times)
        return await after_beginning(turn.prompt, partial(_check_beginning, prepared))

    def _check_repair(self, dialect: ModelDialect) -> None:
        """Check that a call of this model can be asked for again.

        Raises:
            RefusedRequestError: it cannot.
        """
        reason = ""
        if dialect.syntax.calls is None or not dialect.syntax.is_plain_text:
            reason = "the calls of this model cannot be constrained"
        elif "grammar" not in self._engine.info.features:
            reason = (
                f"the engine of this server ({self._engine.info.name}) does not support structured output"
            )
        if reason:
            raise RefusedRequestError(
                f"'x_repair_calls' is not supported: {reason}. Leave it out.",
                param="x_repair_calls",
                code="unsupported_parameter",
            )

    def _with_limit(self, turn: Turn, prompt_tokens: int) -> Turn:
        """Set the model's own token limit on a turn without a limit, if it ends before the context does."""
        sampling = turn.sampling
        if self._default_max_tokens is None or sampling.max_tokens is not None:
            return turn
        limit = max(self._default_max_tokens, sampling.min_tokens)
        if limit >= self._engine.info.max_model_len - prompt_tokens:
            return turn
        return msgspec.structs.replace(turn, sampling=msgspec.structs.replace(sampling, max_tokens=limit))

    async def _fitting(self, turn: Turn, client: str) -> tuple[Turn, PromptTokens]:
        """Return the turn, truncated if necessary and allowed, and the tokens of its prompt."""
        limit = self._engine.info.max_model_len
        wanted = turn.sampling.max_tokens
        needed = 1 if wanted is None or (turn.shorten_answer and wanted) else wanted
        least = self._renderer.least_tokens(turn.prompt)
        if least > limit and not turn.truncate_prompt and turn.keep_tokens is None:
            raise PromptTooLongError(max_model_len=limit, prompt_tokens=least, output_tokens=needed)
        try:
            tokens = await self._tokens(turn, client)
            if turn.keep_tokens is not None:
                turn, tokens = _kept_tokens(turn, tokens, limit - needed)
            length = len(tokens.token_ids)
        except TooManyTokensError as error:
            tokens, length = PromptTokens([]), error.least
        if length + needed <= limit:
            return turn, tokens
        found = await self._truncated(turn, limit - needed, client) if turn.truncate_prompt else None
        if found is None:
            raise PromptTooLongError(max_model_len=limit, prompt_tokens=length, output_tokens=needed)
        return found

    async def _truncated(self, turn: Turn, room: int, client: str) -> tuple[Turn, PromptTokens] | None:
        """Drop as many of the oldest messages as it takes (R-18); None if the rest never fits.

        Every try renders what is kept, so the search begins with little: it keeps 1, 2, 4, ... of the places where the
        conversation may begin until the rest is too long, and then halves what is left.

        Args:
            turn: the turn.
            room: how many tokens its prompt may have.
            client: whose it is.
        """
        if not isinstance(turn.prompt, ChatPrompt):
            return None
        ends = droppable_ends(turn.prompt.messages)
        best: tuple[Turn, PromptTokens] | None = None
        low, high, kept = 0, len(ends), 1
        while low < high:
            middle = max(len(ends) - kept, low) if kept else (low + high) // 2
            kept *= 2
            shorter = msgspec.structs.replace(turn, prompt=without_oldest(turn.prompt, ends[middle]))
            try:
                tokens = await self._tokens(shorter, client)
            except TooManyTokensError:
                tokens = None
            if tokens is None or len(tokens.token_ids) > room:
                low, kept = middle + 1, 0
            else:
                high = middle
                best = shorter, tokens
        return best

    async def _tokens(self, turn: Turn, client: str) -> PromptTokens:
        most = self._engine.info.max_model_len
        if turn.keep_tokens is not None:
            most = max(most, min(_LONGEST_CUT, 8 * most))
        return await prompt_tokens(self._engine, self._prompts, turn.prompt, most, client)

    def _with_thinking_budget(self, turn: Turn, dialect: ModelDialect, frame: AnswerFrame) -> Turn:
        """Return the turn with its thinking budget in the engine's terms."""
        if turn.thinking_budget is None:
            return turn
        markers = dialect.thinking_markers
        if markers is None or "thinking_budget" not in self._engine.info.features:
            raise NoThinkingError
        tokenizer = self._renderer.tokenizer
        encode = tokenizer.encode_rendered
        budget = ThinkingBudget(
            max_tokens=turn.thinking_budget,
            begin=tuple(tuple(encode(text)) for text in markers.open),
            end=tuple(encode(markers.close)),
            inside=frame.thinking == "inside",
            after=tuple(tuple(encode(text)) for text in markers.reopen_after),
            anywhere=markers.anywhere,
            blank=tokenizer.blank_ids,
        )
        return msgspec.structs.replace(
            turn, sampling=msgspec.structs.replace(turn.sampling, thinking_budget=budget)
        )


def _kept_tokens(turn: Turn, tokens: PromptTokens, room: int) -> tuple[Turn, PromptTokens]:
    """Cut a prompt to its last or first tokens; one of text becomes one of tokens, so that `echo` shows what is left.

    Raises:
        RefusedRequestError: the prompt has files, and their tokens cannot be cut.
    """
    count = room if turn.keep_tokens == -1 else turn.keep_tokens
    if count is None or count < 1 or len(tokens.token_ids) <= count:
        return turn, tokens
    if tokens.media is not None:
        raise RefusedRequestError("a prompt with files cannot be cut to some of its tokens; send less of it")
    ids = tokens.token_ids[:count] if turn.keep_beginning else tokens.token_ids[-count:]
    if not isinstance(turn.prompt, ChatPrompt):
        turn = msgspec.structs.replace(turn, prompt=TokenPrompt(tuple(ids)))
    return turn, PromptTokens(ids)


def _check_beginning(prepared: PreparedTurn) -> PreparedTurn:
    """Check that the grammar of a continued message starts where the message breaks off.

    Returns:
        The turn, without a best-effort grammar if the message breaks off inside markup.

    Raises:
        ConstraintError: the message breaks off inside markup. The grammar would not constrain the rest of the markup.
    """
    begun = begun_text(prepared.turn.prompt)
    if not begun or prepared.constraint.grammar is None:
        return prepared
    parser = prepared.parser(anywhere=True)
    parser.continue_message(begun, echo=False)
    if not parser.is_inside_markup:
        return prepared
    if is_best_effort(prepared.turn):
        return replace(prepared, constraint=Constraint())
    raise ConstraintError(
        "The message to continue breaks off inside markup, so the rest of it cannot be constrained. Continue it "
        "without strict tools and structured output, or end it before the markup."
    )


def _continued_text(prompt: Prompt) -> str | None:
    """The text of the message that the answer continues; None if the answer is a message of its own."""
    continues = isinstance(prompt, ChatPrompt) and prompt.continue_final_message
    return begun_text(prompt) if continues else None
