"""Count what the chunks of a stream carry: ids of tokens, and the usage so far."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from plumbline.answer.events import Progress, TokenIds
from plumbline.contract._generated.common import CompletionUsage
from plumbline.contract._generated.shared_fields import CompletionFields
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.protocols.common.usage import wants_progress

__all__ = ["Delivery"]


class Delivery:
    """Track what the chunks of one stream have carried, and what waits for the next chunk of each choice."""

    def __init__(self, request: CompletionFields, prompt_tokens: int) -> None:
        options = or_default(request.stream_options, None)
        self.includes_usage = options is not None and options.include_usage is True
        """Whether the stream ends with the counts of the answer (CS-06)."""
        self._reports = wants_progress(request)
        self._returns_ids = request.return_token_ids is True
        self._prompt_tokens = prompt_tokens
        self._generated: dict[int, int] = {}
        """Tokens of each choice so far."""
        self._delivered: dict[int, int] = {}
        """Those that its chunks have carried."""
        self._waiting: dict[int, list[int]] = {}
        """Ids of tokens that no chunk has carried; the last chunk of a choice comes in any case."""

    def note(self, index: int, event: TokenIds | Progress) -> None:
        """Keep what the next chunk of a choice carries."""
        if isinstance(event, Progress):
            self._generated[index] = event.completion_tokens
        else:
            self._waiting.setdefault(index, []).extend(event.token_ids)

    def deliver(self, index: int) -> list[int] | UnsetType:
        """Count all tokens of a choice so far as carried, and return the `token_ids` of the chunk that does it."""
        if self._reports:
            self._delivered[index] = self._generated.get(index, 0)
        return self._waiting.pop(index, []) if self._returns_ids else UNSET

    def deliver_none(self) -> list[int] | UnsetType:
        """Return the `token_ids` of a chunk without tokens."""
        return [] if self._returns_ids else UNSET

    def usage(self) -> CompletionUsage | UnsetType | None:
        """Return the `usage` of a chunk: the counts so far, if every chunk reports them (`continuous_usage_stats`)."""
        if not self._reports:
            return None if self.includes_usage else UNSET  # CS-07
        completion_tokens = sum(self._delivered.values())
        return CompletionUsage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=self._prompt_tokens + completion_tokens,
        )
