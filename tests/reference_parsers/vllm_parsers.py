"""Compare our parsers inside vLLM's serving layer with our parsers alone, on all vectors and however outputs are cut.

    python tests/reference_parsers/vllm_parsers.py [N]       every N-th vector

Each output is read whole, token by token and in drawn cuts. Our adapter must give the message of our own parser each
time. vLLM's own parsers read the same outputs whole and token by token: how many of their answers differ is printed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "conformance/vectors"
sys.path[:0] = [str(ROOT / "conformance/reference_parsers"), str(ROOT / "src")]

import runner  # noqa: E402
from interface import Tokenizer  # noqa: E402
from peer_vllm import Vllm  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.parser import ParserManager  # noqa: E402

from plumbline.answer.dialects.build import build_dialect  # noqa: E402
from plumbline.answer.dialects.model_dialect import AnswerFrame  # noqa: E402
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice  # noqa: E402
from plumbline.answer.events import (  # noqa: E402
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)

DRAWN = 2
"""Drawn cuts of each output."""
SHOWN = 20
_ANY_TOOL = "hermes"
"""For outputs without calls: our reasoning parsers are used with a tool parser of ours."""
_PROMPT = [ord(">")]
"""Stands for the prompt before the marker of thinking that it may end with: vLLM looks at no empty prompt."""


class Message(NamedTuple):
    """What a client gets."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]


class Vector(NamedTuple):
    """An output and how to read it."""

    name: str
    case: dict[str, Any]
    dialect: dict[str, Any]
    tools: list[dict[str, Any]]

    @property
    def text(self) -> str:
        """The whole output."""
        return "".join(self.case["pieces"])

    def names(self, kind: str) -> list[str]:
        """Return the names of its tool or reasoning dialect."""
        found = self.dialect.get(kind)
        return [] if found is None else [found["name"], *found["aliases"]]


def vectors() -> Iterator[Vector]:
    """Yield all vectors of parsers."""
    sets = json.loads((VECTORS / "tools.json").read_text("utf-8"))
    sets = sets.get("sets", sets)
    for path in sorted((VECTORS / "parsers").glob("*.json")):
        file = json.loads(path.read_text("utf-8"))
        for case in file["cases"]:
            chosen = sets[case["tools"]] if "tools" in case else {}
            functions = [{"name": name, "parameters": schema} for name, schema in chosen.items()]
            tools = [{"type": "function", "function": function} for function in functions]
            yield Vector(f"{path.stem}/{case['id']}", case, file["dialect"], tools)


def ours(vector: Vector) -> Message:
    """Read an output with our parser alone, as cut: vLLM does not tell its parsers what has ended an output."""
    tool, reasoning = (next(iter(vector.names(kind)), None) for kind in ("tool", "reasoning"))
    dialect = build_dialect(
        DialectChoice(
            None if tool is None else TOOL_DIALECTS[tool],
            None if reasoning is None else REASONING_DIALECTS[reasoning],
        )
    )
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in vector.tools}
    frame = AnswerFrame(thinking="inside" if vector.case.get("opened") else "before")
    parser = dialect.parser(schemas, frame)
    calls: list[list[str]] = []
    texts = {ReasoningDelta: "", TextDelta: ""}
    for event in [*parser.push(TextDelta(vector.text)), *parser.finish("length")]:
        if isinstance(event, ReasoningDelta | TextDelta):
            texts[type(event)] += event.text
        elif isinstance(event, ToolCallStart):
            calls.append([event.name, ""])
        elif isinstance(event, ToolCallDelta):
            calls[-1][1] += event.arguments
    return _message(texts[ReasoningDelta], texts[TextDelta], calls)


def through_vllm(
    vector: Vector, tokenizer: Tokenizer, names: tuple[str | None, str | None], cut: Sequence[int]
) -> Message:
    """Read an output as vLLM's server does, with these parsers of tools and reasoning.

    Args:
        vector: the output.
        tokenizer: its tokens.
        names: of the tool parser and the reasoning parser.
        cut: how many tokens each delta has, again and again; empty for the whole output.
    """
    switch = "off" if vector.case.get("thinking") is False else "on"
    variables = vector.dialect.get("reasoning", {}).get("variables", {}).get(switch, {})
    asked: dict[str, Any] = {"tools": vector.tools} if vector.tools else {}
    if "tool_choice" in vector.case:
        asked["tool_choice"] = vector.case["tool_choice"]
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "hi"}], **asked)
    kind = ParserManager.get_parser(*names, enable_auto_tools=True)
    request = kind(tokenizer, request.tools, chat_template_kwargs=variables).adjust_request(request)
    assert not vector.tools or not request.skip_special_tokens, "markers must arrive"
    parser = kind(tokenizer, request.tools, chat_template_kwargs=variables)
    prompt = _PROMPT + tokenizer.encode(vector.case.get("opened", ""))
    ids = tokenizer.encode(vector.text)
    if not cut:
        request.resolve_reasoning_ended(parser, prompt)
        parser.set_prompt_token_ids(prompt)
        reasoning, content, found = parser.parse(
            vector.text, request, enable_auto_tools=True, model_output_token_ids=ids
        )
        return _message(reasoning, content, [[call.name, call.arguments] for call in found or ()])
    texts = {"reasoning": "", "content": ""}
    calls: dict[int, list[str]] = {}
    for delta in _deltas(parser, request, tokenizer, prompt, ids, cut):
        for key in texts:
            texts[key] += getattr(delta, key) or ""
        for call in delta.tool_calls:
            one = calls.setdefault(call.index, ["", ""])
            if call.function is not None:
                one[0] += call.function.name or ""
                one[1] += call.function.arguments or ""
    return _message(texts["reasoning"], texts["content"], list(calls.values()))


def _deltas(
    parser: Any, request: Any, tokenizer: Tokenizer, prompt: list[int], ids: list[int], cut: Sequence[int]
) -> Iterator[Any]:
    start, number = 0, 0
    while start < len(ids) or not number:
        end = start + cut[number % len(cut)]
        some = ids[start:end]
        text = tokenizer.decode(some)
        delta = parser.parse_delta(text, some, request, prompt, finished=end >= len(ids))
        if delta is not None:
            yield delta
        start, number = end, number + 1


def _message(reasoning: str | None, content: str | None, calls: Sequence[Sequence[str]]) -> Message:
    """Return a message; vLLM drops a content of white space beside calls, so that it is dropped for all."""
    text = content or ""
    return Message(
        reasoning or "",
        text if text.strip() or not calls else "",
        tuple((name, arguments) for name, arguments in calls),
    )


def main(every: int = 1) -> int:
    """Compare every vector, or every n-th; returns 1 if the adapter gives another message than our parser."""
    logging.disable(logging.CRITICAL)
    import plumbline.vllm_parsers  # noqa: F401

    peer = Vllm()
    draw = random.Random(0)
    readings = read = depend_ours = depend_theirs = 0
    wrong = constrained()
    for vector in islice(vectors(), 0, None, every):
        cuts = [(), (1,), *([draw.randint(1, 5) for _ in range(4)] for _ in range(DRAWN))]
        tool, reasoning = (next(iter(vector.names(kind)), None) for kind in ("tool", "reasoning"))
        own = (f"plumbline_{tool or _ANY_TOOL}", reasoning and f"plumbline_{reasoning}")
        expected = ours(vector)
        tokenizer = Tokenizer(vector.dialect["markers"], pieces=vector.case["pieces"])
        answers = [through_vllm(vector, tokenizer, own, cut) for cut in cuts]
        readings += len(answers)
        depend_ours += len(set(answers)) > 1
        for cut, answer in zip(cuts, answers, strict=True):
            if answer != expected:
                wrong.append(
                    f"{vector.name} cut {cut or 'whole'}: {vector.text!r}\n  ours    {expected}\n  adapter {answer}"
                )
        with contextlib.suppress(
            Exception
        ):  # vLLM has no parser of the family, or it needs the family's tokenizer.
            depend_theirs += (
                len({runner.read(peer, _question(vector, streamed)) for streamed in (False, True)}) > 1
            )
            read += 1
    for line in wrong[:SHOWN]:
        print(line)
    print(
        f"adapter: {len(wrong)} of {readings} readings differ from our parser; {depend_ours} answers depend on the cut"
    )
    print(f"vLLM's own parsers: {depend_theirs} of {read} answers depend on the cut")
    return 1 if wrong else 0


def constrained() -> list[str]:
    """Return what is wrong with answers where calls are forced or forbidden: vLLM constrains them to JSON."""
    function = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    markup = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    add = ("add", '{"a": 1}')
    answers: list[tuple[Any, str, Message]] = [
        ("required", '[{"name": "add", "parameters": {"a": 1}}]', Message("So.", "", (add,))),
        ({"type": "function", "function": {"name": "add"}}, '{"a": 1}', Message("So.", "", (add,))),
        ("none", markup, Message("So.", markup, ())),
        ("auto", markup, Message("So.", "", (add,))),
    ]
    wrong = []
    for choice, text, expected in answers:
        markers = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
        case = {"pieces": [f"So.\n</think>\n\n{text}"], "opened": "<think>", "tool_choice": choice}
        vector = Vector("", case, {"markers": markers}, [{"type": "function", "function": function}])
        for cut in ((), (1,), (3,), (1000,)):
            names = ("plumbline_hermes", "plumbline_qwen3")
            answer = through_vllm(vector, Tokenizer(markers), names, cut)
            if answer != expected:
                wrong.append(f"tool_choice {choice} cut {cut or 'whole'}: {answer}")
    return wrong


def _question(vector: Vector, streamed: bool) -> dict[str, Any]:
    """Return the question of `plumbline vectors` that asks for this answer."""
    case = {"thinking": True, "opened": "", **vector.case}
    return {**case, "dialect": vector.dialect, "tools": vector.tools, "streamed": streamed}


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
