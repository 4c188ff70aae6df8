"""Adapt vLLM's parsers to the interface."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from interface import (
    ParsedMessage,
    ParserStream,
    Tokenizer,
    reasoning_and_text,
    reasoning_text_and_calls,
    text_and_calls,
)

__all__ = ["Vllm"]


class Vllm:
    name = "vLLM"

    def __init__(self) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser import ParserManager
        from vllm.reasoning import ReasoningParserManager
        from vllm.tool_parsers import ToolParserManager

        self.version = version("vllm")
        self._manager = ToolParserManager
        self._reasoning_parsers = ReasoningParserManager
        self._request = ChatCompletionRequest
        self._together = ParserManager

    def names(self) -> Sequence[str]:
        return list(self._manager.list_registered())

    def read(
        self,
        parser: str,
        text: str,
        tools: list[Any],
        markers: list[str],
        *,
        streamed: bool,
        pieces: Sequence[str] = (),
    ) -> ParsedMessage:
        request = self._request(model="m", messages=[{"role": "user", "content": "hi"}], tools=tools)
        tokenizer = Tokenizer(markers, pieces=pieces)
        reader = self._manager.get_tool_parser(parser)(tokenizer, request.tools)
        if not streamed:
            whole = reader.extract_tool_calls(text, request)
            calls = [(call.function.name, call.function.arguments) for call in whole.tool_calls]
            return text_and_calls(whole.content or "", calls)
        stream = self._stream(reader, request, tokenizer, text)
        return stream.message(stream.read())

    def stream(
        self,
        parser: str,
        text: str,
        tools: list[Any],
        markers: list[str],
        *,
        size: int = 1,
        pieces: Sequence[str] = (),
    ) -> ParserStream:
        request = self._request(model="m", messages=[{"role": "user", "content": "hi"}], tools=tools)
        tokenizer = Tokenizer(markers, size, pieces)
        return self._stream(
            self._manager.get_tool_parser(parser)(tokenizer, request.tools), request, tokenizer, text
        )

    def _stream(self, reader: Any, request: Any, tokenizer: Tokenizer, text: str) -> ParserStream:
        steps = list(tokenizer.steps(text))

        def read() -> list[Any]:
            parse = reader.extract_tool_calls_streaming
            return [parse(*step, request) for step in steps]

        return ParserStream(len(steps), read, self._message)

    def _message(self, deltas: list[Any]) -> ParsedMessage:
        content = "".join(delta.content or "" for delta in deltas if delta is not None)
        return text_and_calls(content, self._calls(deltas))

    def _calls(self, deltas: list[Any]) -> list[tuple[str, str]]:
        found: dict[int, list[str]] = {}
        for delta in filter(None, deltas):
            for call in delta.tool_calls or ():
                one = found.setdefault(call.index, ["", ""])
                if call.function is not None:
                    one[0] += call.function.name or ""
                    one[1] += call.function.arguments or ""
        return [(name, arguments) for name, arguments in found.values()]

    def reasoning_parsers(self) -> Sequence[str]:
        return list(self._reasoning_parsers.list_registered())

    def read_reasoning(
        self,
        parser: str,
        text: str,
        markers: list[str],
        opened: str,
        variables: dict[str, Any],
        *,
        streamed: bool,
        pieces: Sequence[str] = (),
    ) -> ParsedMessage:
        request = self._request(model="m", messages=[{"role": "user", "content": "hi"}])
        tokenizer = Tokenizer(markers, pieces=pieces)
        reader = self._reasoning_parser(parser, tokenizer, opened, variables)
        whole = reader.extract_reasoning(text, request)
        if whole is None:  # A stub, as for calls.
            raise NotImplementedError
        if not streamed:
            return reasoning_and_text(*whole)
        stream = self._think_stream(reader, tokenizer, text)
        return stream.message(stream.read())

    def stream_reasoning(
        self,
        parser: str,
        text: str,
        markers: list[str],
        opened: str,
        variables: dict[str, Any],
        *,
        size: int = 1,
        pieces: Sequence[str] = (),
    ) -> ParserStream:
        tokenizer = Tokenizer(markers, size, pieces)
        return self._think_stream(
            self._reasoning_parser(parser, tokenizer, opened, variables), tokenizer, text
        )

    def read_with_reasoning(
        self,
        tool: str,
        reasoning_parser: str,
        text: str,
        tools: list[Any],
        markers: list[str],
        opened: str,
        variables: dict[str, Any],
        *,
        streamed: bool,
        pieces: Sequence[str] = (),
    ) -> ParsedMessage:
        request = self._request(model="m", messages=[{"role": "user", "content": "hi"}], tools=tools)
        tokenizer = Tokenizer(markers, pieces=pieces)
        if tool == "openai":  # This parser reads the ids of gpt-oss' own tokenizer.
            raise NotImplementedError
        try:
            kind = self._together.get_parser(tool, reasoning_parser, enable_auto_tools=True)
            reader = kind(tokenizer, request.tools, chat_template_kwargs=variables)
        except Exception as error:
            # Skip parsers that need a package, file or tokens of their family; only the reading of outputs is compared.
            raise NotImplementedError from error
        request = reader.adjust_request(request)
        prompt = tokenizer.encode(opened)
        reader.set_prompt_token_ids(prompt)
        if not streamed:
            reasoning, content, calls = reader.parse(
                text, request, enable_auto_tools=True, model_output_token_ids=tokenizer.encode(text)
            )
            return reasoning_text_and_calls(
                reasoning, content, [(call.name, call.arguments) for call in calls or ()]
            )
        ids = tokenizer.encode(text)
        deltas = [
            reader.parse_delta(
                tokenizer.decode([token_id]), [token_id], request, prompt, finished=number == len(ids) - 1
            )
            for number, token_id in enumerate(ids)
        ]
        reasoning = "".join(delta.reasoning or "" for delta in deltas if delta is not None)
        to_message = self._message(deltas)
        return reasoning_text_and_calls(reasoning, to_message.content, self._calls(deltas))

    def _reasoning_parser(
        self, parser: str, tokenizer: Tokenizer, opened: str, variables: dict[str, Any]
    ) -> Any:
        try:
            reader = self._reasoning_parsers.get_reasoning_parser(parser)(
                tokenizer, chat_template_kwargs=variables
            )
        except KeyError as error:  # This parser looks for tokens that only the family's own tokenizer has.
            raise NotImplementedError from error
        reader.adjust_initial_state_from_prompt(tokenizer.encode(opened))
        return reader

    def _think_stream(self, reader: Any, tokenizer: Tokenizer, text: str) -> ParserStream:
        steps = list(tokenizer.steps(text))

        def read() -> list[Any]:
            parse = reader.extract_reasoning_streaming
            return [parse(*step) for step in steps]

        def to_message(deltas: list[Any]) -> ParsedMessage:
            found = [delta for delta in deltas if delta is not None]
            return reasoning_and_text(
                "".join(delta.reasoning or "" for delta in found),
                "".join(delta.content or "" for delta in found),
            )

        return ParserStream(len(steps), read, to_message)
