"""Give Plumbline's tool and reasoning parsers to vLLM's own server: a plug-in for both kinds of its parsers.

    vllm serve MODEL --enable-auto-tool-choice \\
        --tool-parser-plugin plumbline.vllm_parsers --tool-call-parser plumbline_hermes \\
        --reasoning-parser-plugin plumbline.vllm_parsers --reasoning-parser plumbline_qwen3

vLLM parses in two steps: the reasoning parser reads up to the end of the thinking, and the tool parser reads the rest.
Ours read both in one pass, because a call can end the thinking and thinking can come again after a call. So a tool
parser of ours knows the reasoning parser of its answer (`_newest`), and the two share one `SharedStream`: the reasoning
parser feeds it while there is only thinking, the tool parser feeds it from then on. Both are engine-based parsers in
vLLM's words, which is how vLLM tells them that the output has ended (`finish_streaming`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from plumbline.answer.dialects.model_dialect import AnswerFrame, ModelDialect, call_ids
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS
from plumbline.answer.dialects.spec.dialect import NewId
from plumbline.answer.events import OutputEvent, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart
from plumbline.vllm_parsers.reading import (
    REQUIRED_CALLS,
    OutputReader,
    SharedStream,
    dialect_of,
    joined,
    no_id,
)

try:
    from vllm.entrypoints.generate.base.protocol import (
        DeltaFunctionCall,
        DeltaMessage,
        DeltaToolCall,
        ExtractedToolCallInformation,
        FunctionCall,
        ToolCall,
    )
    from vllm.parser.utils import count_history_tool_calls
    from vllm.reasoning import ReasoningParser, ReasoningParserManager
    from vllm.tool_parsers import ToolParser, ToolParserManager
except ImportError as error:
    raise ImportError(
        f"plumbline.vllm_parsers is a plug-in for vLLM's server and needs vLLM 0.32 or later: {error}"
    ) from error

__all__ = ["PlumblineReasoningParser", "PlumblineToolParser"]

PREFIX: Final = "plumbline_"
_AUTO, _NONE, _REQUIRED, _NAMED = "auto", "none", "required", "named:"
_newest = threading.local()
"""`reasoning`: the reasoning parser that this thread has made last. vLLM makes the two parsers of an answer one right
after the other, and tells neither of the other."""


class PlumblineReasoningParser(ReasoningParser):  # type: ignore[misc]
    """Parse thinking with a reasoning dialect."""

    dialect_name: ClassVar[str]
    engine_based_streaming = True

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self.tool_parser: PlumblineToolParser | None = None
        self.frame: AnswerFrame | None = None
        self._dialect = dialect_of(tokenizer, "none", self.dialect_name)
        self._stream: SharedStream | None = None
        self._ended = False
        _newest.reasoning = self

    @property
    def dialect(self) -> ModelDialect:
        """The dialect of the answer, with its calls if the tool parser is one of ours."""
        return self._dialect if self.tool_parser is None else self.tool_parser.dialect

    @property
    def reasoning_start_str(self) -> str | None:
        """What thinking begins with."""
        markers = self._dialect.thinking_markers
        return None if markers is None else markers.open[0]

    @property
    def reasoning_end_str(self) -> str | None:
        """What thinking ends with."""
        markers = self._dialect.thinking_markers
        return None if markers is None else markers.close

    def adjust_request(self, request: Any) -> Any:
        """Ask for the markers, which can be special tokens."""
        request.skip_special_tokens = False
        return request

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether the prompt has ended the thinking. vLLM calls it before whole answers too: it shows the prompt."""
        frame = self.dialect.frame(input_ids)
        if self.frame is None:
            self.frame = frame
        return frame.thinking == "after"

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """Whether thinking ends within the last tokens: from there on vLLM's engine applies a grammar."""
        close, new = self.reasoning_end_str, list(delta_ids)
        if close is None or not new:
            return False
        before = self.model_tokenizer.decode(list(input_ids[-len(new) - len(close) : -len(new)]))
        text = before + self.model_tokenizer.decode(new)
        return bool(close in text[max(0, len(before) - len(close) + 1) :])

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """Return no ids: the tool parser reads text."""
        return []

    def adjust_initial_state_from_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        """Look at where the prompt leaves the thinking."""
        self.frame = self.dialect.frame(prompt_token_ids)

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Parse a whole output; the tool parser gets its calls from the same pass."""
        frame = self.frame or self._guessed(model_output)
        tool_parser = self.tool_parser
        auto = tool_parser is not None and _choice(request) == _AUTO
        tools = tool_parser.schemas() if tool_parser is not None and auto else {}
        events = OutputReader(self.dialect.parser(tools, frame, new_id=no_id)).whole(model_output)
        if tool_parser is not None:
            tool_parser.whole = [event for event in events if not isinstance(event, ReasoningDelta)]
        return joined(events, ReasoningDelta) or None, joined(events, TextDelta) or None

    def _guessed(self, text: str) -> AnswerFrame:
        """Return the frame of a whole answer of which vLLM does not show the prompt, as for choices after the first."""
        reasoning = self._dialect.choice.reasoning
        if reasoning is None or not reasoning.close:
            return AnswerFrame()
        before_close, close, _ = text.partition(reasoning.close[0])
        closes = bool(close) and not any(opening in before_close for opening in reasoning.open)
        return AnswerFrame(thinking="inside" if reasoning.starts_inside or closes else "before")

    def extract_reasoning_streaming(
        self, previous_text: str, current_text: str, delta_text: str, *ids: Sequence[int]
    ) -> Any:
        """Parse more of the thinking. What is no thinking any more waits for the tool parser, if it is one of ours."""
        if self._stream is None:
            tools = {} if self.tool_parser is None else self.tool_parser.schemas()
            self._stream = SharedStream(self.dialect, tools, self.frame or AnswerFrame())
        self._stream.push(delta_text)
        thoughts = self._stream.thoughts()
        if thoughts is not None:
            return DeltaMessage(reasoning=thoughts) if thoughts else None
        self._ended = True
        if self.tool_parser is not None:
            self.tool_parser.go_on(self._stream)
            return None
        return _delta(self._stream.calls.take())

    def has_engine_confirmed_reasoning_end(self) -> bool:
        """Whether something else than thinking has come."""
        return self._ended

    def finish_streaming(self) -> Any:
        """Return what is left of an answer that ends in its thinking, or at the end of the thinking."""
        if self._stream is None:
            return None
        if self.tool_parser is not None:
            if not self._ended:
                self.tool_parser.go_on(self._stream)
            return None
        self._stream.calls.finish()
        return _delta(self._stream.calls.take())


class PlumblineToolParser(ToolParser):  # type: ignore[misc]
    """Parse calls with a tool dialect.

    A required or named tool is constrained as by vLLM's own parsers, to an array of calls or to the arguments.
    `prev_tool_call_arr` stays empty, so that vLLM sends no arguments a second time.
    """

    dialect_name: ClassVar[str]
    engine_based_streaming = True
    supports_required_and_named = False
    """vLLM's own parsing of them needs the whole text, which it does not keep for engine-based parsers."""

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None) -> None:
        super().__init__(tokenizer, tools)
        reasoning = getattr(_newest, "reasoning", None)
        _newest.reasoning = None
        self._reasoning = reasoning if reasoning and reasoning.model_tokenizer is tokenizer else None
        thinks = "none" if self._reasoning is None else self._reasoning.dialect_name
        self.dialect = dialect_of(tokenizer, self.dialect_name, thinks)
        if self._reasoning is not None:
            self._reasoning.tool_parser = self
        self.whole: list[OutputEvent] | None = None
        """The text and calls of a whole output that the reasoning parser has read."""
        self._stream: SharedStream | None = None
        self._has_text = False
        self._request: Any = None
        self._required: OutputReader | None = None
        self._calls = 0

    def schemas(self) -> dict[str, Any]:
        """Return the parameters of the request's tools."""
        functions = [getattr(tool, "function", tool) for tool in self.tools]
        return {function.name: function.parameters or {} for function in functions}

    def adjust_request(self, request: Any) -> Any:
        """Ask for the markers, which can be special tokens, and constrain a required or named tool."""
        choice = _choice(request)
        if choice == _NONE:
            return request
        request.skip_special_tokens = False
        if choice != _AUTO:
            self.supports_required_and_named = True  # The base class constrains only then.
            try:
                return super().adjust_request(request)
            finally:
                del self.supports_required_and_named
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        """Parse a whole output, or what the reasoning parser has left of it."""
        events, self.whole = self.whole, None
        choice = _choice(request)
        if events is None:
            tools = self.schemas() if choice == _AUTO else {}
            events = OutputReader(self.dialect.parser(tools, AnswerFrame(), new_id=no_id)).whole(model_output)
        if choice not in (_AUTO, _NONE):
            self._calls, self._required = (
                0,
                None,
            )  # vLLM reads an answer of Responses again when it has streamed it.
            events = self._constrained(joined(events, TextDelta), choice, ends=True)
        delta = _delta(events, 0, self._ids(request)) or DeltaMessage()
        functions = [(part.id, part.function) for part in delta.tool_calls]
        return ExtractedToolCallInformation(
            tools_called=bool(functions),
            tool_calls=[
                ToolCall(
                    id=one, function=FunctionCall(id=one, name=function.name, arguments=function.arguments)
                )
                for one, function in functions
            ],
            content=delta.content,
        )

    def go_on(self, stream: SharedStream) -> None:
        """Go on with the stream of the reasoning parser, which has parsed the text of the next delta already."""
        self._stream, self._has_text = stream, True

    def extract_tool_calls_streaming(
        self, previous_text: str, current_text: str, delta_text: str, *ids_and_request: Any, **named: Any
    ) -> Any:
        """Parse more of the output."""
        request = named["request"] if named else ids_and_request[-1]
        self._request = request
        if self._stream is None:
            frame = None if self._reasoning is None else self._reasoning.frame
            self._stream = SharedStream(self.dialect, self.schemas(), frame or AnswerFrame())
        reader = self._stream.calls if _choice(request) == _AUTO else self._stream.text
        if not self._has_text:
            reader.push(delta_text)
        self._has_text = False
        return self._delta(reader.take(), ends=False)

    def finish_streaming(self) -> Any:
        """Return what is left of an answer at its end."""
        if self._stream is None:
            return None
        auto = self._request is None or _choice(self._request) == _AUTO
        reader = self._stream.calls if auto else self._stream.text
        reader.finish()
        return self._delta(reader.take(), ends=True)

    def _delta(self, events: list[OutputEvent], *, ends: bool) -> Any:
        """Return the delta of events; text where a tool is required or named becomes a call."""
        choice = _AUTO if self._request is None else _choice(self._request)
        if self._reasoning is None:
            events = [event for event in events if not isinstance(event, ReasoningDelta)]
        if choice in (_AUTO, _NONE):
            return self._numbered(events)
        thoughts = [event for event in events if isinstance(event, ReasoningDelta)]
        calls = self._constrained(joined(events, TextDelta), choice, ends=ends)
        return self._numbered([*thoughts, *calls])

    def _numbered(self, events: list[OutputEvent]) -> Any:
        first = self._calls
        self._calls += sum(isinstance(event, ToolCallStart) for event in events)
        return _delta(events, first, self._ids(self._request))

    def _constrained(self, text: str, choice: str, *, ends: bool) -> list[OutputEvent]:
        """Return the calls in more of the text that vLLM has constrained to a required or named tool."""
        if choice == _REQUIRED:
            if self._required is None:
                self._required = OutputReader(
                    REQUIRED_CALLS.parser(self.schemas(), AnswerFrame(), new_id=no_id)
                )
            self._required.push(text)
            if ends:
                self._required.finish()
            return self._required.take()
        begins = not self._calls and text.strip()
        begin: list[OutputEvent] = [ToolCallStart(choice.removeprefix(_NAMED), "")] if begins else []
        return [*begin, ToolCallDelta(text)] if begin or self._calls else []

    def _ids(self, request: Any) -> NewId:
        """Return what makes ids in the style of the family. Kimi's count the calls of the conversation."""
        tool = self.dialect.choice.tool
        style = "call" if tool is None else tool.ids
        earlier = count_history_tool_calls(request) if style == "kimi" and request is not None else 0
        return call_ids(style, earlier)


def _delta(events: Iterable[OutputEvent], first: int = 0, new_id: NewId = no_id) -> Any:
    """Return events as vLLM's delta; None if there is nothing to send.

    Args:
        events: the events.
        first: how many calls the deltas before have begun.
        new_id: makes the ids of calls that the model gave none.
    """
    delta = DeltaMessage()
    number = first - 1
    for event in events:
        match event:
            case ReasoningDelta(text=text) if text:
                delta.reasoning = (delta.reasoning or "") + text
            case TextDelta(text=text) if text:
                delta.content = (delta.content or "") + text
            case ToolCallStart(name=name, id=call_id):
                number += 1
                function = DeltaFunctionCall(name=name, arguments="")
                call_id = call_id or new_id(name, number)
                delta.tool_calls.append(
                    DeltaToolCall(index=number, id=call_id, type="function", function=function)
                )
            case ToolCallDelta(arguments=text):
                if not delta.tool_calls or delta.tool_calls[-1].index != number:
                    function = DeltaFunctionCall(arguments="")
                    delta.tool_calls.append(DeltaToolCall(index=number, function=function))
                delta.tool_calls[-1].function.arguments += text
    return delta if delta.reasoning or delta.content or delta.tool_calls else None


def _choice(request: Any) -> str:
    """Return the request's tool choice: `auto`, `none`, `required`, or `_NAMED` and the name of a tool."""
    choice = request.tool_choice
    if not request.tools or choice == _NONE:
        return _NONE
    if choice == _REQUIRED:
        return _REQUIRED
    name = getattr(getattr(choice, "function", choice), "name", None)
    return _AUTO if name is None else _NAMED + name


def _register() -> None:
    for name in TOOL_DIALECTS:
        kind = type(f"Plumbline_{name}_ToolParser", (PlumblineToolParser,), {"dialect_name": name})
        ToolParserManager.register_module(PREFIX + name, module=kind)
    for name in REASONING_DIALECTS:
        kind = type(f"Plumbline_{name}_ReasoningParser", (PlumblineReasoningParser,), {"dialect_name": name})
        ReasoningParserManager.register_module(PREFIX + name, module=kind)


_register()
