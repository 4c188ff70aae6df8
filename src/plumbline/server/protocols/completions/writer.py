"""Write the events of an answer as completion chunks, and fold them into one completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET, UnsetType

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
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.protocols.common.ids import new_id, now
from plumbline.server.protocols.common.logprobs import finite
from plumbline.server.protocols.common.token_facts import NO_FACTS, PromptFacts, named_by_id
from plumbline.server.protocols.common.usage import completion_usage, usage_so_far, wants_progress
from plumbline.server.protocols.completions.reader import CompletionPlan

__all__ = ["CompletionWriter", "PromptText"]


@dataclass(frozen=True, slots=True)
class PromptText:
    """The prompt's text for `echo`, with the logprobs of its tokens if the client wants them (CMP-04)."""

    text: str
    tokens: tuple[Logprob | str, ...] | None = None
    """The first token has no logprob, so it is a plain string."""
    first_id: int | None = None
    """The id of the first token."""


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    offset: int = 0
    logprobs: CompletionLogprobs | None = None
    score: float = 0.0
    num_scored: int = 0
    finish: Finish | None = None
    token_ids: list[int] = field(default_factory=list)
    num_chunks: int = 0
    num_sent_ids: int = 0
    """How many of `token_ids` the chunks so far carry."""


class CompletionWriter:
    """Write the events of one answer as chunks, and fold them into the non-streaming answer.

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
        self._facts = facts or [NO_FACTS] * len(prompts)
        self._returns_ids = request.return_token_ids is True
        self._names_ids = request.return_tokens_as_token_ids is True
        options = or_default(request.stream_options, None)
        self._id = new_id("cmpl-")
        self._created = now()
        self._model = model
        self._fingerprint = fingerprint
        self._plan = plan
        self._prompts = prompts
        self._reports = wants_progress(request)
        self._progress: dict[int, int] = {}
        """Tokens of each choice so far."""
        self._delivered: dict[int, int] = {}
        """Those that its chunks have carried; a chunk with the role alone carries none."""
        self._prompt_tokens = prompt_tokens
        self._include_usage = options is not None and options.include_usage is True
        self._choices = [_Choice() for _ in range(len(plan.turns) * plan.best_of)]
        if plan.logprobs is not None:
            for choice in self._choices:
                choice.logprobs = _no_logprobs()

    def start(self) -> list[CreateCompletionStreamResponse]:
        """With `echo`, return the prompt as the first chunk of every choice, in index order. Needed in both modes."""
        chunks: list[CreateCompletionStreamResponse] = []
        for index, choice in enumerate(self._choices):
            prompt = self._prompts[index // self._plan.best_of]
            if prompt is not None:
                choice.text.append(prompt.text)
                chunks.append(
                    self._chunk(index, prompt.text, _echo_logprobs(choice, prompt, self._names_ids))
                )
        return chunks

    def event(self, index: int, event: OutputEvent) -> list[CreateCompletionStreamResponse]:
        """Write one event of a choice."""
        choice = self._choices[index]
        match event:
            case TokenIds():
                # They go with the next chunk; the last chunk of a choice comes in any case.
                choice.token_ids += event.token_ids
                return []
            case TextDelta():
                choice.text.append(event.text)
                logprobs = self._take_logprobs(choice, event.logprobs)
                return [self._chunk(index, event.text, logprobs)]
            case Progress():
                self._progress[index] = event.completion_tokens
                return []
            case Finish():
                choice.finish = event
                return [self._chunk(index, "", None, finish=event)]
            case _:
                # Legacy completions have no template and so no dialect: the road yields text only.
                raise TypeError(f"a legacy completion cannot contain {type(event).__name__}")

    def end(self) -> list[CreateCompletionStreamResponse]:
        """Return the usage chunk, the last of the stream, if the client wants it."""
        if not self._include_usage:
            return []
        chunk = self._envelope([])
        chunk.usage = self._usage()
        return [chunk]

    def answer(self) -> CreateCompletionResponse:
        """Return the non-streaming answer, once every choice has finished."""
        choices: list[CompletionChoice] = []
        for prompt_index in range(len(self._plan.turns)):
            first = prompt_index * self._plan.best_of
            candidates = self._choices[first : first + self._plan.best_of]
            if self._plan.best_of > self._plan.num_choices:  # CMP-06
                candidates = sorted(candidates, key=_mean_logprob, reverse=True)[: self._plan.num_choices]
            facts = self._facts[prompt_index]
            choices += [
                self._folded(len(choices) + place, choice, facts) for place, choice in enumerate(candidates)
            ]
        return CreateCompletionResponse(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=self._usage(),
            system_fingerprint=self._fingerprint,
        )

    def _folded(self, index: int, choice: _Choice, facts: PromptFacts) -> CompletionChoice:
        if choice.finish is None:
            raise RuntimeError(f"choice {index} has no finish yet")
        match_ = choice.finish.stop_match
        return CompletionChoice(
            index=index,
            text="".join(choice.text),
            finish_reason=_reason(choice.finish),
            logprobs=choice.logprobs,
            # Null where vLLM has null: its clients read these as attributes, which fail where a member is absent.
            stop_reason=match_,
            token_ids=choice.token_ids if self._returns_ids else None,
            prompt_token_ids=facts.token_ids,
            prompt_logprobs=facts.logprobs,
            hidden_states=list(choice.finish.hidden_state) or UNSET,
            matched_stop=match_,
        )

    def _take_logprobs(self, choice: _Choice, entries: Sequence[Logprob]) -> CompletionLogprobs | None:
        """Count the entries for `best_of`, and write them if the client wants logprobs (CMP-05)."""
        for entry in entries:
            choice.score += entry.logprob
        choice.num_scored += len(entries)
        if choice.logprobs is None:
            return None
        part = _no_logprobs()
        for entry in entries:
            _append(choice, part, entry, by_id=self._names_ids)
        _extend(choice.logprobs, part)
        return part

    def _usage(self) -> CompletionUsage:
        """Add up the tokens of all candidates, and of each prompt once (CHAT-09, CMP-06)."""
        finishes = [choice.finish.usage for choice in self._choices if choice.finish is not None]
        first_of_prompt = finishes[:: self._plan.best_of]
        return completion_usage(
            Usage(
                prompt_tokens=sum(usage.prompt_tokens for usage in first_of_prompt),
                completion_tokens=sum(usage.completion_tokens for usage in finishes),
                cached_tokens=sum(usage.cached_tokens for usage in first_of_prompt),
            )
        )

    def _chunk(
        self, index: int, text: str, logprobs: CompletionLogprobs | None, *, finish: Finish | None = None
    ) -> CreateCompletionStreamResponse:
        stop_reason: int | str | UnsetType = UNSET
        if finish is not None and finish.stop_match is not None:
            stop_reason = finish.stop_match
        choice = CompletionStreamChoice(
            index=index,
            text=text,
            finish_reason=None if finish is None else _reason(finish),
            logprobs=logprobs,
            stop_reason=stop_reason,
            matched_stop=stop_reason,
            hidden_states=UNSET if finish is None else list(finish.hidden_state) or UNSET,
        )
        known = self._choices[index]
        known.num_chunks += 1
        self._delivered[index] = self._progress.get(index, 0)
        facts = self._facts[index // self._plan.best_of]
        if facts.token_ids is not None and known.num_chunks == 1:
            choice.prompt_token_ids = facts.token_ids
        if self._returns_ids:
            choice.token_ids = known.token_ids[known.num_sent_ids :]
            known.num_sent_ids = len(known.token_ids)
        return self._envelope([choice])

    def _current_usage(self) -> CompletionUsage | None:
        """Return the counts of what was delivered, if every chunk reports them (`continuous_usage_stats`)."""
        if not self._reports:
            return None
        return usage_so_far(self._prompt_tokens, sum(self._delivered.values()))

    def _envelope(self, choices: list[CompletionStreamChoice]) -> CreateCompletionStreamResponse:
        return CreateCompletionStreamResponse(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            system_fingerprint=self._fingerprint,
            usage=self._current_usage() if self._include_usage or self._reports else UNSET,
        )


def _reason(finish: Finish) -> Literal["stop", "length"]:
    if finish.reason == "tool_calls":
        raise TypeError("a completion makes no tool calls")
    return finish.reason


def _mean_logprob(choice: _Choice) -> float:
    return choice.score / max(choice.num_scored, 1)


def _no_logprobs() -> CompletionLogprobs:
    return CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])


def _echo_logprobs(choice: _Choice, prompt: PromptText, by_id: bool) -> CompletionLogprobs | None:
    if choice.logprobs is None or prompt.tokens is None:
        choice.offset = len(prompt.text)
        return None
    part = _no_logprobs()
    for entry in prompt.tokens:
        _append(choice, part, entry, by_id=by_id)
    if by_id and prompt.first_id is not None and isinstance(prompt.tokens[0], str):
        part.tokens[0] = f"token_id:{prompt.first_id}"
    _extend(choice.logprobs, part)
    return part


def _append(choice: _Choice, logprobs: CompletionLogprobs, entry: Logprob | str, *, by_id: bool) -> None:
    """Append one token (CMP-05). Its text is what it completes, so that the tokens join to the text."""
    text = entry if isinstance(entry, str) else entry.text
    logprobs.tokens.append(text)
    if by_id and not isinstance(entry, str):
        entry = named_by_id(entry)
        logprobs.tokens[-1] = entry.token
    logprobs.token_logprobs.append(None if isinstance(entry, str) else finite(entry.logprob))
    logprobs.text_offset.append(choice.offset)
    if logprobs.top_logprobs is not None:
        logprobs.top_logprobs.append(
            None if isinstance(entry, str) else _alternatives(entry, logprobs.tokens[-1])
        )
    choice.offset += len(text)


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


def _extend(whole: CompletionLogprobs, part: CompletionLogprobs) -> None:
    whole.tokens += part.tokens
    whole.token_logprobs += part.token_logprobs
    whole.text_offset += part.text_offset
    if whole.top_logprobs is not None and part.top_logprobs is not None:
        whole.top_logprobs += part.top_logprobs
