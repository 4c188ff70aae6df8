"""Change how an answer shows its reasoning: `include_reasoning`, `separate_reasoning`, `stream_reasoning`."""

from __future__ import annotations

from plumbline.answer.events import OutputEvent, Progress, ReasoningDelta, TextDelta
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract.wire.errors import invalid_request

__all__ = ["ReasoningFilter", "check_reasoning"]


def check_reasoning(request: CreateChatCompletionRequest) -> None:
    """Check the fields about reasoning against each other and against `logprobs`.

    Raises:
        ApiError: 400 naming the field.
    """
    if request.separate_reasoning is not False:
        return
    if request.include_reasoning is False:
        raise invalid_request(
            "'separate_reasoning' false puts the reasoning into the text, and 'include_reasoning' false leaves it out; "
            "send one of them.",
            "separate_reasoning",
        )
    if request.logprobs is True:  # LP-03: logprobs join to the text, and reasoning has no logprobs.
        raise invalid_request(
            "'separate_reasoning' false cannot be combined with 'logprobs': reasoning has no logprobs.",
            "separate_reasoning",
        )


class ReasoningFilter:
    """Rewrite the events of one choice as the request asks. Both modes see the same events."""

    def __init__(self, request: CreateChatCompletionRequest, markers: tuple[str, str]) -> None:
        """Prepare the filter.

        Args:
            request: a request that `check_reasoning` has accepted.
            markers: what stands before and after reasoning in the text of this model.
        """
        self._drops = request.include_reasoning is False
        self._in_text = request.separate_reasoning is False
        self._collects = request.stream_reasoning is False
        self._open, self._close = markers
        self._inside = False
        self._held: list[str] = []

    def apply(self, event: OutputEvent) -> list[OutputEvent]:
        """Return what to write for an event of the answer."""
        if isinstance(event, Progress):
            return [event]
        if not isinstance(event, ReasoningDelta):
            return [*self._end(), event]
        if self._drops:
            return []
        begins, self._inside = not self._inside, True
        text = self._open + event.text if begins and self._in_text else event.text
        if self._collects:
            self._held.append(text)
            return []
        return [self._written(text)]

    def _end(self) -> list[OutputEvent]:
        """Return what ends the reasoning, if the model was thinking."""
        if not self._inside:
            return []
        self._inside = False
        text = "".join(self._held) + (self._close if self._in_text else "")
        self._held.clear()
        return [self._written(text)] if text else []

    def _written(self, text: str) -> OutputEvent:
        return TextDelta(text) if self._in_text else ReasoningDelta(text)
