"""Judge requests in which every pair of options occurs, by every law that applies to them.

Each other scenario looks at one feature. A server may leave the logprobs out of streams with several choices, or count
the usage twice beside tools: only requests that combine options show it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Literal

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import accepted
from plumbline_conformance.checks.messages.texts import message
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.checks.selected_laws import laws_of
from plumbline_conformance.suite.covering_array import Row, covering_array
from plumbline_conformance.suite.scenario import (
    CHECKS,
    Broken,
    Check,
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    Untestable,
    about,
    breaking,
    check,
    scenario,
)
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Fields = dict[str, Any]
Options = Mapping[str, Mapping[str, Fields]]
"""By option, the fields of each of its values; the plainest value comes first."""
Steps = Generator[Request, Exchange, None]
Part = Literal["laws", "content"]

QUESTION = "Use get_weather with city Zürich, and say in a few words: 天気 🌦?"
SYSTEM = "You answer in a few words."
PARTS = [{"type": "text", "text": "Use get_weather with city Zürich,"}, {"type": "text", "text": "in 世界?"}]
DOCUMENT: Fields = {
    "type": "object",
    "properties": {"city": {"enum": ["Zürich", "Paris"]}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}
STOPS = ["\u2603", "\n\n\n", "e 🌊"]
"""Of one character, of white space, and beyond ASCII; few answers contain one."""


def _turns() -> list[Fields]:
    """Return a conversation with two calls and their results, the second result first."""
    calls = [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
        }
        for n in (1, 2)
    ]
    results = [{"role": "tool", "tool_call_id": f"call_{n}", "content": f"{n}0 °C"} for n in (2, 1)]
    return [
        *user("Paris?"),
        {"role": "assistant", "content": None, "tool_calls": calls},
        *results,
        *user(QUESTION),
    ]


def _format(kind: str, **named: Any) -> Fields:
    return {"type": kind, **named}


CHAT: Options = {
    "mode": {
        "whole": {},
        "stream": {"stream": True},
        "usage": {"stream": True, "stream_options": {"include_usage": True}},
    },
    "choices": {"one": {}, "two": {"n": 2}},
    "logprobs": {"none": {}, "chosen": {"logprobs": True}, "top": {"logprobs": True, "top_logprobs": 2}},
    "stop": {"none": {}, "one": {"stop": "\u2603"}, "several": {"stop": STOPS}},
    "tools": {
        "none": {},
        "auto": {"tools": [tools.weather]},
        "forbidden": {"tools": [tools.weather], "tool_choice": "none"},
        "required": {"tools": [tools.weather], "tool_choice": "required"},
        "single": {"tools": [tools.weather], "parallel_tool_calls": False},
    },
    "format": {
        "text": {},
        "object": {"response_format": {"type": "json_object"}},
        "schema": {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "place", "strict": True, "schema": DOCUMENT},
            }
        },
    },
    "limit": {"short": {"max_tokens": 3}, "long": {"max_tokens": 48}},
    "messages": {
        "text": {"messages": user(QUESTION)},
        "parts": {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PARTS}]},
        "system": {"messages": [{"role": "developer", "content": SYSTEM}, *user(QUESTION)]},
        "results": {"messages": _turns()},
    },
    "sampling": {
        "greedy": {"temperature": 0, "seed": 1},
        "drawn": {"temperature": 1, "top_p": 0.9, "seed": 7, "frequency_penalty": 0.1},
    },
}
COMPLETIONS: Options = {
    "mode": CHAT["mode"],
    "choices": {"one": {}, "two": {"n": 2}, "best": {"n": 1, "best_of": 2}},
    "logprobs": {"none": {}, "chosen": {"logprobs": 0}, "top": {"logprobs": 2}},
    "stop": CHAT["stop"],
    "echo": {"no": {}, "yes": {"echo": True}},
    "limit": {"short": {"max_tokens": 1}, "long": {"max_tokens": 12}},
    "prompt": {
        "text": {"prompt": "In Zürich 世界"},
        "several": {"prompt": ["In Zürich 世界", "One 🌊"]},
        "ids": {"prompt": [5, 6, 7]},
    },
    "sampling": CHAT["sampling"],
}
RESPONSES: Options = {
    "mode": {"whole": {}, "stream": {"stream": True}},
    "logprobs": {"none": {}, "top": {"include": ["message.output_text.logprobs"], "top_logprobs": 2}},
    "tools": {
        name: {**fields, **({"tools": [tools.flat(tools.weather)]} if "tools" in fields else {})}
        for name, fields in CHAT["tools"].items()
    },
    "format": {
        "text": {},
        "object": {"text": {"format": {"type": "json_object"}}},
        "schema": {
            "text": {"format": {"type": "json_schema", "name": "place", "strict": True, "schema": DOCUMENT}}
        },
    },
    "limit": {"short": {"max_output_tokens": 16}, "long": {"max_output_tokens": 48}},
    "input": {
        "text": {"input": QUESTION},
        "parts": {
            "input": [
                {"role": "developer", "content": SYSTEM},
                {"role": "user", "content": [{"type": "input_text", "text": one["text"]} for one in PARTS]},
            ]
        },
    },
    "instructions": {"none": {}, "given": {"instructions": SYSTEM, "metadata": {"pair": "1"}}},
    "sampling": {"greedy": {"temperature": 0}, "drawn": {"temperature": 1, "top_p": 0.9}},
}
MESSAGES: Options = {
    "mode": {"whole": {}, "stream": {"stream": True}},
    "system": {
        "none": {},
        "text": {"system": SYSTEM},
        "blocks": {"system": [{"type": "text", "text": SYSTEM}, {"type": "text", "text": "世界."}]},
    },
    "tools": {
        name: {"tools": [tools_of_messages], **({"tool_choice": choice} if choice else {})}
        if name != "none"
        else {}
        for tools_of_messages in (
            {
                "name": "get_weather",
                "input_schema": tools.weather["function"]["parameters"],
            },
        )
        for name, choice in (
            ("none", None),
            ("auto", None),
            ("forbidden", {"type": "none"}),
            ("any", {"type": "any"}),
            ("single", {"type": "auto", "disable_parallel_tool_use": True}),
        )
    },
    "stop": {"none": {}, "several": {"stop_sequences": STOPS}},
    "limit": {"short": {"max_tokens": 3}, "long": {"max_tokens": 48}},
    "messages": {
        "text": {"messages": user(QUESTION)},
        "blocks": {"messages": [{"role": "user", "content": PARTS}]},
    },
    "sampling": {"greedy": {"temperature": 0}, "drawn": {"temperature": 1, "top_p": 0.9}},
}


def _forces_once(row: Row) -> bool:
    """Return whether a request forces one form of the answer: servers may refuse a call that is also a document."""
    forced = row.get("tools") in ("required", "any")
    return not (forced and row.get("format", "text") != "text") and not (
        row.get("choices") == "best" and row.get("mode", "whole") != "whole"
    )


def pairs(
    api: str, path: str, base: Callable[[Target], Fields], options: Options, needs: tuple[str, ...] = ()
) -> None:
    """Register the scenario `API/pairs` and its checks.

    Args:
        api: the first part of the id.
        path: the path of the requests.
        base: returns the request without options.
        options: what is combined.
        needs: required capabilities.
    """
    slug = f"{api}/pairs"

    def steps(target: Target) -> Steps:
        for number, row in enumerate(
            covering_array({key: list(of) for key, of in options.items()}, _forces_once)
        ):
            fields: Fields = {}
            for option, value in row.items():
                fields |= options[option][value]
            yield Request(name=f"pair/{number}", path=path, json={**base(target), **fields})

    scenario(slug, "Requests in which every pair of options occurs", needs=needs)(steps)
    laws = [found for found in CHECKS.values() if found.law is not None and found.id.startswith(f"{api}/")]
    for part, title in TITLES.items():
        found = [one for one in laws if part_of(one) == part]
        if found:
            # The first rule makes the check a MUST or a SHOULD, and sampled or not.
            rules = dict.fromkeys(rule for one in found for rule in one.rules)
            check(f"{slug}/{part}", title, *rules)(_judged_by(part))


TITLES: Mapping[Part, str] = {
    "laws": "Keep the form of an answer with every pair of options",
    "content": "Keep what is asked for with every pair of options",
}


def part_of(found: Check) -> Part | None:
    """Return which check applies a law, by whether it is about what a model writes; None for a SHOULD."""
    if found.level != "MUST":
        return None
    return "content" if found.sampled else "laws"


def _judged_by(part: Part) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        """Apply the laws to every answer that was accepted; a server may refuse a combination."""
        refused: list[Exception] = []
        for exchange in seen.exchanges:
            try:
                accepted(exchange)
            except (Inconclusive, Rejected) as reason:
                refused.append(reason)
                continue
            for found, law in laws_of(exchange):
                if part_of(found) == part:
                    yield from about(exchange, _problems(found, law, exchange))
        if len(refused) == len(seen.exchanges):
            raise refused[0] if refused else Inconclusive("no request was sent")

    return judge


def _problems(
    found: Check, law: Callable[[Exchange], Iterator[Problem]], exchange: Exchange
) -> Iterator[Problem]:
    try:
        for problem in law(exchange):
            yield from breaking(problem.rule or found.rules[0], [problem])
    except Broken as failure:
        yield from breaking(found.rules[0], [failure.problem])
    except (Inconclusive, Rejected, Untestable):
        return
    except (LookupError, TypeError, AttributeError):
        return  # The schema is broken, which another law reports.


def _chat(target: Target) -> Fields:
    return chat(target)


def _completion(target: Target) -> Fields:
    return {"model": target.model}


def _response(target: Target) -> Fields:
    return create_response(target, "Hi")


def _message(target: Target) -> Fields:
    return message(target)


pairs("chat", "/chat/completions", _chat, CHAT, needs=("tools",))
pairs("completions", "/completions", _completion, COMPLETIONS, needs=("completions",))
pairs("responses", "/responses", _response, RESPONSES, needs=("responses", "tools"))
pairs("messages", "/messages", _message, MESSAGES, needs=("messages",))
