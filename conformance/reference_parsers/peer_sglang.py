"""Adapt SGLang's parsers to the interface."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from interface import (
    ParsedMessage,
    ParserStream,
    cut,
    reasoning_and_text,
    reasoning_text_and_calls,
    text_and_calls,
)

__all__ = ["Sglang"]


class Sglang:
    name = "SGLang"

    def __init__(self) -> None:
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        self._reasoning_parser = ReasoningParser
        self.version = version("sglang")
        self._parser = FunctionCallParser
        self._tool = Tool

    def names(self) -> Sequence[str]:
        return list(self._parser.ToolCallParserEnum)

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
        reader = self._parser([self._tool(**tool) for tool in tools], parser)
        if not streamed:
            content, calls = reader.parse_non_stream(text)
            return text_and_calls(content or "", [(call.name or "", call.parameters) for call in calls])
        stream = self.stream(parser, text, tools, markers, pieces=pieces)
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
        reader = self._parser([self._tool(**tool) for tool in tools], parser)
        pieces = cut(text, markers, size, pieces)

        def read() -> list[Any]:
            parse = reader.parse_stream_chunk
            return [parse(piece) for piece in pieces]

        return ParserStream(len(pieces), read, self._message)

    def _message(self, deltas: list[Any]) -> ParsedMessage:
        return text_and_calls("".join(text or "" for text, _ in deltas), self._calls(deltas))

    def _calls(self, deltas: list[Any]) -> list[tuple[str, str]]:
        found: dict[int, list[str]] = {}
        for _, calls in deltas:
            for call in calls:
                one = found.setdefault(call.tool_index, ["", ""])
                one[0] += call.name or ""
                one[1] += call.parameters or ""
        return [(name, arguments) for name, arguments in found.values()]

    def reasoning_parsers(self) -> Sequence[str]:
        return list(self._reasoning_parser.DetectorMap)

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
        if not streamed:
            return reasoning_and_text(*self._reader(parser, opened).parse_non_stream(text))
        stream = self.stream_reasoning(parser, text, markers, opened, variables, pieces=pieces)
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
        reader = self._reader(parser, opened)
        pieces = cut(text, markers, size, pieces)

        def read() -> list[Any]:
            parse = reader.parse_stream_chunk
            return [parse(piece) for piece in pieces]

        def to_message(deltas: list[Any]) -> ParsedMessage:
            return reasoning_and_text(*("".join(delta[place] or "" for delta in deltas) for place in (0, 1)))

        return ParserStream(len(pieces), read, to_message)

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
        reasoning_reader = self._reader(reasoning_parser, opened)
        reader = self._parser([self._tool(**tool) for tool in tools], tool)
        if not streamed:
            reasoning, rest = reasoning_reader.parse_non_stream(text)
            content, calls = reader.parse_non_stream(rest or "")
            return reasoning_text_and_calls(
                reasoning, content, [(call.name or "", call.parameters) for call in calls]
            )
        reasoning = ""
        deltas = []
        for piece in cut(text, markers, pieces=pieces):
            thought, rest = reasoning_reader.parse_stream_chunk(piece)
            reasoning += thought or ""
            if rest:
                deltas.append(reader.parse_stream_chunk(rest))
        return reasoning_text_and_calls(
            reasoning, "".join(text or "" for text, _ in deltas), self._calls(deltas)
        )

    def _reader(self, parser: str, opened: str) -> Any:
        return self._reasoning_parser(parser, force_reasoning=True if opened else None)
