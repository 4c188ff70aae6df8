"""Mask tokens in vLLM's core process with our own grammars, thinking budgets and bans.

vLLM takes the class of its scheduler by name (`engine.py` names one of these). When the core process makes it, it
replaces vLLM's backend of structured output by ours. `StructuredOutputsParams.grammar` carries a `MatcherSpec`.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections import OrderedDict
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.structured_output.backend_types import StructuredOutputBackend, StructuredOutputGrammar

from plumbline.engines.constraints.bans import BanMatcher, TokenTexts
from plumbline.engines.constraints.grammar import (
    GrammarError,
    GrammarVocabulary,
    LarkCompiler,
    Matcher,
    num_words,
)
from plumbline.engines.constraints.thinking_budget import ThinkingBudgetMatcher
from plumbline.engines.sampling.masks import delay_ends
from plumbline.engines.vllm.parameters import MatcherSpec

__all__ = ["PlumblineAsyncScheduler", "PlumblineScheduler"]

_log = logging.getLogger("plumbline.engines.vllm")

_MAX_CACHED = 128
"""Compiled grammars that are kept."""


class _Grammar(StructuredOutputGrammar):  # type: ignore[misc,unused-ignore]
    """The masks of one request."""

    def __init__(
        self, matcher: Matcher, spec: MatcherSpec, vocabulary: GrammarVocabulary, words: int
    ) -> None:
        self._matcher = matcher
        self._ends = spec.ends
        self._min_tokens = spec.sampling.min_tokens
        self._has_grammar = spec.sampling.grammar is not None
        self._ignored = (
            vocabulary.eos_token_ids if spec.sampling.ignore_eos and self._has_grammar else frozenset[int]()
        )
        self._end = min(vocabulary.eos_token_ids)
        self._words = words
        self._num_taken = 0
        self._terminated = False
        self._failed = False

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance; False ends the request with an error."""
        for token in tokens:
            if self._terminated:
                return True
            if self._failed or not self._matcher.accept(token):
                return False
            self._num_taken += 1
            # Only what ends the request ends the grammar: until then its mask is an end of sequence.
            self._terminated = self._has_grammar and token in self._ends
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the beginning of drafted tokens that may come; the state does not change."""
        # A token that is not accepted makes a matcher useless, so the mask is asked before.
        taken: list[int] = []
        row = np.empty(self._words, dtype=np.int32)
        for token in tokens:
            if self._terminated or self._matcher.is_done:
                break
            try:
                self._matcher.mask_into(row)
            except GrammarError:
                break
            if not int(row.view(np.uint32)[token // 32]) >> token % 32 & 1 or not self._matcher.accept(token):
                break
            taken.append(token)
        if taken:
            self._matcher.rollback(len(taken))
        return taken

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens."""
        self._matcher.rollback(num_tokens)
        self._num_taken -= num_tokens
        self._terminated = False

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        """Write the mask. An exception here would end the engine, so a failure ends the request at its next token."""
        row: NDArray[np.int32] = bitmask[batch_index].numpy()
        try:
            if not self._matcher.is_done:
                self._matcher.mask_into(row)
                delay_ends(row, self._ends if self._num_taken < self._min_tokens else self._ignored)
                return
        except GrammarError as error:
            _log.warning("a grammar failed: %s", error)
            self._failed = True
        row.fill(0)
        row.view(np.uint32)[self._end // 32] = np.uint32(1 << self._end % 32)

    def is_terminated(self) -> bool:
        """Whether the answer has ended."""
        return self._terminated

    def reset(self) -> None:
        """Not called by vLLM for requests."""
        raise NotImplementedError


class _Backend(StructuredOutputBackend):  # type: ignore[misc,unused-ignore]
    """Make the masks of requests from their specifications; several threads call it."""

    def __init__(self, config: Any) -> None:
        vocab_size = config.model_config.get_vocab_size()
        super().__init__(config, None, vocab_size)
        given = config.additional_config["plumbline"]
        module, _, name = given["vocabulary"].partition(":")
        self._vocabulary: GrammarVocabulary = getattr(importlib.import_module(module), name)(
            given["folder"], frozenset(given["ends"]), vocab_size
        )
        self._compiler = LarkCompiler(self._vocabulary)
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        self._texts: TokenTexts | None = None

    def compile_grammar(self, request_type: Any, grammar_spec: str, *_: Any, **__: Any) -> _Grammar:
        """Compile what a request asks for; see `MatcherSpec`."""
        spec = msgspec.json.decode(grammar_spec, type=MatcherSpec)
        sampling = spec.sampling
        matcher: Matcher | None = None
        if sampling.grammar is not None:
            matcher = self._matcher(sampling.grammar)
        if sampling.thinking_budget is not None:
            matcher = ThinkingBudgetMatcher(sampling.thinking_budget, matcher)
        if sampling.bad_words or sampling.banned_strings:
            matcher = BanMatcher(sampling, self.vocab_size, self._token_texts(), matcher)
        assert matcher is not None, "a specification asks for something"
        return _Grammar(matcher, spec, self._vocabulary, num_words(self.vocab_size))

    def _matcher(self, grammar: str) -> Matcher:
        with self._lock:
            compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compiler.compile_now(grammar)
        with self._lock:
            self._compiled[grammar] = compiled
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > _MAX_CACHED:
                self._compiled.popitem(last=False)
        return compiled.matcher()

    def _token_texts(self) -> TokenTexts:
        with self._lock:
            if self._texts is None:
                self._texts = TokenTexts(self._vocabulary)
            return self._texts

    def allocate_token_bitmask(self, max_num_seqs: int) -> torch.Tensor:
        """Return masks [max_num_seqs, words] that allow everything."""
        return torch.full((max_num_seqs, num_words(self.vocab_size)), -1, dtype=torch.int32)

    def destroy(self) -> None:
        """Nothing to release."""


def _install(scheduler: Any) -> None:
    manager = scheduler.structured_output_manager
    manager.backend = _Backend(manager.vllm_config)


class PlumblineScheduler(Scheduler):  # type: ignore[misc,unused-ignore]
    """vLLM's scheduler with our masks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _install(self)


class PlumblineAsyncScheduler(AsyncScheduler):  # type: ignore[misc,unused-ignore]
    """vLLM's scheduler that plans ahead of the results, with our masks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _install(self)
