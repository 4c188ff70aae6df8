"""Write the events of an answer as completion chunks, or fold them into one completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET

from plumbline.answer.events import Finish, Logprob, OutputEvent, Progress, TextDelta, TokenIds, Usage
from plumbline.contract._generated.common import CompletionUsage
from plumbline.contract._generated.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionStreamChoice,
    CreateCompletionRequest,
    CreateCompletionResponse,
    CreateCompletionStreamResponse,
)
from plumbline.server.protocols.common.delivery import Delivery
from plumbline.server.protocols.common.ids import new_id, now
from plumbline.server.protocols.common.logprobs import finite
from plumbline.server.protocols.common.token_facts import NO_FACTS, PromptFacts, named_by_id
from plumbline.server.protocols.common.usage import completion_usage
from plumbline.server.protocols.completions.reader import CompletionPlan

__all__ = ["CompletionChunks", "CompletionFold", "CompletionWriter", "PromptText"]


@dataclass(frozen=True, slots=True)
class PromptText:
    """The prompt's text for `echo`, with the logprobs of its tokens if the client wants them (CMP-04)."""

    text: str
    tokens: tuple[Logprob | str, ...] | None = None
    """The first token has no logprob, so it is a plain string."""
    first_id: int | None = None
    """The id of the first token."""


class CompletionWriter:
    """Make what writes the answer to one request: `fold` in one piece, `chunks` as a stream.

    Choices are numbered prompt by prompt, `prompt_index * best_of + choice_index` (CMP-02). A stream has
    `best_of == n`, so these are the numbers that it sends.
    """

    def __init__(
        self,
        request: CreateCompletionRequest,
        plan: CompletionPlan,
        prompts: Sequence[PromptText | None],
        *,
        model: str,
        fingerprint: str,
        facts: Sequence[PromptFacts] = (),
        prompt_tokens: int = 0,
    ) -> None:
        self.request = request
        self.plan = plan
        self.prompts = prompts
        self.id = new_id("cmpl-")
        self.created = now()
        self.model = model
        self.fingerprint = fingerprint
        self.facts = facts or [NO_FACTS] * len(prompts)
        self.prompt_tokens = prompt_tokens
        self.names_ids = request.return_tokens_as_token_ids is True

    @property
    def num_choices(self) -> int:
        """The number of candidates of all prompts."""
        return len(self.plan.turns) * self.plan.best_of

    def fold(self) -> CompletionFold:
        """Return a fold of the events into one answer."""
        return CompletionFold(self)

    def chunks(self) -> CompletionChunks:
        """Return a writer of the events as chunks."""
        return CompletionChunks(self)

    def usage(self, finishes: Sequence[Finish]) -> CompletionUsage:
        """Add up the tokens of all candidates, and of each prompt once (CHAT-09, CMP-06)."""
        first_of_prompt = [finish.usage for finish in finishes[:: self.plan.best_of]]
        return completion_usage(
            Usage(
                prompt_tokens=sum(usage.prompt_tokens for usage in first_of_prompt),
                completion_tokens=sum(finish.usage.completion_tokens for finish in finishes),
                cached_tokens=sum(usage.cached_tokens for usage in first_of_prompt),
            )
        )


@dataclass(slots=True)
class _Choice:
    """The parts of one choice."""

    logprobs: _Logprobs
    text: list[str] = field(default_factory=list)
    score: float = 0.0
    num_scored: int = 0
    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def mean_logprob(self) -> float:
        return self.score / max(self.num_scored, 1)


class CompletionFold:
    """Fold the events of one answer into a completion."""

    def __init__(self, writer: CompletionWriter) -> None:
        self._writer = writer
        self._choices = [_Choice(_Logprobs(writer)) for _ in range(writer.num_choices)]
        for index, choice in enumerate(self._choices):
            prompt = writer.prompts[index // writer.plan.best_of]
            if prompt is not None:
                choice.text.append(prompt.text)
                choice.logprobs.add_prompt(prompt)

    def event(self, index: int, event: OutputEvent) -> None:
        """Take one event of a choice."""
        choice = self._choices[index]
        match event:
            case TextDelta():
                choice.text.append(event.text)
                if event.logprobs:
                    choice.logprobs.add(event.logprobs)
                    for entry in event.logprobs:
                        choice.score += entry.logprob
                    choice.num_scored += len(event.logprobs)
            case TokenIds():
                choice.token_ids += event.token_ids
            case Finish():
                choice.finish = event
            case Progress():
                pass
            case _:
                raise _unexpected(event)

    def answer(self) -> CreateCompletionResponse:
        """Return the answer, once every choice has finished."""
        writer, plan = self._writer, self._writer.plan
        choices: list[CompletionChoice] = []
        for prompt_index in range(len(plan.turns)):
            first = prompt_index * plan.best_of
            candidates = self._choices[first : first + plan.best_of]
            if plan.best_of > plan.num_choices:  # CMP-06
                candidates = sorted(candidates, key=lambda choice: choice.mean_logprob, reverse=True)
            facts = writer.facts[prompt_index]
            for choice in candidates[: plan.num_choices]:
                choices.append(self._whole(len(choices), choice, facts))
        return CreateCompletionResponse(
            id=writer.id,
            created=writer.created,
            model=writer.model,
            choices=choices,
            usage=writer.usage([choice.finish for choice in self._choices if choice.finish is not None]),
            system_fingerprint=writer.fingerprint,
        )

    def _whole(self, index: int, choice: _Choice, facts: PromptFacts) -> CompletionChoice:
        finish = choice.finish
        if finish is None:
            raise RuntimeError(f"choice {index} has no finish yet")
        return CompletionChoice(
            index=index,
            text="".join(choice.text),
            finish_reason=_reason(finish),
            logprobs=choice.logprobs.taken(),
            # Null where vLLM has null: its clients read these as attributes, which fail where a member is absent.
            stop_reason=finish.stop_match,
            token_ids=choice.token_ids if self._writer.request.return_token_ids is True else None,
            prompt_token_ids=facts.token_ids,
            prompt_logprobs=facts.logprobs,
            hidden_states=list(finish.hidden_state) or UNSET,
            matched_stop=finish.stop_match,
        )


class CompletionChunks:
    """Write the events of one answer as chunks."""

    def __init__(self, writer: CompletionWriter) -> None:
        self._writer = writer
        self._delivery = Delivery(writer.request, writer.prompt_tokens)
        self._logprobs = [_Logprobs(writer) for _ in range(writer.num_choices)]
        self._finishes: dict[int, Finish] = {}
        self._begun: set[int] = set()
        """The choices that have a chunk."""

    def start(self) -> list[CreateCompletionStreamResponse]:
        """With `echo`, return the prompt as the first chunk of every choice, in index order."""
        chunks: list[CreateCompletionStreamResponse] = []
        for index, logprobs in enumerate(self._logprobs):
            prompt = self._writer.prompts[index // self._writer.plan.best_of]
            if prompt is not None:
                logprobs.add_prompt(prompt)
                taken = None if prompt.tokens is None else logprobs.taken()
                chunks.append(self._chunk(index, prompt.text, taken))
        return chunks

    def event(self, index: int, event: OutputEvent) -> list[CreateCompletionStreamResponse]:
        """Write one event of a choice."""
        match event:
            case TextDelta():
                self._logprobs[index].add(event.logprobs)
                return [self._chunk(index, event.text, self._logprobs[index].taken())]
            case TokenIds() | Progress():
                self._delivery.note(index, event)
                return []
            case Finish():
                self._finishes[index] = event
                return [self._chunk(index, "", None, finish=event)]
            case _:
                raise _unexpected(event)

    def end(self) -> list[CreateCompletionStreamResponse]:
        """Return the usage chunk, the last of the stream, if the client wants it."""
        if not self._delivery.includes_usage:
            return []
        chunk = self._envelope([])
        chunk.usage = self._writer.usage([self._finishes[index] for index in sorted(self._finishes)])
        return [chunk]

    def _chunk(
        self, index: int, text: str, logprobs: CompletionLogprobs | None, *, finish: Finish | None = None
    ) -> CreateCompletionStreamResponse:
        choice = CompletionStreamChoice(
            index=index,
            text=text,
            finish_reason=None,
            logprobs=logprobs,
            token_ids=self._delivery.deliver(index),
        )
        if finish is not None:
            choice.finish_reason = _reason(finish)
            choice.hidden_states = list(finish.hidden_state) or UNSET
            if finish.stop_match is not None:
                choice.stop_reason = choice.matched_stop = finish.stop_match
        if index not in self._begun:
            self._begun.add(index)
            facts = self._writer.facts[index // self._writer.plan.best_of]
            choice.prompt_token_ids = UNSET if facts.token_ids is None else facts.token_ids
        return self._envelope([choice])

    def _envelope(self, choices: list[CompletionStreamChoice]) -> CreateCompletionStreamResponse:
        return CreateCompletionStreamResponse(
            id=self._writer.id,
            created=self._writer.created,
            model=self._writer.model,
            choices=choices,
            system_fingerprint=self._writer.fingerprint,
            usage=self._delivery.usage(),
        )


def _reason(finish: Finish) -> Literal["stop", "length"]:
    if finish.reason == "tool_calls":
        raise TypeError("a completion makes no tool calls")
    return finish.reason


def _unexpected(event: OutputEvent) -> TypeError:
    # Legacy completions have no template and so no dialect: the road yields text only.
    return TypeError(f"a legacy completion cannot contain {type(event).__name__}")


class _Logprobs:
    """The entries of one choice (CMP-05), whose offsets go on where the last ones that were taken end."""

    def __init__(self, writer: CompletionWriter) -> None:
        self._wanted = writer.plan.logprobs is not None
        self._by_id = writer.names_ids
        self._offset = 0
        self._waiting = _no_logprobs()

    def add(self, entries: Sequence[Logprob | str]) -> None:
        """Add tokens, if the client wants them. Their texts are what they complete, so that they join to the text."""
        if not self._wanted:
            return
        found = self._waiting
        for entry in entries:
            text = entry if isinstance(entry, str) else entry.text
            found.text_offset.append(self._offset)
            self._offset += len(text)
            if isinstance(entry, str):
                name, value, top = text, None, None
            else:
                named = named_by_id(entry) if self._by_id else entry
                name = named.token if self._by_id else text
                value, top = finite(entry.logprob), _alternatives(named, name)
            found.tokens.append(name)
            found.token_logprobs.append(value)
            if found.top_logprobs is not None:
                found.top_logprobs.append(top)

    def add_prompt(self, prompt: PromptText) -> None:
        """Add the tokens of a prompt that comes before the answer (CMP-04)."""
        if prompt.tokens is None:
            self._offset = len(prompt.text)
            return
        self.add(prompt.tokens)
        if self._by_id and prompt.first_id is not None and isinstance(prompt.tokens[0], str):
            self._waiting.tokens[0] = f"token_id:{prompt.first_id}"

    def taken(self) -> CompletionLogprobs | None:
        """Take the entries that were added; None if the client wants none."""
        if not self._wanted:
            return None
        found, self._waiting = self._waiting, _no_logprobs()
        return found


def _no_logprobs() -> CompletionLogprobs:
    return CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])


def _alternatives(entry: Logprob, name: str) -> dict[str, float]:
    """Map the most likely tokens to their logprobs; the sampled token has the text that `tokens` gives it.

    The keys are distinct, or else entries would be lost: parts of characters have their bytes, as OpenAI writes them,
    and so have tokens with the text of another. Tokens without bytes have their ids, as in vLLM.
    """
    found = {name: finite(entry.logprob)}
    for token_id, token, raw, value in entry.top:
        if token_id == entry.token_id:
            continue
        by_bytes = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
        names = (token, by_bytes, f"token_id:{token_id}")
        first = 2 if not raw else 1 if token.encode() != raw and not token.startswith("token_id:") else 0
        found[next(key for key in names[first:] if key not in found)] = finite(value)
    return found
