"""Answer legacy completions."""

from __future__ import annotations

from collections.abc import Sequence

from plumbline.answer.road.prepare import PreparedTurn
from plumbline.answer.text.echo import echoed
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.reply import JsonReply, Reply
from plumbline.server.admission import client_of
from plumbline.server.http.failures import api_errors
from plumbline.server.http.frames import chunk_frames
from plumbline.server.http.replies import StreamForm
from plumbline.server.http.streams import until_disconnect
from plumbline.server.operations.base import ModelOperations
from plumbline.server.operations.defaults import with_defaults
from plumbline.server.protocols.common.obfuscation import wants_obfuscation
from plumbline.server.protocols.completions.reader import CompletionPlan, count_prompts, read_completion
from plumbline.server.protocols.completions.writer import CompletionWriter, PromptText

__all__ = ["CompletionOperations"]


class CompletionOperations(ModelOperations):
    """Operations on legacy completions."""

    async def create_completion(self, request: CreateCompletionRequest, call: Call) -> Reply:
        """Continue texts."""
        self._admission.check_model(request.model, call)
        self._admission.check_suffix(request)
        request = with_defaults(request, self._settings)
        # A body of 10 MB has 90,000 prompts of a token; reading them first would hold up all streams for a second.
        self._admission.check_choices(count_prompts(request), "prompt")
        plan = await call.read(lambda: read_completion(request, self._model.defaults))
        self._admission.check_choices(
            len(plan.turns) * plan.best_of, "prompt" if len(plan.turns) > 1 else "n"
        )
        prepared = await self.generation.prepare(call, request, plan.turns, "prompt")
        prompts = await until_disconnect(call, self._prompt_texts(plan, prepared, call))
        writer = CompletionWriter(
            request,
            plan,
            prompts,
            model=self._admission.answer_name(request.model, call),
            fingerprint=self._model.fingerprint,
            facts=await self.generation.prompt_facts(call, request, prepared),
            prompt_tokens=sum(len(one.prompt_token_ids) for one in prepared),
        )
        events = self.generation.answer_all(prepared, call)

        if request.stream is True:
            return await self.generation.stream(
                call,
                events,
                lambda primed: chunk_frames(
                    writer.chunks(), primed, wants_obfuscation(request), compact=self._settings.compact_stream
                ),
                form=StreamForm.of_chunks(request),
            )
        fold = writer.fold()
        await self.generation.consume(call, events, fold.event)
        return JsonReply(encode(fold.answer()))

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
                    turn, f"{call.work_id}-e{number}", plan.logprobs, client_of(call, self._settings)
                )
                entries = await api_errors(work)
            ids = turn.prompt_token_ids
            text, tokens = echoed(self._road.tokenizer, turn.turn.prompt, ids, entries)
            found.append(PromptText(text, tokens, ids[0] if ids else None))
        return found
