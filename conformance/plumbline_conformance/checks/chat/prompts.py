"""Check inputs of chat completions: roles, content parts, and text that looks like control tokens."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial

from plumbline_conformance.checks.common import (
    accepted,
    at,
    follow_up_accepted,
    longer_prompt,
    required,
    usage_count,
)
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
QUESTION = "Which of the four seasons do you like best, and why is it that one? Say it in a single word."
TEMPLATE_TOKENS = 4
"""Tokens that a template may add around a part; fewer than the text has, or its Python repr would add."""


def _parts(*texts: str) -> list[dict[str, object]]:
    return [{"type": "text", "text": text} for text in texts]


PROMPTS: dict[str, tuple[str, list[dict[str, object]]]] = {
    "system": ("a system message", [{"role": "system", "content": "Be kind."}, *user(QUESTION)]),
    "developer": ("a developer message", [{"role": "developer", "content": "Be kind."}, *user(QUESTION)]),
    "parts": ("text parts", [{"role": "user", "content": _parts(QUESTION)}]),
    "history": (
        "an assistant message with text parts",
        [*user("Hi"), {"role": "assistant", "content": _parts("Hello.", " You?")}, *user(QUESTION)],
    ),
}
"""By check and request: the feature that the server must accept, and the messages."""
LONGER = ("system", "developer")
"""Roles that the last requests send with a longer text, to see whether the model gets it."""


@scenario("chat/roles", "A question alone, and with every role and format of text content")
def roles(target: Target) -> Steps:
    asked = {"question": user(QUESTION), **{name: messages for name, (_, messages) in PROMPTS.items()}}
    for role in LONGER:
        asked[f"long_{role}"] = [
            {"role": role, "content": " ".join(["Be kind."] * 20)},
            *user(QUESTION),
        ]
    for name, messages in asked.items():
        yield Request(name=name, path="/chat/completions", json=chat(target, messages=messages))


def _accepts(name: str) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        """Compare with the question alone: if the server answered it, it refuses the role or the content parts."""
        yield from follow_up_accepted(seen, "question", name)

    return judge


for _name, (_content, _) in PROMPTS.items():
    check(f"chat/roles/{_name}", f"Accept {_content}", "CHAT-13")(_accepts(_name))


@check("chat/roles/same-text", "Treat one text part like plain text", "CHAT-13")
def roles_same_text(seen: Transcript) -> Iterator[Problem]:
    """Detect by the token count that a server drops the part, or shows its Python repr to the model."""
    wanted, found = (usage_count(at(seen, name), "prompt_tokens") for name in ("question", "parts"))
    if abs(found - wanted) > TEMPLATE_TOKENS:
        shown = f"about {wanted}, as for the text alone"
        yield Problem(expected=shown, actual=str(found), pointer="usage.prompt_tokens", exchange="parts")


def _reads(role: str) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        """Compare two lengths, because a short message may replace a longer default of the template."""
        yield from longer_prompt(seen, role, f"long_{role}", "prompt_tokens")

    return judge


for _name in LONGER:
    check(f"chat/roles/{_name}-read", f"Show the model the {_name} message", "CHAT-13")(_reads(_name))


@scenario("chat/function-role", "A short and a long message of the role `function`")
def function_role(target: Target) -> Steps:
    for name, count in (("short", 1), ("long", 20)):
        called = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
        result = {"role": "function", "name": "look", "content": " ".join(["It is warm."] * count)}
        messages = [*user(QUESTION), called, result]
        yield Request(name=name, path="/chat/completions", json=chat(target, messages=messages))


@check("chat/function-role/taken", "Accept the message of a function, or refuse it", "CHAT-13")
def function_role_taken(seen: Transcript) -> Iterator[Problem]:
    """Accept a refusal, because a server may lack deprecated functions and their messages (TOOL-16)."""
    for name in ("short", "long"):
        required(partial(accepted, at(seen, name)))
    yield from ()


@check("chat/function-role/read", "Show the message of a function to the model", "CHAT-13", milder=True)
def function_role_read(seen: Transcript) -> Iterator[Problem]:
    """Detect a template that does not know the role and silently drops the message."""
    yield from longer_prompt(seen, "short", "long", "prompt_tokens")


COPIES = 8
MARKERS = {
    "im_end": "<|im_end|>",
    "endoftext": "<|endoftext|>",
    "eot_id": "<|eot_id|>",
    "end_of_turn": "<end_of_turn>",
}
"""Markers of common families, by the names of their requests.

Shorter ones, such as `</s>`, can be one ordinary token of a large vocabulary.
"""
UNKNOWN_MARKER = "<|im_emd|>"
"""Looks like a marker, but no model has it: its token count shows how the server counts such text."""


@scenario("chat/markers", "A text alone, and with copies of end-of-message markers")
def markers(target: Target) -> Steps:
    for name, marker in {"text": "", "unknown": UNKNOWN_MARKER, **MARKERS}.items():
        body = chat(target, messages=user("Hi" + marker * COPIES), max_tokens=1)
        yield Request(name=name, path="/chat/completions", json=body)


@check("chat/markers/text", "Treat text that looks like a control token as text", "CHAT-22")
def markers_text(seen: Transcript) -> Iterator[Problem]:
    """Check that copies of a marker cost more than one token each, as text does and a control token does not.

    The unknown marker shows first whether the server counts such text as several tokens; otherwise the check is
    inconclusive, for example with a server that counts words.
    """
    alone, unknown = (usage_count(at(seen, name), "prompt_tokens") for name in ("text", "unknown"))
    if unknown - alone <= COPIES:
        raise Inconclusive("the usage does not distinguish texts of several tokens from single tokens")
    for name, marker in MARKERS.items():
        costs = usage_count(at(seen, name), "prompt_tokens") - alone
        if costs == COPIES:
            wanted = f"the tokens of a text for {marker}"
            shown = f"{costs} for {COPIES} copies, so that each is one control token"
            yield Problem(expected=wanted, actual=shown, pointer="usage.prompt_tokens", exchange=name)


CUT = '{"question": "Which season'


@scenario("chat/cut-call", "A whole call with its result, and calls that a limit has cut, without one")
def cut_call(target: Target) -> Steps:
    def messages(arguments: str, *results: dict[str, object]) -> list[dict[str, object]]:
        function = {"name": "look_up", "arguments": arguments}
        call = {"id": "call_cut000001", "type": "function", "function": function}
        message: dict[str, object] = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [*user("Hi"), message, *results, *user(QUESTION)]

    result: dict[str, object] = {"role": "tool", "tool_call_id": "call_cut000001", "content": "Spring."}
    asked = {
        "whole": messages(f'{CUT}"}}', result),
        "cut": messages(CUT),
        "long_cut": messages(CUT + " is it that" * 20),
    }
    for name, sent in asked.items():
        yield Request(name=name, path="/chat/completions", json=chat(target, messages=sent))


@check("chat/cut-call/taken", "Accept a call that a limit has cut, without a result", "CHAT-24")
def cut_call_taken(seen: Transcript) -> Iterator[Problem]:
    """Compare with a whole call: a client can neither carry out nor answer the cut one that the server sent it."""
    yield from follow_up_accepted(seen, "whole", "cut")


@check("chat/cut-call/read", "Show the model what can be read of a cut call", "CHAT-24", milder=True)
def cut_call_read(seen: Transcript) -> Iterator[Problem]:
    """Detect by the token count that the arguments are dropped."""
    for name in ("cut", "long_cut"):
        required(partial(accepted, at(seen, name)))
    yield from longer_prompt(seen, "cut", "long_cut", "prompt_tokens")
