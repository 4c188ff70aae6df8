"""vLLM's parsers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from asked import Message, Stream, Tokenizer, message, thought, together

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
        self._thinkers = ReasoningParserManager
        self._request = ChatCompletionRequest
        self._together = ParserManager

    def names(self) -> Sequence[str]:
        return list(self._manager.list_registered())

    def read(
        self, parser: str, text: str, tools: list[Any], markers: list[str], *, streamed: bool
    ) -> Message:
        request = self._request(model="m", messages=[{"role": "user", "content": "hi"}], tools=tools)
        tokenizer = Tokenizer(markers)
        reader = self._manager.get_tool_parser(parser)(tokenizer, request.tools)
        if not streamed:
            whole = reader.extract_tool_calls(text, request)
            calls = [(call.function.name, call.function.arguments) for call in whole.tool_calls]
            return message(whole.content or "", calls)
        stream = self._stream(reader, request, tokenizer, text)
        return stream.message(stream.read())

    def stream(
        self, parser: str, text: str, tools: list[Any], markers: list[str], *, size: int = 1
    ) -> Stream:
        request = self._request(model="m", messages=[{"role": "user", "content": "hi"}], tools=tools)
        tokenizer = Tokenizer(markers, size)
        return self._stream(
            self._manager.get_tool_parser(parser)(tokenizer, request.tools), request, tokenizer, text
        )

    def _stream(self, reader: Any, request: Any, tokenizer: Tokenizer, text: str) -> Stream:
        steps = list(tokenizer.steps(text))

        def read() -> list[Any]:
            parse = reader.extract_tool_calls_streaming
            return [parse(*step, request) for step in steps]

        return Stream(len(steps), read, self._said)

    def _said(self, deltas: list[Any]) -> Message:
        content = "".join(delta.content or "" for delta in deltas if delta is not None)
        return message(content, self._calls(deltas))

    def _calls(self, deltas: list[Any]) -> list[tuple[str, str]]:
        found: dict[int, list[str]] = {}
        for delta in filter(None, deltas):
            for call in delta.tool_calls or ():
                one = found.setdefault(call.index, ["", ""])
                if call.function is not None:
                    one[0] += call.function.name or ""
                    one[1] += call.function.arguments or ""
        return [(name, arguments) for name, arguments in found.values()]

    def thinkers(self) -> Sequence[str]:
        return list(self._thinkers.list_registered())

    def think(
        self,
        parser: str,
        text: str,
        markers: list[str],
        opened: str,
        variables: dict[str, Any],
        *,
        streamed: bool,
    ) -> Message:
        request = self._request(model="m", messages=[{"role": "user", "content": "hi"}])
        tokenizer = Tokenizer(markers)
        reader = self._thinker(parser, tokenizer, opened, variables)
        whole = reader.extract_reasoning(text, request)
        if whole is None:  # A stub, as for calls.
            raise NotImplementedError
        if not streamed:
            return thought(*whole)
        stream = self._think_stream(reader, tokenizer, text)
        return stream.message(stream.read())

    def think_stream(
        self,
        parser: str,
        text: str,
        markers: list[str],
        opened: str,
        variables: dict[str, Any],
        *,
        size: int = 1,
    ) -> Stream:
        tokenizer = Tokenizer(markers, size)
        return self._think_stream(self._thinker(parser, tokenizer, opened, variables), tokenizer, text)

    def speak(
        self,
        tool: str,
        thinker: str,
        text: str,
        tools: list[Any],
        markers: list[str],
        opened: str,
        variables: dict[str, Any],
        *,
        streamed: bool,
    ) -> Message:
        request = self._request(model="m", messages=[{"role": "user", "content": "hi"}], tools=tools)
        tokenizer = Tokenizer(markers)
        if tool == "openai":  # It reads the ids of gpt-oss' own tokenizer.
            raise NotImplementedError
        try:
            kind = self._together.get_parser(tool, thinker, enable_auto_tools=True)
            reader = kind(tokenizer, request.tools, chat_template_kwargs=variables)
        except Exception as error:
            # It needs a package, a file or tokens that are the family's own; what is compared is how an output is read.
            raise NotImplementedError from error
        request = reader.adjust_request(request)
        prompt = tokenizer.encode(opened)
        reader.set_prompt_token_ids(prompt)
        if not streamed:
            reasoning, content, calls = reader.parse(
                text, request, enable_auto_tools=True, model_output_token_ids=tokenizer.encode(text)
            )
            return together(reasoning, content, [(call.name, call.arguments) for call in calls or ()])
        ids = tokenizer.encode(text)
        deltas = [
            reader.parse_delta(
                tokenizer.decode([token_id]), [token_id], request, prompt, finished=number == len(ids) - 1
            )
            for number, token_id in enumerate(ids)
        ]
        reasoning = "".join(delta.reasoning or "" for delta in deltas if delta is not None)
        said = self._said(deltas)
        return together(reasoning, said.content, self._calls(deltas))

    def _thinker(self, parser: str, tokenizer: Tokenizer, opened: str, variables: dict[str, Any]) -> Any:
        try:
            reader = self._thinkers.get_reasoning_parser(parser)(tokenizer, chat_template_kwargs=variables)
        except KeyError as error:  # It looks for tokens that only the family's own tokenizer has.
            raise NotImplementedError from error
        reader.adjust_initial_state_from_prompt(tokenizer.encode(opened))
        return reader

    def _think_stream(self, reader: Any, tokenizer: Tokenizer, text: str) -> Stream:
        steps = list(tokenizer.steps(text))

        def read() -> list[Any]:
            parse = reader.extract_reasoning_streaming
            return [parse(*step) for step in steps]

        def said(deltas: list[Any]) -> Message:
            found = [delta for delta in deltas if delta is not None]
            return thought(
                "".join(delta.reasoning or "" for delta in found),
                "".join(delta.content or "" for delta in found),
            )

        return Stream(len(steps), read, said)
