"""Take requests along the road, with its failures as API errors: prepare, answer, stream, consume."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

import msgspec

from plumbline.answer.events import ChoiceEvent, OutputEvent
from plumbline.answer.road.errors import EmptyPromptError, NoThinkingError, PromptTooLongError
from plumbline.answer.road.merge import merge
from plumbline.answer.road.prepare import PreparedTurn
from plumbline.answer.road.road import Road
from plumbline.answer.structured_output.arguments import ArgumentsChecker
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.text.render import TooManyTokensError
from plumbline.answer.text.templates.template import TemplateError
from plumbline.answer.text.templates.workers import TemplateWorkers
from plumbline.answer.turn import ChatPrompt, TextPrompt, Turn
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract._generated.messages import CreateMessageRequest
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.call import UNENFORCED, Call, note_skipped
from plumbline.contract.wire.errors import (
    context_length_exceeded,
    invalid_request,
    unsupported_parameter,
)
from plumbline.contract.wire.reply import Reply
from plumbline.port.engine import EngineClosedError, EngineFullError, RefusedRequestError
from plumbline.server.admission import RequestChecks, client_of, salted
from plumbline.server.http.failures import api_errors, as_api_error, refused_by_template
from plumbline.server.http.frames import Frames
from plumbline.server.http.replies import CHUNKS, Replies, StreamForm
from plumbline.server.http.streams import Primed, close_with_request, prime, until_disconnect
from plumbline.server.limits.keys import KeyRing, as_sent
from plumbline.server.limits.rates import Rates
from plumbline.server.loading.served_adapters import ServedAdapters
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.media.load import MediaLoader
from plumbline.server.observe.answer_record import AnswerRecord
from plumbline.server.observe.metrics import ModelMetrics
from plumbline.server.prompt_facts import prompt_facts
from plumbline.server.protocols.common.fields import given
from plumbline.server.protocols.common.output_formats import FormatRequest, constraint_refused
from plumbline.server.protocols.common.token_facts import PromptFacts
from plumbline.server.protocols.common.tools.skipped_tools import skips, without_tool
from plumbline.server.settings import Settings

__all__ = ["Generation"]

_COUNTED = 131_072
"""Tokens that `/tokenize` and `/v1/responses/input_tokens` take at least, also where the model's context is shorter."""

_MOST_SKIPPED = 16
"""Tools of a request that are left out; for each the answer is prepared once more."""

T = TypeVar("T")


def _limit_field(request: FormatRequest) -> str:
    """Return the name of the field that limits the answer's tokens."""
    if isinstance(request, CreateChatCompletionRequest) and given(request.max_completion_tokens):
        return "max_completion_tokens"
    return "max_output_tokens" if isinstance(request, CreateResponse) else "max_tokens"


def _tool_names(turn: Turn) -> list[str]:
    return [tool.name for tool in turn.prompt.tools] if isinstance(turn.prompt, ChatPrompt) else []


class Generation:
    """Prepare, answer and stream turns for all operations that generate, with one served model."""

    def __init__(
        self,
        model: ServedModel,
        settings: Settings,
        metrics: ModelMetrics,
        replies: Replies,
        media: MediaLoader,
        rates: Rates,
        templates: TemplateWorkers,
        checker: ArgumentsChecker,
        keys: KeyRing,
    ) -> None:
        self.model = model
        self.settings = settings
        self.metrics = metrics
        self.replies = replies
        self.adapters = ServedAdapters(model.engine, settings, model.names)
        self.admission = RequestChecks(model, settings, self.adapters, keys)
        self.road = Road(
            model.engine,
            model.renderer,
            model.dialect,
            model.defaults.max_tokens,
            templates,
            checker,
            unmarked_calls=settings.unmarked_calls and settings.tool_parser != "none",
        )
        self.modalities = frozenset(model.engine.info.modalities)
        """The kinds of files that the model reads."""
        self._media = media
        self._rates = rates

    async def prepare(
        self, call: Call, request: FormatRequest, turns: Sequence[Turn], param: str
    ) -> list[PreparedTurn]:
        """Render, encode and check the turns of a request; `param` is the field of their prompt.

        Raises:
            ApiError: 400 naming the field that cannot be honoured; 429 while the engine is full, which is checked
                first, or too many grammars are compiled.
        """
        client = client_of(call, self.settings)
        full = self.model.engine.refusal(client)
        if full is not None:
            raise as_api_error(full)
        with self.model.engine.arriving(client):
            found = await until_disconnect(call, self.prepared(request, turns, param, client))
        unenforced = dict.fromkeys(place for one in found for place in one.constraint.unenforced)
        if unenforced:
            call.facts[UNENFORCED] = list(unenforced)
        for turn, one in zip(turns, found, strict=True):
            for name in _tool_names(turn) if skips(request) else ():
                if name not in _tool_names(one.turn):
                    note_skipped(call.facts, name)
        return found

    async def prepared(
        self, request: FormatRequest, turns: Sequence[Turn], param: str, client: str
    ) -> list[PreparedTurn]:
        """Prepare turns as `prepare` does, whether or not the client is still connected."""
        try:
            loaded = await self.loaded(turns, client)
            adapter = self.admission.adapter(request.model)
            return [
                await self._prepared(request, msgspec.structs.replace(turn, adapter=adapter), client)
                for turn in (salted(each, client, self.settings) for each in loaded)
            ]
        except PromptTooLongError as error:  # ERR-09
            raise context_length_exceeded(
                error.max_model_len, error.prompt_tokens, error.output_tokens, param, _limit_field(request)
            ) from error
        except NoThinkingError as error:
            field = (
                "thinking.budget_tokens"
                if isinstance(request, CreateMessageRequest)
                else "thinking_token_budget"
            )
            raise unsupported_parameter(
                field, "is not supported: this model has no known end of thinking"
            ) from error
        except EmptyPromptError as error:
            raise invalid_request(
                f"'{param}' must not be empty: there is nothing to continue.", param
            ) from error
        except TemplateError as error:
            raise refused_by_template(error, param) from error
        except ConstraintError as error:
            raise constraint_refused(request, error) from error
        except (EngineFullError, EngineClosedError) as error:
            # Too many prompts or grammars wait, or the engine's process has ended.
            raise as_api_error(error) from error
        except RefusedRequestError as error:
            raise invalid_request(str(error), error.param or param, error.code) from error

    async def _prepared(self, request: FormatRequest, turn: Turn, client: str) -> PreparedTurn:
        """Prepare a turn; if the request wants so, without the tools that cannot be enforced."""
        for _ in range(_MOST_SKIPPED if skips(request) else 0):
            try:
                return await self.road.prepare(turn, client)
            except ConstraintError as error:
                left = None if error.tool is None else without_tool(turn, error.tool)
                if left is None:
                    raise
                turn = left
        return await self.road.prepare(turn, client)

    async def loaded(self, turns: Sequence[Turn], client: str) -> list[Turn]:
        """Return turns with the files that they name.

        Raises:
            ApiError: 400 for a file that cannot be loaded; 429 if too many are in use.
        """
        if not self.modalities:
            return list(turns)
        prompts = await self._media.load([turn.prompt for turn in turns], client)
        return [
            msgspec.structs.replace(turn, prompt=prompt) for turn, prompt in zip(turns, prompts, strict=True)
        ]

    async def token_ids(self, prompt: ChatPrompt | TextPrompt, param: str, call: Call) -> list[int]:
        """Encode a prompt that is only counted, which may be longer than the model's context."""
        most = max(self.model.engine.info.max_model_len, _COUNTED)
        client = client_of(call, self.settings)

        async def run() -> list[int]:
            (loaded,) = await self._media.load([prompt], client)
            ids = (await self.road.prompt_tokens(loaded, most, client)).token_ids
            if len(ids) > most:
                raise TooManyTokensError(len(ids))
            return ids

        try:
            return await until_disconnect(call, run())
        except (EngineFullError, EngineClosedError) as error:
            raise as_api_error(error) from error
        except RefusedRequestError as error:
            raise invalid_request(str(error), error.param or param, error.code) from error
        except TemplateError as error:
            raise refused_by_template(error, param) from error
        except TooManyTokensError as error:
            raise invalid_request(
                f"'{param}' has at least {error.least} tokens; this server counts at most {most}. Send it in parts.",
                param,
                "string_above_max_length",
            ) from error

    def answer(
        self, prepared: PreparedTurn, call: Call, *, patient: bool = False, suffix: str = ""
    ) -> AsyncGenerator[ChoiceEvent, None]:
        """Answer one turn; `patient` as for the road. The engine knows the answer by the request's id and `suffix`."""
        record = AnswerRecord(call, [prepared])
        answer = self._answered(record, prepared, f"{call.work_id}{suffix}", patient=patient)
        events = self.metrics.observe(answer, record)
        return self._rates.counted(as_sent(call.api_key or ""), events, len(prepared.prompt_token_ids))

    def _answered(
        self, record: AnswerRecord, prepared: PreparedTurn, request_id: str, *, patient: bool
    ) -> AsyncGenerator[ChoiceEvent, None]:
        client = client_of(record.call, self.settings)
        return self.road.answer(prepared, request_id, client, record.phases.append, patient=patient)

    def answer_all(self, prepared: Sequence[PreparedTurn], call: Call) -> AsyncGenerator[ChoiceEvent, None]:
        """Answer several prompts side by side; choices are numbered prompt by prompt (CMP-02)."""
        record = AnswerRecord(call, prepared)
        return self.metrics.observe(self._side_by_side(record), record)

    async def _side_by_side(self, record: AnswerRecord) -> AsyncGenerator[ChoiceEvent, None]:
        call, prepared = record.call, record.prepared
        answers = [
            self._rates.counted(
                as_sent(call.api_key or ""),
                # The first prompt waits for its turn for all of them, as the first choice does.
                self._answered(record, turn, f"{call.work_id}-p{number}", patient=number > 0),
                len(turn.prompt_token_ids),
            )
            for number, turn in enumerate(prepared)
        ]
        async with aclosing(merge(answers)) as events:
            async for number, (index, event) in events:
                yield number * prepared[number].turn.num_choices + index, event

    async def stream(
        self,
        call: Call,
        events: AsyncGenerator[T, None],
        frames: Callable[[Primed[T]], Frames],
        headers: Mapping[str, str] | None = None,
        form: StreamForm = CHUNKS,
    ) -> Reply:
        """Stream an answer: await its first event, then send frames and comments until the client leaves."""
        primed = await api_errors(until_disconnect(call, prime(events, self.replies.interval(form))))
        close_with_request(primed.aclose)
        return self.replies.stream(call, frames(primed), headers, form)

    async def prompt_facts(
        self,
        call: Call,
        request: CreateChatCompletionRequest | CreateCompletionRequest,
        turns: Sequence[PreparedTurn],
    ) -> list[PromptFacts]:
        """Gather the facts about each prompt's tokens that the answer reports, unless the client leaves."""

        async def run() -> list[PromptFacts]:
            client = client_of(call, self.settings)
            return [
                await prompt_facts(self.road, request, turn, f"{call.work_id}-f{number}", client)
                for number, turn in enumerate(turns)
            ]

        return await until_disconnect(call, run())

    async def consume(
        self,
        call: Call,
        events: AsyncGenerator[ChoiceEvent, None],
        take: Callable[[int, OutputEvent], object],
    ) -> None:
        """Read a whole answer event by event, unless the client leaves."""

        async def read(source: AsyncIterator[ChoiceEvent]) -> None:
            async for index, event in source:
                take(index, event)

        await self.finish(call, events, read)

    async def finish(
        self,
        call: Call,
        events: AsyncGenerator[T, None],
        read: Callable[[AsyncIterator[T]], Awaitable[None]],
    ) -> None:
        """Let `read` read a whole answer, unless the client leaves."""

        async def run() -> None:
            async with aclosing(events):
                await read(events)

        await api_errors(until_disconnect(call, run()))
