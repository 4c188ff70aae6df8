"""Turn texts into the tokens of a model, and back."""

from __future__ import annotations

import asyncio

from plumbline.answer.turn import ChatPrompt, TextPrompt
from plumbline.contract._generated.utilities import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.errors import invalid_request
from plumbline.contract.wire.reply import JsonReply, Reply
from plumbline.server.operations.base import ModelOperations
from plumbline.server.protocols.chat.continuation import check_ending
from plumbline.server.protocols.chat.messages import read_messages, read_tool_list
from plumbline.server.protocols.common.fields import or_default, template_variables
from plumbline.server.protocols.common.sampling.parameters import check_token_ids

__all__ = ["TokenOperations"]


class TokenOperations(ModelOperations):
    """Operations on the tokens of a model."""

    async def tokenize(self, request: TokenizeRequest, call: Call) -> Reply:
        """Turn a prompt or a conversation into token ids."""
        self._admission.check_optional_model(request.model, call)
        if isinstance(request.prompt, str) == isinstance(request.messages, list):
            raise invalid_request("Give either 'prompt' or 'messages'.", "prompt")
        special = or_default(request.add_special_tokens, isinstance(request.prompt, str))
        if isinstance(request.prompt, str):
            ids = await self.generation.token_ids(TextPrompt(request.prompt, special), "prompt", call)
        else:
            continued = or_default(request.continue_final_message, False)
            check_ending(continued, request.add_generation_prompt)
            modalities = self.generation.modalities
            messages, tools = await call.read(
                lambda: (
                    read_messages(or_default(request.messages, []), modalities),
                    read_tool_list(or_default(request.tools, [])),
                )
            )
            prompt = ChatPrompt(
                messages=messages,
                tools=tools,
                template_kwargs=template_variables(or_default(request.chat_template_kwargs, {})),
                add_generation_prompt=or_default(request.add_generation_prompt, not continued),
                continue_final_message=continued,
                add_special_tokens=special,
            )
            ids = await self.generation.token_ids(prompt, "messages", call)
        strings: list[str] | None = None
        if request.return_token_strs is True:
            strings = [self._road.tokenizer.vocabulary_text(token_id) for token_id in ids]
        return JsonReply(encode(self._tokenized(ids, strings)))

    async def detokenize(self, request: DetokenizeRequest, call: Call) -> Reply:
        """Turn token ids into text."""
        self._admission.check_optional_model(request.model, call)
        check_token_ids("tokens", request.tokens, self._model.engine.info.vocab_size)
        text = await asyncio.to_thread(self._road.tokenizer.decode, request.tokens)
        return JsonReply(encode(DetokenizeResponse(prompt=text)))

    async def get_tokenizer_info(self) -> Reply:
        """Return the configuration of the model's tokenizer."""
        return JsonReply(encode(self._model.tokenizer_info))

    def _tokenized(self, ids: list[int], strings: list[str] | None) -> TokenizeResponse:
        return TokenizeResponse(
            tokens=ids,
            count=len(ids),
            max_model_len=self._model.engine.info.max_model_len,
            token_strs=strings,
        )
