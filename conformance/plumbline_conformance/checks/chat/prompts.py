"""What a chat completion may be asked with: roles, parts, and text that looks like a model's own markers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial

from plumbline_conformance.checks.common import accepted, at, counted, required, taken
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.model import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.transcript.model import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
QUESTION = "Which of the four seasons do you like best, and why is it that one? Say it in a single word."
DRESS = 4
"""A template may put this many tokens around a part; fewer than the text has, and than its Python form would add."""


def _parts(*texts: str) -> list[dict[str, object]]:
    return [{"type": "text", "text": text} for text in texts]


ASKED: dict[str, tuple[str, list[dict[str, object]]]] = {
    "system": ("a system message", [{"role": "system", "content": "Be kind."}, *user(QUESTION)]),
    "developer": ("a developer message", [{"role": "developer", "content": "Be kind."}, *user(QUESTION)]),
    "parts": ("text parts", [{"role": "user", "content": _parts(QUESTION)}]),
    "history": (
        "its own words as text parts",
        [*user("Hi"), {"role": "assistant", "content": _parts("Hello.", " You?")}, *user(QUESTION)],
    ),
}
"""By the check that looks at it: what is to be taken, and the messages, in the order of the requests."""


@scenario("chat/roles", "A question alone, and with every role and form of content that text can have")
def roles(target: Target) -> Steps:
    for messages in (user(QUESTION), *(messages for _, messages in ASKED.values())):
        yield Request(path="/chat/completions", json=chat(target, messages=messages))


def _taken(place: int) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        """The same question alone was answered, so that a refusal is of the role or of the form."""
        yield from taken(seen, place)

    return judge


for _place, (_name, (_what, _)) in enumerate(ASKED.items(), 1):
    check(f"chat/roles/{_name}", f"Take {_what}", "CHAT-13")(_taken(_place))


@check("chat/roles/same-text", "Read one text part as the text that it is", "CHAT-13")
def roles_same_text(seen: Transcript) -> Iterator[Problem]:
    """A part that is dropped costs nothing, and one that is printed as it lies in memory costs much more."""
    place = 1 + list(ASKED).index("parts")
    wanted, found = (counted(at(seen, one), "prompt_tokens") for one in (0, place))
    if abs(found - wanted) > DRESS:
        shown = f"about {wanted}, as for the text alone"
        yield Problem(expected=shown, actual=str(found), pointer="usage.prompt_tokens", exchange=place)


@scenario("chat/function-role", "What a function of the old kind said, in few words and in many")
def function_role(target: Target) -> Steps:
    for count in (1, 20):
        called = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
        said = {"role": "function", "name": "look", "content": " ".join(["It is warm."] * count)}
        messages = [*user(QUESTION), called, said]
        yield Request(path="/chat/completions", json=chat(target, messages=messages))


@check("chat/function-role/taken", "Take the message of a function, or refuse it", "CHAT-13")
def function_role_taken(seen: Transcript) -> Iterator[Problem]:
    """Functions of the old kind may be lacking, and then their messages as well (TOOL-16)."""
    for place in (0, 1):
        required(partial(accepted, at(seen, place)))
    yield from ()


@check("chat/function-role/read", "Show the model what a function said", "CHAT-13", milder=True)
def function_role_read(seen: Transcript) -> Iterator[Problem]:
    """A template that does not know the role may leave the message out; whoever asks is not told so."""
    counts = [counted(at(seen, place), "prompt_tokens") for place in (0, 1)]
    if counts[1] <= counts[0]:
        shown = f"more than {counts[0]}"
        yield Problem(expected=shown, actual=str(counts[1]), pointer="usage.prompt_tokens", exchange=1)


COPIES = 8
MARKERS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>")
"""Of the families that are served most. Shorter ones, as `</s>`, may be one token of a large vocabulary honestly."""
UNKNOWN_MARKER = "<|im_emd|>"
"""What a marker looks like and no model has: what it costs says how such text is counted."""


@scenario("chat/markers", "A text alone, and with copies of what models mark the ends of messages with")
def markers(target: Target) -> Steps:
    for marker in ("", UNKNOWN_MARKER, *MARKERS):
        asked = chat(target, messages=user("Hi" + marker * COPIES), max_tokens=1)
        yield Request(path="/chat/completions", json=asked)


@check("chat/markers/text", "Read what looks like a control token as the text that it is", "CHAT-22")
def markers_text(seen: Transcript) -> Iterator[Problem]:
    """A control token splits the text around it, so that each copy costs exactly one token.

    A text of that length costs more, which one that no model has shows first: where words are counted, nothing is said.
    """
    alone, unknown = (counted(at(seen, place), "prompt_tokens") for place in (0, 1))
    if unknown - alone <= COPIES:
        raise Inconclusive("the usage does not tell texts of several tokens from single ones")
    for place, marker in enumerate(MARKERS, 2):
        costs = counted(at(seen, place), "prompt_tokens") - alone
        if costs == COPIES:
            wanted = f"the tokens of a text for {marker}"
            shown = f"{costs} for {COPIES} copies, so that each is one control token"
            yield Problem(expected=wanted, actual=shown, pointer="usage.prompt_tokens", exchange=place)
