"""Answer questions of `plumbline vectors` with our own parsers, templates, judge and grammars.

plumbline vectors --run "python conformance/own_server/runner.py"
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec

from plumbline import __version__
from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.model_dialect import AnswerFrame, ModelDialect
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.events import OutputEvent, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart
from plumbline.answer.structured_output.grammar.builder import GrammarBuilder
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.engines.constraints.grammar import GrammarError, LarkCompiler, Matcher
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.engines import vocabulary
from plumbline_conformance.checks.responses.websocket.connection import TURNS, error_event
from plumbline_conformance.client.websocket import ENDS
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.transcript.exchange import CLOSED, Exchange, Transcript
from plumbline_conformance.transcript.sse import load_json
from plumbline_conformance.watch.live import judge_live

__all__ = ["answer"]

_PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
_ENDS = frozenset({1015, 1017})
_VOCABULARY = 1024
"""Tokens of the pocket model, of which these two end an answer."""
_ACCUSING = ("fail", "warn", "untestable")


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a question of any suite."""
    return _SUITES[question["suite"]](question)


def _parsed(question: Mapping[str, Any]) -> dict[str, Any]:
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in question["tools"]}
    frame = AnswerFrame(thinking="inside" if question["opened"] else "before")
    dialect = _dialect(*(question["dialect"].get(kind, {}).get("name") for kind in ("tool", "reasoning")))
    parser = dialect.parser(tools, frame, new_id=lambda name, number: f"{name}-{number}")
    events: list[OutputEvent] = []
    for piece in question["pieces"]:
        events += parser.push(TextDelta(piece))
    events += parser.finish("length" if question["finish"] == "length" else "stop")
    return {"message": _message(events)}


@cache
def _dialect(tool: str | None, reasoning: str | None) -> ModelDialect:
    calls = None if tool is None else TOOL_DIALECTS[tool]
    return build_dialect(DialectChoice(calls, None if reasoning is None else REASONING_DIALECTS[reasoning]))


def _message(events: list[OutputEvent]) -> dict[str, Any]:
    message: dict[str, Any] = {"reasoning": "", "content": "", "calls": []}
    for event in events:
        match event:
            case ReasoningDelta(text=text):
                message["reasoning"] += text
            case TextDelta(text=text):
                message["content"] += text
            case ToolCallStart(name=name):
                message["calls"].append({"name": name, "arguments": ""})
            case ToolCallDelta(arguments=text):
                message["calls"][-1]["arguments"] += text
    return message


def _rendered(question: Mapping[str, Any]) -> dict[str, Any]:
    variables = dict(question["variables"])
    opens = variables.pop("add_generation_prompt")
    template = ChatTemplate(question["template"], **variables)
    prompt = template.render(question["messages"], tools=question.get("tools"), add_generation_prompt=opens)
    return {"prompt": prompt}


def _judged(question: Mapping[str, Any]) -> dict[str, Any]:
    if question["api"] == "websocket":
        return _judged_turn(question)
    exchange = Exchange(
        method="POST",
        url=f"http://127.0.0.1{_PATHS[question['api']]}",
        request_headers={"content-type": "application/json"},
        request_body=json.dumps(question["request"]).encode(),
        status=200,
        headers=[("content-type", "text/event-stream"), ("x-request-id", "req_1"), ("request-id", "req_1")],
        frames=[(0.0, f"{event}\n\n".encode()) for event in question["stream"].split("\n\n")[:-1]],
    )
    findings = [finding for finding in judge_live(exchange) if finding.verdict in _ACCUSING]
    if findings:
        return {"broken": sorted({rule for finding in findings for rule in finding.broken})}
    return {"broken": [], "folded": _FOLDS[question["api"]](exchange.chunks)}


def _judged_turn(question: Mapping[str, Any]) -> dict[str, Any]:
    """Judge a turn as both turns of the scenario `websocket/turn`, by the checks that look at one turn."""
    messages, binary, framed = _unframed(question["frames"])
    exchange = Exchange(
        method="WEBSOCKET",
        url=f"ws://127.0.0.1{_PATHS['responses']}",
        request_headers={},
        request_body=json.dumps(question["request"]).encode(),
        status=101,
        frames=[(0.0, message) for message in messages],
        error=None if framed and _has_ended(messages) else f"{CLOSED}, with code {1005 if framed else 1002}",
        binary=binary or msgspec.UNSET,
    )
    events = exchange.chunks
    if [event.get("type") for event in events if isinstance(event, dict)] == ["error"]:
        if list(error_event(events[0])):
            return {"broken": ["WS-07"]}
        return {"broken": [], "folded": {"content": "", "error": events[0]["error"]["code"]}}
    turns = [msgspec.structs.replace(exchange, name=name) for name in TURNS]
    findings = judge(Transcript(scenario="websocket/turn", exchanges=turns))
    broken = {
        rule
        for finding in findings
        if finding.verdict in _ACCUSING
        and finding.check != "websocket/turn/ended"  # It is the same turn twice.
        for rule in finding.broken
    }
    return {"broken": sorted(broken)} if broken else {"broken": [], "folded": _folded_response(events)}


def _unframed(frames: list[dict[str, Any]]) -> tuple[list[bytes], bool, bool]:
    """Return the messages of frames, whether one is binary, and whether the frames are as in RFC 6455, section 5.4."""
    messages: list[bytes] = []
    unfinished: bytes | None = None
    binary = False
    for frame in frames:
        if frame["opcode"] not in ("text", "binary", "continuation"):
            continue  # Control frames may come between those of a message.
        if (frame["opcode"] == "continuation") != (unfinished is not None):
            return messages, binary, False
        binary |= frame["opcode"] == "binary"
        payload = bytes.fromhex(frame["hex"]) if "hex" in frame else frame["text"].encode()
        unfinished = (unfinished or b"") + payload
        if frame["fin"]:
            messages.append(unfinished)
            unfinished = None
    return messages, binary, unfinished is None


def _has_ended(messages: list[bytes]) -> bool:
    last = load_json(messages[-1]) if messages else None
    return isinstance(last, dict) and last.get("type") in ENDS


def _folded_chat(chunks: list[Any]) -> dict[str, Any]:
    folded: dict[str, Any] = {"content": "", "calls": [], "finish_reason": None, "usage": None}
    for chunk in chunks:
        folded["usage"] = chunk.get("usage") or folded["usage"]
        for choice in chunk["choices"]:
            folded["content"] += choice["delta"].get("content") or ""
            folded["finish_reason"] = choice["finish_reason"] or folded["finish_reason"]
            for call in choice["delta"].get("tool_calls", ()):
                if "id" in call:
                    found = {"id": call["id"], "name": call["function"]["name"], "arguments": ""}
                    folded["calls"].append(found)
                folded["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return folded


def _folded_completion(chunks: list[Any]) -> dict[str, Any]:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    return {"content": "".join(choice["text"] for choice in choices), "finish_reason": reasons[-1]}


def _folded_response(events: list[Any]) -> dict[str, Any]:
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    return {"content": "".join(deltas), "status": events[-1]["response"]["status"]}


def _folded_message(events: list[Any]) -> dict[str, Any]:
    folded: dict[str, Any] = {"content": "", "calls": [], "stop_reason": None, "usage": None}
    for event in events:
        match event:
            case {
                "type": "content_block_start",
                "content_block": {"type": "tool_use", "id": name, "name": tool},
            }:
                folded["calls"].append({"id": name, "name": tool, "input": ""})
            case {"type": "content_block_delta", "delta": {"text": text}}:
                folded["content"] += text
            case {"type": "content_block_delta", "delta": {"partial_json": text}}:
                folded["calls"][-1]["input"] += text
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                folded |= {"stop_reason": delta["stop_reason"], "usage": usage}
    for call in folded["calls"]:
        call["input"] = json.loads(call["input"])
    return folded


_FOLDS: dict[str, Callable[[list[Any]], dict[str, Any]]] = {
    "chat": _folded_chat,
    "completions": _folded_completion,
    "responses": _folded_response,
    "messages": _folded_message,
}


def _allowed(question: Mapping[str, Any]) -> dict[str, Any]:
    grammar = _grammar(json.dumps(question["schema"]))
    if grammar is None:
        return {"skipped": "the schema is refused"}
    matcher = _matcher(grammar)
    tokens = _tokenizer().encode_generated(question["text"])
    allowed = all(matcher.accept(token) for token in tokens)
    return {"allowed": allowed and (matcher.is_done or matcher.accept(min(_ENDS)))}


@cache
def _tokenizer() -> TextTokenizer:
    return TextTokenizer.from_folder(MODEL_DIR)


@cache
def _compiler() -> LarkCompiler:
    return LarkCompiler(vocabulary(_tokenizer(), _ENDS, _VOCABULARY), capacity=4)


def _matcher(grammar: str) -> Matcher:
    return _loop().run_until_complete(_compiler().compile(grammar))


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of the compiler, whose processes end with it."""
    return asyncio.new_event_loop()


@cache
def _grammar(schema: str) -> str | None:
    builder = GrammarBuilder(_tokenizer().added, _tokenizer().special_ids)
    try:
        grammar = builder.build(builder.json(json.loads(schema)))
        _matcher(grammar)
    except (ConstraintError, GrammarError):
        return None
    return grammar


_SUITES: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "parsers": _parsed,
    "dialogues": _rendered,
    "streams": _judged,
    "structured": _allowed,
}


def main() -> int:
    """Answer until the input ends."""
    for line in sys.stdin:
        question = json.loads(line)
        found = {"name": "Plumbline", "version": __version__} if "hello" in question else answer(question)
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
