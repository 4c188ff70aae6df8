"""Implement the operations of the contract: read the request, answer it through the road, write the answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from importlib.resources import files
from typing import TypeVar

import msgspec

from plumbline import __version__
from plumbline._generated.chat import CreateChatCompletionRequest
from plumbline._generated.completions import CreateCompletionRequest
from plumbline._generated.models import ListModelsResponse, Model
from plumbline._generated.responses import CreateResponse, TokenCountsBody, TokenCountsResource
from plumbline._generated.service import Service
from plumbline._generated.utilities import (
    DetokenizeRequest,
    DetokenizeResponse,
    Health,
    TokenizeRequest,
    TokenizeResponse,
    Version,
)
from plumbline.engines.port import EngineFullError
from plumbline.events import ChoiceEvent, OutputEvent
from plumbline.protocols.chat.continuation import check_ending
from plumbline.protocols.chat.messages import read_messages, read_tool_list
from plumbline.protocols.chat.reader import read_chat
from plumbline.protocols.chat.writer import ChatWriter
from plumbline.protocols.common.fields import or_default, template_variables
from plumbline.protocols.common.obfuscation import wants_obfuscation
from plumbline.protocols.common.output_formats import FormatRequest, constraint_refused
from plumbline.protocols.common.sampling import check_token_ids
from plumbline.protocols.common.sealing import Sealer
from plumbline.protocols.completions.reader import CompletionPlan, read_completion
from plumbline.protocols.completions.writer import CompletionWriter, PromptText
from plumbline.protocols.responses.namespaces import unavailable_tools
from plumbline.protocols.responses.reader import read_response, read_response_prompt
from plumbline.protocols.responses.writer import ResponsesWriter
from plumbline.road.errors import EmptyPromptError, NoThinkingError, PromptTooLongError
from plumbline.road.merge import merge
from plumbline.road.prepare import PreparedTurn
from plumbline.road.road import Road
from plumbline.server.admission import Admission
from plumbline.server.failures import FAILURES, api_errors, as_api_error, refused_by_template
from plumbline.server.frames import Frames, chunk_frames, response_frames
from plumbline.server.loading import ServedModel
from plumbline.server.metrics import CONTENT_TYPE, Metrics
from plumbline.server.prompt_facts import prompt_facts
from plumbline.server.settings import Settings
from plumbline.server.streams import KeepAlive, close_with_request, prime, until_disconnect
from plumbline.structured_output.grammar.errors import ConstraintError
from plumbline.text.echo import echoed
from plumbline.text.render import TooManyTokensError
from plumbline.text.templates.template import TemplateError
from plumbline.turn import ChatPrompt, TextPrompt, Turn
from plumbline.wire.call import Call
from plumbline.wire.decode import encode
from plumbline.wire.errors import (
    ApiError,
    context_length_exceeded,
    envelope,
    invalid_request,
    unsupported_parameter,
)
from plumbline.wire.reply import EventReply, JsonReply, RawReply, Reply
from plumbline.wire.sse import DONE, frame

__all__ = ["PlumblineService"]

_log = logging.getLogger("plumbline.server")

_COUNTED = 131_072
"""Tokens that `/tokenize` and `/v1/responses/input_tokens` take at least, also where the model's context is shorter."""

T = TypeVar("T")


class PlumblineService(Service):
    """Answer requests for one served model."""

    def __init__(self, model: ServedModel, settings: Settings, metrics: Metrics) -> None:
        self._model = model
        self._settings = settings
        self._metrics = metrics
        self._sealer = Sealer(settings.sealing_key)
        self._admission = Admission(model, settings)
        self._road = Road(model.engine, model.renderer, model.dialect)

    # Generation

    async def create_chat_completion(self, request: CreateChatCompletionRequest, call: Call) -> Reply:
        """Answer a conversation."""
        arrived = time.perf_counter()
        self._admission.check_model(request.model)
        self._admission.check_template(request)
        turn = read_chat(request, self._model.defaults)
        self._admission.check_choices(turn.num_choices, "n")
        (prepared,) = await self._prepare(call, request, [turn], "messages")
        writer = ChatWriter(
            request,
            model=self._model.names[0],
            fingerprint=self._model.fingerprint,
            reasoning_field=self._settings.reasoning_field,
            facts=await until_disconnect(
                call,
                prompt_facts(
                    self._road, request, prepared, f"{call.work_id}-f", self._admission.client(call)
                ),
            ),
            thinking_markers=_outer_markers(prepared),
            prompt_tokens=len(prepared.prompt_token_ids),
        )
        events = self._answer(prepared, call, arrived)

        if request.stream is True:
            return await self._stream(
                call, events, lambda primed: chunk_frames(writer, primed, wants_obfuscation(request))
            )
        await self._consume(call, events, writer.event)
        return JsonReply(encode(writer.answer()))

    async def create_completion(self, request: CreateCompletionRequest, call: Call) -> Reply:
        """Continue texts."""
        arrived = time.perf_counter()
        self._admission.check_model(request.model)
        self._admission.check_suffix(request)
        plan = read_completion(request, self._model.defaults)
        self._admission.check_choices(
            len(plan.turns) * plan.best_of, "prompt" if len(plan.turns) > 1 else "n"
        )
        prepared = await self._prepare(call, request, plan.turns, "prompt")
        prompts = await until_disconnect(call, self._prompt_texts(plan, prepared, call))
        writer = CompletionWriter(
            request,
            plan,
            prompts,
            model=self._model.names[0],
            fingerprint=self._model.fingerprint,
            facts=[
                await until_disconnect(
                    call,
                    prompt_facts(
                        self._road, request, turn, f"{call.work_id}-f{number}", self._admission.client(call)
                    ),
                )
                for number, turn in enumerate(prepared)
            ],
            prompt_tokens=sum(len(one.prompt_token_ids) for one in prepared),
        )
        events = self._metrics.observe(self._answer_all(prepared, call), arrived)

        if request.stream is True:
            return await self._stream(
                call, events, lambda primed: chunk_frames(writer, primed, wants_obfuscation(request))
            )
        writer.start()
        await self._consume(call, events, writer.event)
        return JsonReply(encode(writer.answer()))

    async def create_response(self, request: CreateResponse, call: Call) -> Reply:
        """Answer input items."""
        arrived = time.perf_counter()
        self._admission.check_optional_model(request.model)
        turn = read_response(request, self._model.defaults, self._sealer)
        (prepared,) = await self._prepare(call, request, [turn], "input")
        writer = ResponsesWriter(request, turn, model=self._model.names[0], sealer=self._sealer)
        headers = _unavailable_header(request)
        events = self._answer(prepared, call, arrived)

        if request.stream is True:
            return await self._stream(
                call,
                events,
                lambda primed: response_frames(
                    writer, primed, lambda error: self._midway(error, call), wants_obfuscation(request)
                ),
                headers,
            )
        writer.start()
        await self._consume(call, events, lambda _, event: writer.event(event))
        return JsonReply(encode(writer.response), headers=headers)

    async def count_response_input_tokens(self, request: TokenCountsBody, call: Call) -> Reply:
        """Count what a request would send to the model (R-15)."""
        self._admission.check_optional_model(request.model)
        prompt = read_response_prompt(request, self._sealer)
        ids = await self._token_ids(prompt, "input")
        return JsonReply(encode(TokenCountsResource(input_tokens=len(ids))))

    # Models

    async def list_models(self, call: Call) -> Reply:
        """List the served names (MOD-01)."""
        return JsonReply(
            encode(ListModelsResponse(data=[self._describe(name) for name in self._model.names]))
        )

    async def retrieve_model(self, call: Call, *, model: str) -> Reply:
        """Describe a served model (MOD-02, MOD-03)."""
        self._admission.check_model(model)
        return JsonReply(encode(self._describe(model)))

    # Operations that OpenAI's API does not have

    async def get_health(self, call: Call) -> Reply:
        """Report the engine's health: 503 if it is dead or stuck in a step."""
        stats = self._model.engine.stats()
        if not stats.alive or stats.seconds_since_step > self._settings.stuck_after:
            return JsonReply(encode(Health(status="failing")), status=503)
        return JsonReply(encode(Health(status="ok")))

    async def get_version(self, call: Call) -> Reply:
        """Return the package's version."""
        return JsonReply(encode(Version(version=__version__)))

    async def tokenize(self, request: TokenizeRequest, call: Call) -> Reply:
        """Turn a prompt or a conversation into token ids."""
        self._admission.check_optional_model(request.model)
        if isinstance(request.prompt, str) == isinstance(request.messages, list):
            raise invalid_request("Give either 'prompt' or 'messages'.", "prompt")
        special = or_default(request.add_special_tokens, isinstance(request.prompt, str))
        if isinstance(request.prompt, str):
            ids = await self._token_ids(TextPrompt(request.prompt, special), "prompt")
        else:
            continued = or_default(request.continue_final_message, False)
            check_ending(continued, request.add_generation_prompt)
            prompt = ChatPrompt(
                messages=read_messages(or_default(request.messages, [])),
                tools=read_tool_list(or_default(request.tools, [])),
                template_kwargs=template_variables(or_default(request.chat_template_kwargs, {})),
                add_generation_prompt=or_default(request.add_generation_prompt, not continued),
                continue_final_message=continued,
                add_special_tokens=special,
            )
            ids = await self._token_ids(prompt, "messages")
        strings: list[str] | msgspec.UnsetType = msgspec.UNSET
        if request.return_token_strs is True:
            strings = [self._road.tokenizer.token_text(token_id) for token_id in ids]
        return JsonReply(encode(self._tokenized(ids, strings)))

    async def detokenize(self, request: DetokenizeRequest, call: Call) -> Reply:
        """Turn token ids into text."""
        self._admission.check_optional_model(request.model)
        check_token_ids("tokens", request.tokens, self._model.engine.info.vocab_size)
        text = await asyncio.to_thread(self._road.tokenizer.decode, request.tokens)
        return JsonReply(encode(DetokenizeResponse(prompt=text)))

    async def get_tokenizer_info(self, call: Call) -> Reply:
        """Return the configuration of the model's tokenizer."""
        return JsonReply(encode(self._model.tokenizer_info))

    async def get_metrics(self, call: Call) -> Reply:
        """Return the Prometheus metrics."""
        return RawReply(self._metrics.render(), CONTENT_TYPE)

    async def get_openapi_json(self, call: Call) -> Reply:
        """Return the contract as JSON."""
        return RawReply(_contract("openapi.json"), "application/json")

    async def get_openapi_yaml(self, call: Call) -> Reply:
        """Return the contract as YAML."""
        return RawReply(_contract("openapi.yaml"), "application/yaml")

    # The road, with its failures as API errors

    async def _prepare(
        self, call: Call, request: FormatRequest, turns: Sequence[Turn], param: str
    ) -> list[PreparedTurn]:
        async def run() -> list[PreparedTurn]:
            return [await self._road.prepare(turn) for turn in turns]

        try:
            return await until_disconnect(call, run())
        except PromptTooLongError as error:  # ERR-09
            raise context_length_exceeded(
                error.max_model_len, error.prompt_tokens + error.output_tokens, param
            ) from error
        except NoThinkingError as error:
            raise unsupported_parameter(
                "thinking_token_budget", "is not supported: this model has no known end of thinking"
            ) from error
        except EmptyPromptError as error:
            raise invalid_request(
                f"'{param}' must not be empty: there is nothing to continue.", param
            ) from error
        except TemplateError as error:
            raise refused_by_template(error, param) from error
        except ConstraintError as error:
            raise constraint_refused(request, error) from error
        except EngineFullError as error:  # too many grammars are being compiled
            raise as_api_error(error) from error

    async def _token_ids(self, prompt: ChatPrompt | TextPrompt, param: str) -> list[int]:
        most = max(self._model.engine.info.max_model_len, _COUNTED)
        try:
            return await asyncio.to_thread(self._model.renderer.token_ids, prompt, most)
        except TemplateError as error:
            raise refused_by_template(error, param) from error
        except TooManyTokensError as error:
            raise invalid_request(
                f"'{param}' has at least {error.least} tokens; this server counts {most} at most. Send it in parts.",
                param,
                "string_above_max_length",
            ) from error

    def _answer(
        self, prepared: PreparedTurn, call: Call, arrived: float
    ) -> AsyncGenerator[ChoiceEvent, None]:
        return self._metrics.observe(
            self._road.answer(prepared, call.work_id, self._admission.client(call)), arrived
        )

    async def _answer_all(
        self, prepared: Sequence[PreparedTurn], call: Call
    ) -> AsyncGenerator[ChoiceEvent, None]:
        """Answer several prompts side by side; choices are numbered prompt by prompt (CMP-02)."""
        answers = [
            self._road.answer(turn, f"{call.work_id}-p{number}", self._admission.client(call))
            for number, turn in enumerate(prepared)
        ]
        async with aclosing(merge(answers)) as events:
            async for number, (index, event) in events:
                yield number * prepared[number].turn.num_choices + index, event

    async def _prompt_texts(
        self, plan: CompletionPlan, prepared: Sequence[PreparedTurn], call: Call
    ) -> list[PromptText | None]:
        if not plan.echo:
            return [None] * len(prepared)
        found: list[PromptText | None] = []
        for number, turn in enumerate(prepared):
            entries = None
            if plan.logprobs is not None:
                work = self._road.prompt_logprobs(
                    turn, f"{call.work_id}-e{number}", plan.logprobs, self._admission.client(call)
                )
                entries = await api_errors(work)
            found.append(
                PromptText(*echoed(self._road.tokenizer, turn.turn.prompt, turn.prompt_token_ids, entries))
            )
        return found

    async def _stream(
        self,
        call: Call,
        events: AsyncGenerator[ChoiceEvent, None],
        frames: Callable[[AsyncIterator[ChoiceEvent]], Frames],
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        interval = self._settings.keep_alive_interval
        primed = await api_errors(until_disconnect(call, prime(events, interval)))
        close_with_request(primed.aclose)
        reply = KeepAlive(self._with_done(frames(primed), call), interval)
        close_with_request(reply.aclose)
        return EventReply(reply, headers or {})

    async def _with_done(self, frames: Frames, call: Call) -> Frames:
        """Send frames, then `[DONE]`; a failure becomes one error event before it (ERR-12)."""
        try:
            async with aclosing(frames):
                async for item in frames:
                    yield item
        except Exception as error:
            yield frame(envelope(self._midway(error, call)))
        yield DONE

    def _midway(self, error: Exception, call: Call) -> ApiError:
        """Return the API error for a failure after the stream has begun, and log what was not raised by design."""
        self._metrics.failed_midway()
        if not isinstance(error, FAILURES):
            # ERR-13: the traceback goes to the log, not to the client.
            _log.error("request %s failed in mid-stream", call.request_id, exc_info=error)
        return as_api_error(error)

    async def _consume(
        self,
        call: Call,
        events: AsyncGenerator[ChoiceEvent, None],
        take: Callable[[int, OutputEvent], object],
    ) -> None:
        async def run() -> None:
            async with aclosing(events):
                async for index, event in events:
                    take(index, event)

        await api_errors(until_disconnect(call, run()))

    # Helpers

    def _describe(self, name: str) -> Model:
        return Model(
            id=name,
            created=self._model.created,
            owned_by="plumbline",
            max_model_len=self._model.engine.info.max_model_len,
        )

    def _tokenized(self, ids: list[int], strings: list[str] | msgspec.UnsetType) -> TokenizeResponse:
        return TokenizeResponse(
            tokens=ids,
            count=len(ids),
            max_model_len=self._model.engine.info.max_model_len,
            token_strs=strings,
        )


def _outer_markers(prepared: PreparedTurn) -> tuple[str, str]:
    """Return the texts around the model's reasoning, for `separate_reasoning: false`."""
    markers = prepared.dialect.thinking_markers
    return ("", "") if markers is None else (markers.open[0], markers.close)


def _unavailable_header(request: CreateResponse) -> dict[str, str]:
    """Name the hosted tools of a request, which this server accepts and does not run (TOOL-15)."""
    kinds = unavailable_tools(or_default(request.tools, []))
    return {"x-plumbline-unavailable-tools": ", ".join(kinds)} if kinds else {}


def _contract(name: str) -> bytes:
    return files("plumbline._generated").joinpath(name).read_bytes()
