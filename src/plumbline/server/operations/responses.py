"""Answer Responses requests."""

from __future__ import annotations

import time

from plumbline._generated.responses import CreateResponse, TokenCountsBody, TokenCountsResource
from plumbline.protocols.common.fields import or_default
from plumbline.protocols.common.obfuscation import wants_obfuscation
from plumbline.protocols.responses.namespaces import unavailable_tools
from plumbline.protocols.responses.reader import read_response, read_response_prompt
from plumbline.protocols.responses.writer import ResponsesWriter
from plumbline.server.frames import response_frames
from plumbline.server.operations.base import Operations
from plumbline.wire.call import Call
from plumbline.wire.decode import encode
from plumbline.wire.reply import JsonReply, Reply

__all__ = ["ResponseOperations"]


class ResponseOperations(Operations):
    """Operations that create responses, or count what they would read."""

    async def create_response(self, request: CreateResponse, call: Call) -> Reply:
        """Answer input items."""
        arrived = time.perf_counter()
        self._admission.check_optional_model(request.model)
        turn = read_response(request, self._model.defaults, self._sealer)
        (prepared,) = await self._generation.prepare(call, request, [turn], "input")
        writer = ResponsesWriter(request, turn, model=self._model.names[0], sealer=self._sealer)
        headers = _unavailable_header(request)
        events = self._generation.answer(prepared, call, arrived)

        if request.stream is True:
            return await self._generation.stream(
                call,
                events,
                lambda primed: response_frames(
                    writer,
                    primed,
                    lambda error: self._generation.midway(error, call),
                    wants_obfuscation(request),
                ),
                headers,
            )
        writer.start()
        await self._generation.consume(call, events, lambda _, event: writer.event(event))
        return JsonReply(encode(writer.response), headers=headers)

    async def count_response_input_tokens(self, request: TokenCountsBody, call: Call) -> Reply:
        """Count what a request would send to the model (R-15)."""
        self._admission.check_optional_model(request.model)
        prompt = read_response_prompt(request, self._sealer)
        ids = await self._generation.token_ids(prompt, "input")
        return JsonReply(encode(TokenCountsResource(input_tokens=len(ids))))


def _unavailable_header(request: CreateResponse) -> dict[str, str]:
    """Name the hosted tools of a request, which this server accepts and does not run (TOOL-15)."""
    kinds = unavailable_tools(or_default(request.tools, []))
    return {"x-plumbline-unavailable-tools": ", ".join(kinds)} if kinds else {}
