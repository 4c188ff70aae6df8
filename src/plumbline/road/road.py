"""The one road from a turn to the events of its answer.

Every answer of every API surface, streaming or not, comes down this road: render, generate, detokenise, watch for stop
strings, read the dialect, count. Nothing else computes a finish reason or a usage number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from plumbline.dialects.kinds.plain import PLAIN
from plumbline.dialects.model_dialect import AnswerFrame, ModelDialect
from plumbline.dialects.parsers.answer_parser import AnswerParser
from plumbline.dialects.parsers.custom_tools import CustomCalls
from plumbline.engines.port import (
    Engine,
    GenerateRequest,
    SamplingParams,
    ThinkingBudget,
    TokenChunk,
    TokenLogprob,
)
from plumbline.events import ChoiceEvent, Finish, FinishReason, OutputEvent, Usage
from plumbline.road.merge import merged
from plumbline.structured_output.answer_grammar import callable_tools
from plumbline.structured_output.constraints import Constraint, ConstraintCompiler, is_best_effort
from plumbline.structured_output.grammar.errors import ConstraintError
from plumbline.text.assemble import TextAssembler
from plumbline.text.render import Renderer
from plumbline.text.shorten import droppable_ends, without_oldest
from plumbline.text.tokenizer import TextTokenizer
from plumbline.turn import ChatPrompt, Prompt, Turn, begun_text

__all__ = [
    "AbortedError",
    "ConstraintFailedError",
    "EmptyPromptError",
    "GenerationError",
    "NoThinkingError",
    "PreparedTurn",
    "PromptTooLongError",
    "Road",
]


_log = logging.getLogger("plumbline.road")


class PromptTooLongError(Exception):
    """Prompt and requested output do not fit the context window (ERR-09)."""

    def __init__(self, *, max_model_len: int, prompt_tokens: int, output_tokens: int) -> None:
        super().__init__(
            f"{prompt_tokens} prompt tokens and {output_tokens} output tokens exceed {max_model_len}"
        )
        self.max_model_len = max_model_len
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens


class EmptyPromptError(Exception):
    """The prompt has no tokens, so there is nothing to continue."""


class NoThinkingError(Exception):
    """A budget for thinking, where nothing is known of this model's thinking or the engine cannot keep to one."""


class GenerationError(Exception):
    """The engine failed while it answered; the text is fit for the client."""


class ConstraintFailedError(GenerationError):
    """The form of the answer could not be kept to, although it had been taken on: the form is at fault."""


class AbortedError(Exception):
    """The request was ended from outside: the server is shutting down."""


@dataclass(frozen=True, slots=True)
class PreparedTurn:
    """A turn whose prompt has been rendered and found to fit."""

    turn: Turn
    prompt_token_ids: tuple[int, ...]
    constraint: Constraint
    """What every choice of the answer is constrained to; the engine has compiled it."""
    dialect: ModelDialect
    """How the model writes this answer."""
    frame: AnswerFrame
    """Where the prompt leaves the model."""


class Road:
    """Joins one engine with one model's text. Has no state of its own between answers."""

    def __init__(self, engine: Engine, renderer: Renderer, dialect: ModelDialect = PLAIN) -> None:
        self.engine = engine
        self.renderer = renderer
        self.dialect = dialect
        self._constraints = ConstraintCompiler(engine, renderer.tokenizer)

    @property
    def tokenizer(self) -> TextTokenizer:
        """The model's tokenizer."""
        return self.renderer.tokenizer

    async def prepare(self, turn: Turn) -> PreparedTurn:
        """Render the prompt in a worker thread and check that it fits.

        Raises:
            TemplateError: the chat template refused the messages.
            EmptyPromptError: it has no tokens.
            PromptTooLongError: it does not fit, and the turn does not allow truncation.
            NoThinkingError: it has a budget for thinking that cannot be kept.
            FormError: the form that the answer is promised to have cannot be held; the text says why.
        """
        limit = self.engine.info.max_model_len
        wanted = turn.sampling.max_tokens
        needed = 1 if wanted is None else wanted
        least = self.renderer.least_tokens(turn.prompt)
        if least > limit and not turn.truncate_prompt:
            raise PromptTooLongError(max_model_len=limit, prompt_tokens=least, output_tokens=needed)
        ids = await self._token_ids(turn)
        if len(ids) + needed > limit:
            found = await self._shortened(turn, limit - needed) if turn.truncate_prompt else None
            if found is None:
                raise PromptTooLongError(max_model_len=limit, prompt_tokens=len(ids), output_tokens=needed)
            turn, ids = found
        if not ids:
            raise EmptyPromptError
        # A prompt without messages, as in plain completions, is continued by text.
        dialect = self.dialect if isinstance(turn.prompt, ChatPrompt) else PLAIN
        frame = dialect.frame(ids, _continued_text(turn.prompt))
        turn = self._bounded(turn, dialect, frame)
        constraint = await self._constraints.grammar(turn, dialect.syntax, frame)
        return self._with_begun(PreparedTurn(turn, tuple(ids), constraint, dialect, frame))

    def _with_begun(self, prepared: PreparedTurn) -> PreparedTurn:
        """What is continued under a grammar begins where the grammar begins.

        Returns: the turn, without a grammar that promises nothing if the message breaks off inside of markup.

        Raises:
            FormError: it breaks off inside of markup, the rest of which nobody would hold.
        """
        begun = begun_text(prepared.turn.prompt)
        if not begun or prepared.constraint.grammar is None:
            return prepared
        parser = self._parser(prepared, of_calls=True)
        parser.continue_message(begun, echo=False)
        if parser.is_amid_markup:
            if is_best_effort(prepared.turn):
                return replace(prepared, constraint=Constraint())
            raise ConstraintError(
                "The message that is to be continued breaks off inside of markup, so what follows cannot be held to a "
                "form. Continue it without strict tools or forms, or leave the markup to the model."
            )
        return prepared

    def _bounded(self, turn: Turn, dialect: ModelDialect, frame: AnswerFrame) -> Turn:
        """The turn with its budget for thinking in the engine's terms."""
        if turn.thinking_budget is None:
            return turn
        markers = dialect.thinking_markers
        if markers is None or "span" not in self.engine.info.features:
            raise NoThinkingError
        encode = self.tokenizer.encode_rendered
        span = ThinkingBudget(
            max_tokens=turn.thinking_budget,
            begin=tuple(tuple(encode(text)) for text in markers.open),
            end=tuple(encode(markers.close)),
            inside=frame.thinking == "inside",
            after=tuple(tuple(encode(text)) for text in markers.reopen_after),
            blank=self.tokenizer.blank_ids,
        )
        return msgspec.structs.replace(turn, sampling=msgspec.structs.replace(turn.sampling, span=span))

    async def _token_ids(self, turn: Turn) -> list[int]:
        return await asyncio.to_thread(self.renderer.token_ids, turn.prompt)

    async def _shortened(self, turn: Turn, room: int) -> tuple[Turn, list[int]] | None:
        """The turn without as many of its oldest messages as it takes (R-18), and its tokens; None if none will do.

        How many is found by halving, because every try renders the whole conversation: dropping one after the other
        would take a time that grows with the square of its length.
        """
        if not isinstance(turn.prompt, ChatPrompt):
            return None
        ends = droppable_ends(turn.prompt.messages)
        best: tuple[Turn, list[int]] | None = None
        low, high = 0, len(ends)
        while low < high:
            middle = (low + high) // 2
            shorter = msgspec.structs.replace(turn, prompt=without_oldest(turn.prompt, ends[middle]))
            ids = await self._token_ids(shorter)
            if len(ids) > room:
                low = middle + 1
            else:
                high = middle
                best = shorter, ids
        return best

    async def answer(self, prepared: PreparedTurn, request_id: str) -> AsyncGenerator[ChoiceEvent, None]:
        """The events of all choices, as they come; those of one choice are in order.

        Closing the iterator aborts every choice.

        Raises:
            GenerationError: the engine failed.
            AbortedError: the server is shutting down.
            EngineFullError, EngineClosedError, RefusedRequestError: from the engine, before the first event.
        """
        for warning in prepared.constraint.warnings:
            _log.warning("request %s: %s", request_id, warning)
        count = prepared.turn.num_choices
        if count == 1:
            async with aclosing(self._choice(prepared, request_id, 0)) as events:
                async for event in events:
                    yield 0, event
            return
        choices = [self._choice(prepared, f"{request_id}-{index}", index) for index in range(count)]
        async with aclosing(merged(choices)) as events:
            async for item in events:
                yield item

    async def prompt_logprobs(
        self, prepared: PreparedTurn, request_id: str
    ) -> tuple[TokenLogprob | None, ...]:
        """The logprobs of the prompt's own tokens (CMP-04), the first of which has none."""
        sampling = msgspec.structs.replace(
            prepared.turn.sampling, prompt_logprobs=prepared.turn.sampling.logprobs or 0, max_tokens=0
        )
        request = self._request(prepared, request_id, sampling)
        found: tuple[TokenLogprob | None, ...] = ()
        async with aclosing(self.engine.generate(request)) as chunks:
            async for chunk in chunks:
                _raise_if_failed(chunk)
                if chunk.prompt_logprobs is not None:
                    found = chunk.prompt_logprobs
        return found

    async def _choice(
        self, prepared: PreparedTurn, request_id: str, index: int
    ) -> AsyncGenerator[OutputEvent, None]:
        turn = prepared.turn
        sampling = _for_choice(turn.sampling, index)
        parser = self._parser(prepared)
        customs = CustomCalls(_custom_names(turn))
        eos = self.engine.info.eos_token_ids
        assembler = TextAssembler(
            self.tokenizer,
            stop=turn.stop,
            include_stop=turn.include_stop,
            skip_special_tokens=turn.skip_special_tokens,
            # The end of sequence is never text of an answer, whether or not special tokens are shown. With `ignore_eos`
            # it ends nothing, so who wants to see special tokens sees it.
            hidden_ids=frozenset() if sampling.ignore_eos and not turn.skip_special_tokens else eos,
            logprobs=sampling.logprobs is not None,
            shown_ids=parser.marker_ids,
            token_ends=parser.needs_token_ends,
            min_tokens=sampling.min_tokens,
        )
        cached = 0
        reason: FinishReason = "stop"
        last_token: int | None = None
        begun = begun_text(turn.prompt)
        before: list[OutputEvent] = []
        if begun:
            before = list(customs.translate(parser.continue_message(begun, echo=turn.echo)))
        if sampling.max_tokens == 0:
            for event in (*before, *customs.translate(parser.finish("length"))):
                yield event
            yield Finish("length", Usage(len(prepared.prompt_token_ids), 0))
            return
        request = self._request(prepared, request_id, sampling)
        async with aclosing(self.engine.generate(request)) as chunks:
            async for chunk in chunks:
                _raise_if_failed(chunk)
                # Not before the first chunk: until then the request may still be refused.
                for event in before:
                    yield event
                before = []
                cached = max(cached, chunk.num_cached_tokens)
                stopped = chunk.finish_reason == "stop" and bool(chunk.token_ids)
                stopped = stopped and chunk.token_ids[-1] in sampling.stop_token_ids | eos
                delta = assembler.push(chunk.token_ids, chunk.logprobs, ends_with_stop_token=stopped)
                if delta is not None:
                    for event in customs.translate(parser.push(delta)):
                        yield event
                if assembler.stop_match is not None:
                    break  # Closing the stream aborts the engine's request and frees its blocks.
                if chunk.token_ids:
                    last_token = chunk.token_ids[-1]
                if chunk.finish_reason is not None:
                    reason = "length" if chunk.finish_reason == "length" else "stop"
        match_: int | str | None = assembler.stop_match
        if match_ is not None:
            reason = "stop"
        elif reason == "stop" and last_token in sampling.stop_token_ids:
            match_ = last_token
        rest = assembler.finish()
        # A stop string cuts what it stands in, as the token limit does: nothing of a call that it cuts is text.
        ended: FinishReason = "length" if assembler.stop_match is not None else reason
        last = (*(() if rest is None else parser.push(rest)), *parser.finish(ended))
        for event in customs.translate(last):
            yield event
        reasoning_tokens = parser.num_reasoning_tokens(assembler.token_ends or ())
        if reason == "stop" and parser.num_calls and not parser.num_broken_calls:
            # CHAT-05: what the token limit ended stays `length`, with calls or without. Calls that broke off are
            # shown as far as they got, but nobody is told to carry them out.
            reason = "tool_calls"
        for warning in parser.warnings:
            _log.warning("request %s: %s", request_id, warning)
        usage = Usage(
            len(prepared.prompt_token_ids),
            assembler.num_tokens,
            cached_tokens=cached,
            reasoning_tokens=reasoning_tokens,
        )
        yield Finish(reason, usage, match_)

    def _parser(self, prepared: PreparedTurn, *, of_calls: bool = False) -> AnswerParser:
        """What reads the answer.

        With `of_calls`, where there may be calls, it is what looks for them everywhere.
        """
        prompt, choice = prepared.turn.prompt, prepared.turn.tool_choice
        tools: dict[str, Mapping[str, Any]] = {}
        earlier_calls = 0
        if isinstance(prompt, ChatPrompt):
            tools = {tool.name: tool.parameters or {} for tool in callable_tools(prompt.tools, choice)}
            earlier_calls = sum(len(message.tool_calls) for message in prompt.messages)
        return prepared.dialect.parser(
            tools,
            prepared.frame,
            earlier_calls=earlier_calls,
            logprobs=prepared.turn.sampling.logprobs is not None,
            unread=None if of_calls and tools else prepared.constraint.unread,
        )

    def _request(self, prepared: PreparedTurn, request_id: str, sampling: SamplingParams) -> GenerateRequest:
        if prepared.constraint.grammar is not None and sampling.max_tokens != 0:
            sampling = msgspec.structs.replace(sampling, grammar=prepared.constraint.grammar)
        return GenerateRequest(
            request_id=request_id,
            prompt_token_ids=prepared.prompt_token_ids,
            sampling=sampling,
            priority=prepared.turn.priority,
            cache_salt=prepared.turn.cache_salt,
        )


def _continued_text(prompt: Prompt) -> str | None:
    """The text of the message that the answer continues; None if it is a message of its own."""
    continues = isinstance(prompt, ChatPrompt) and prompt.continue_final_message
    return begun_text(prompt) if continues else None


def _custom_names(turn: Turn) -> list[str]:
    return (
        [tool.name for tool in turn.prompt.tools if tool.custom]
        if isinstance(turn.prompt, ChatPrompt)
        else []
    )


def _for_choice(sampling: SamplingParams, index: int) -> SamplingParams:
    """Choices of one request differ: each draws with its own seed, derived from the client's."""
    if sampling.seed is None or index == 0:
        return sampling
    seed = (sampling.seed + 0x9E3779B97F4A7C15 * index) & 0x7FFFFFFFFFFFFFFF
    return msgspec.structs.replace(sampling, seed=seed)


def _raise_if_failed(chunk: TokenChunk) -> None:
    if chunk.finish_reason == "error":
        failed = ConstraintFailedError if chunk.refused else GenerationError
        raise failed(chunk.error or "The engine failed.")
    if chunk.finish_reason == "abort":
        raise AbortedError("The server is shutting down.")
