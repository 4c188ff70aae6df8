"""SGLang's parsers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from asked import Message, Stream, cut, message, thought, together

__all__ = ["Sglang"]


class Sglang:
    name = "SGLang"

    def __init__(self) -> None:
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser
        from sglang.srt.parser.reasoning_parser import ReasoningParser

        self._thinker = ReasoningParser
        self.version = version("sglang")
        self._parser = FunctionCallParser
        self._tool = Tool

    def names(self) -> Sequence[str]:
        return list(self._parser.ToolCallParserEnum)

    def read(
        self, parser: str, text: str, tools: list[Any], markers: list[str], *, streamed: bool
    ) -> Message:
        reader = self._parser([self._tool(**tool) for tool in tools], parser)
        if not streamed:
            content, calls = reader.parse_non_stream(text)
            return message(content or "", [(call.name or "", call.parameters) for call in calls])
        stream = self.stream(parser, text, tools, markers)
        return stream.message(stream.read())

    def stream(
        self, parser: str, text: str, tools: list[Any], markers: list[str], *, size: int = 1
    ) -> Stream:
        reader = self._parser([self._tool(**tool) for tool in tools], parser)
        pieces = cut(text, markers, size)

        def read() -> list[Any]:
            parse = reader.parse_stream_chunk
            return [parse(piece) for piece in pieces]

        return Stream(len(pieces), read, self._said)

    def _said(self, deltas: list[Any]) -> Message:
        return message("".join(said or "" for said, _ in deltas), self._calls(deltas))

    def _calls(self, deltas: list[Any]) -> list[tuple[str, str]]:
        found: dict[int, list[str]] = {}
        for _, calls in deltas:
            for call in calls:
                one = found.setdefault(call.tool_index, ["", ""])
                one[0] += call.name or ""
                one[1] += call.parameters or ""
        return [(name, arguments) for name, arguments in found.values()]

    def thinkers(self) -> Sequence[str]:
        return list(self._thinker.DetectorMap)

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
        if not streamed:
            return thought(*self._reader(parser, opened).parse_non_stream(text))
        stream = self.think_stream(parser, text, markers, opened, variables)
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
        reader = self._reader(parser, opened)
        pieces = cut(text, markers, size)

        def read() -> list[Any]:
            parse = reader.parse_stream_chunk
            return [parse(piece) for piece in pieces]

        def said(deltas: list[Any]) -> Message:
            return thought(*("".join(delta[place] or "" for delta in deltas) for place in (0, 1)))

        return Stream(len(pieces), read, said)

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
        thinks = self._reader(thinker, opened)
        reader = self._parser([self._tool(**tool) for tool in tools], tool)
        if not streamed:
            reasoning, rest = thinks.parse_non_stream(text)
            content, calls = reader.parse_non_stream(rest or "")
            return together(reasoning, content, [(call.name or "", call.parameters) for call in calls])
        reasoning = ""
        deltas = []
        for piece in cut(text, markers):
            thought_of, rest = thinks.parse_stream_chunk(piece)
            reasoning += thought_of or ""
            if rest:
                deltas.append(reader.parse_stream_chunk(rest))
        return together(reasoning, "".join(said or "" for said, _ in deltas), self._calls(deltas))

    def _reader(self, parser: str, opened: str) -> Any:
        return self._thinker(parser, force_reasoning=True if opened else None)
