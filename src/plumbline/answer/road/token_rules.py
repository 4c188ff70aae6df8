"""Translate banned words and DRY's sequence breakers of a turn into token ids."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

import msgspec

from plumbline.answer.text.token_search import TokenSearch
from plumbline.answer.text.tokenizer import TextTokenizer, UnencodableTextError
from plumbline.answer.turn import Turn
from plumbline.port.engine import RefusedRequestError, SamplingParams

__all__ = ["MAX_BANNED_TOKENS", "TokenRules"]

MAX_BANNED_TOKENS = 65_536
"""Tokens of all banned words of a request. Each of its choices sends them to the engine."""


class TokenRules:
    """Write a turn's texts into its sampling parameters, for one tokenizer."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def needed(self, turn: Turn) -> bool:
        """Return whether the turn has such texts."""
        return bool(turn.dry_breakers or turn.bad_words)

    def applied(self, turn: Turn) -> Turn:
        """Return the turn with the token ids of its texts. May take 0.1 s, so call it in a worker thread.

        Raises:
            RefusedRequestError: the vocabulary cannot write a text, so that nothing bans it.
        """
        sampling = self._with_breakers(turn.sampling, turn.dry_breakers)
        if turn.bad_words:
            sampling = msgspec.structs.replace(sampling, bad_words=self._all_banned(turn.bad_words))
        return msgspec.structs.replace(turn, sampling=sampling)

    def _all_banned(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        found: dict[tuple[int, ...], None] = {}
        size = 0
        for place, word in enumerate(words):
            for sequence in self._banned(word, f"bad_words[{place}]"):
                size += len(sequence)
                found[sequence] = None
            if size > MAX_BANNED_TOKENS:
                raise RefusedRequestError(
                    f"'bad_words' have more than {MAX_BANNED_TOKENS} tokens up to 'bad_words[{place}]'. Send fewer or "
                    "shorter ones.",
                    param="bad_words",
                )
        return tuple(found)

    def _banned(self, word: str, field: str) -> list[tuple[int, ...]]:
        try:
            found = self._spellings(word)
        except UnencodableTextError as error:
            raise RefusedRequestError(f"'{field}': {error}. Leave it out.", param=field) from None
        if not found:
            raise RefusedRequestError(
                f"'{field}' has no tokens in this model's vocabulary, so that nothing bans it. Leave it out.",
                param=field,
            )
        return found

    def _spellings(self, word: str) -> list[tuple[int, ...]]:
        """Return the tokens of a word at the start of a text and after a space, as vLLM bans them.

        The second is left out unless it has a first token of its own and the same length; otherwise it contains the
        first, or a part of it that is another word.
        """
        alone, inside = (tuple(self._tokenizer.encode_generated(s + word.lstrip())) for s in ("", " "))
        if not alone or not inside:
            return []
        return [alone, inside] if inside[0] != alone[0] and len(inside) == len(alone) else [alone]

    def _with_breakers(self, sampling: SamplingParams, breakers: tuple[str, ...]) -> SamplingParams:
        """Return the parameters with DRY's sequence breakers.

        A breaker is every token that contains its text, and the token sequences that spell it, alone and after a
        space.
        """
        chain = sampling.chain
        if chain is None or chain.dry is None or not breakers:
            return sampling
        ids: set[int] = set()
        sequences: set[tuple[int, ...]] = set()
        for text in breakers:
            ids |= self._search.containing(text)
            with suppress(UnencodableTextError):  # Then the model cannot write it either.
                sequences |= {tuple(self._tokenizer.encode_generated(space + text)) for space in ("", " ")}
        dry = msgspec.structs.replace(
            chain.dry,
            breaker_ids=frozenset(ids),
            breaker_sequences=tuple(sorted(s for s in sequences if len(s) > 1 and s[-1] not in ids)),
        )
        return msgspec.structs.replace(sampling, chain=msgspec.structs.replace(chain, dry=dry))

    @cached_property
    def _search(self) -> TokenSearch:
        return TokenSearch(self._tokenizer.table, self._tokenizer.special_ids)
