"""Define the events of an answer, independent of any API: dialects parse text into them, writers send them.

One choice of one answer is a sequence of deltas that ends with exactly one `Finish`. Tool calls do not nest or
interleave: `ToolCallStart`, its deltas, `ToolCallEnd`. The non-streaming answer is the fold of the same sequence.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from plumbline.answer.remote_tools import RemoteError, RemoteTool

__all__ = [
    "AnswerPart",
    "ApprovalNeeded",
    "CallPlace",
    "ChoiceEvent",
    "Finish",
    "Logprob",
    "MessageEnd",
    "OutputEvent",
    "Progress",
    "ReasoningDelta",
    "RemoteCallEnd",
    "RemoteCallStart",
    "TextDelta",
    "TokenIds",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolsListed",
    "ToolsListing",
    "Usage",
]

FinishReason = Literal["stop", "length", "tool_calls"]

AnswerPart = tuple[int, Literal["", "text", "call"]]
"""How many characters of an output, and what of the answer they are: nothing, text, or a call with its markers."""


class _Event(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag=True):
    """An event. Its class is its tag, so that events can be encoded and decoded (`protocols.responses.event_log`)."""


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """One token of the answer with its log probability.

    `raw` of consecutive tokens concatenates to the bytes of the text (LP-03). Where a model writes bytes that are not
    valid UTF-8, the text has U+FFFD and `raw` has the bytes.
    """

    token: str
    """The token's bytes as text, with U+FFFD where they are not valid UTF-8 by themselves."""
    token_id: int
    raw: bytes
    text: str
    """The characters that this token completes: none inside a character, the whole character at its last byte."""
    logprob: float
    top: tuple[tuple[int, str, bytes, float], ...] = ()
    """(token id, token, raw bytes, logprob) of the most likely tokens, best first."""


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Token counts of one choice and its prompt."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    repair_prompt_tokens: int = 0
    """Those of `prompt_tokens` that belong to a second ask for a call."""
    repaired_calls: int = 0
    """Calls that a second ask has replaced."""
    unmarked_calls: int = 0
    """Calls that were read from plain JSON, because the dialect of the model found none."""


class TextDelta(_Event, frozen=True):
    """More of the answer's text: complete characters only, never taken back."""

    text: str
    logprobs: tuple[Logprob, ...] = ()


class TokenIds(_Event, frozen=True):
    """The next tokens of the answer, before the events that they complete. Only if the turn asks for them."""

    token_ids: tuple[int, ...]


class ReasoningDelta(_Event, frozen=True):
    """More of the model's thinking. No API sends logprobs of it."""

    text: str


class ToolCallStart(_Event, frozen=True):
    """A call begins. Its name and id are final."""

    name: str
    id: str
    custom: bool = False
    """A call of a custom tool: the deltas are its input, which is text and not JSON."""
    member: tuple[str, str] | None = None
    """The namespace of the tool and its name there, if it has one."""


class ToolCallDelta(_Event, frozen=True):
    """More of the call's arguments (JSON text), or of a custom call's input."""

    arguments: str


class ToolCallEnd(_Event, frozen=True):
    """The call has ended. `complete` is False if the token limit cut it or its markup broke off."""

    complete: bool = True


class CallPlace(_Event, frozen=True):
    """Where in the output the call begins that comes next. Only the road sees it, where it may repair the call."""

    start: int
    """Characters of the output before the call and the markup that begins it."""
    continues: bool = False
    """The call follows another one within one pair of markers."""
    before: str = ""
    """What models write there before the markup of a call."""
    name: str | None = None
    """The tool, if no call could be read here: text or nothing follows. Empty if that is not known."""


class ToolsListing(_Event, frozen=True):
    """The server asks a remote server for its tools. `ToolsListed` follows."""

    server: str
    """Its label."""


class ToolsListed(_Event, frozen=True):
    """The tools of that remote server."""

    tools: tuple[RemoteTool, ...]
    error: str | None = None
    """Why there are none."""


class RemoteCallStart(_Event, frozen=True):
    """A call of a remote server's tool begins. Deltas and `ToolCallEnd` follow as for any call, then `RemoteCallEnd`
    with its result; a call that the token limit cuts has none."""

    server: str
    """The label of the remote server."""
    name: str
    """The name of the tool, as the remote server has it."""
    approval_id: str | None = None
    """The approval request that the client answered."""


class RemoteCallEnd(_Event, frozen=True):
    """The result of a remote call."""

    output: str | None = None
    error: RemoteError | None = None


class ApprovalNeeded(_Event, frozen=True):
    """The model wants to call a remote server's tool, and the client must approve it first."""

    server: str
    name: str
    arguments: str


class MessageEnd(_Event, frozen=True):
    """What the model wrote so far is whole: it goes on in another round."""


class Finish(_Event, frozen=True):
    """The choice has ended."""

    reason: FinishReason
    usage: Usage
    stop_match: int | str | None = None
    """The stop token id or stop string that ended it, if one did."""
    undeclared_tools: tuple[str, ...] = ()
    """Names of tools that the model called and the request does not have. The calls are text (TOOL-02)."""
    hidden_state: tuple[float, ...] = ()
    """The state that the last token was drawn from, if the turn asks for it."""
    is_unasked: bool = False
    """Whether no answer was asked for (WS-11), so that there is no empty one either."""


class Progress(_Event, frozen=True):
    """How many tokens the choice has so far, and how many of its prompt came from the cache.

    Comes before the events that the tokens caused, if the turn reports progress.
    """

    completion_tokens: int
    cached_tokens: int = 0


OutputEvent = (
    TokenIds
    | TextDelta
    | ReasoningDelta
    | ToolCallStart
    | ToolCallDelta
    | ToolCallEnd
    | CallPlace
    | ToolsListing
    | ToolsListed
    | RemoteCallStart
    | RemoteCallEnd
    | ApprovalNeeded
    | MessageEnd
    | Progress
    | Finish
)

ChoiceEvent = tuple[int, OutputEvent]
"""The index of a choice and an event of it."""
