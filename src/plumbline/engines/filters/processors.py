"""Run processors of logits: Python classes of the operator, which a request names and configures.

A processor is made for each request and called before each of its draws, after bias, bans and penalties and before the
grammar, so that it cannot break a constraint. It runs on the thread that computes steps: while it works, every request
waits. A processor that fails ends its own request only.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol

import torch
from torch import Tensor

from plumbline.port.engine import ProcessorCall, RefusedRequestError

__all__ = [
    "GROUP",
    "LogitsProcessor",
    "ProcessorError",
    "ProcessorFactory",
    "RequestProcessors",
    "load_processors",
    "make_processors",
]

GROUP = "plumbline.logits_processors"
"""The group of entry points that packages register processors with."""
_SLOW = 0.1
"""Seconds of one call that the log names, once for each request."""
_NAME = re.compile(r"[\w.:-]{1,128}")

_log = logging.getLogger("plumbline.engines")


class LogitsProcessor(Protocol):
    """What a processor does. Its class takes the `args` and `kwargs` of the request."""

    def __call__(self, prompt_ids: Sequence[int], output_ids: Sequence[int], logits: Tensor) -> Tensor:
        """Return the logits to draw the next token from.

        The same place may come twice, after a step that failed, so a processor derives its state from the ids.

        Args:
            prompt_ids: the tokens of the prompt.
            output_ids: the tokens of the answer so far.
            logits: fp32 [vocabulary], on the engine's device; it may be changed and returned. -inf bans a token.
        """
        ...


ProcessorFactory = Callable[..., LogitsProcessor]


class ProcessorError(Exception):
    """A processor failed; the message is fit for the client."""


class RequestProcessors:
    """The processors of one request, in their order.

    Args:
        processors: with their names.

    Attributes:
        failed: whether one of them has failed.
    """

    __slots__ = ("_processors", "_prompt_ids", "_was_slow", "failed")

    def __init__(self, processors: Sequence[tuple[str, LogitsProcessor]]) -> None:
        self._processors = processors
        self._prompt_ids: tuple[int, ...] = ()
        self._was_slow = False
        self.failed = False

    def run(self, token_ids: Sequence[int], num_prompt_tokens: int, logits: Tensor) -> Tensor:
        """Return the logits that the processors make of a row.

        Args:
            token_ids: prompt and answer so far.
            num_prompt_tokens: the length of the prompt.
            logits: fp32 [vocabulary]; may be changed.

        Raises:
            ProcessorError: one of them raised, or returned no row of logits.
        """
        if not self._prompt_ids:
            self._prompt_ids = tuple(token_ids[:num_prompt_tokens])
        output_ids = tuple(token_ids[num_prompt_tokens:])
        for name, processor in self._processors:
            began = time.perf_counter()
            try:
                row = processor(self._prompt_ids, output_ids, logits)
                _check_row(row, logits)
            except Exception as error:
                _log.exception("the logits processor %r failed", name)
                self.failed = True
                raise ProcessorError(
                    f"The logits processor '{name}' of this server failed ({type(error).__name__}). Leave it out, or "
                    "ask the operator, whose log has the reason."
                ) from error
            seconds = time.perf_counter() - began
            if seconds > _SLOW and not self._was_slow:
                self._was_slow = True
                _log.warning(
                    "the logits processor %r took %.2f s for a token; all requests wait for it", name, seconds
                )
            logits = row
        return logits


def _check_row(row: object, logits: Tensor) -> None:
    """Check what a processor returns, because the draw shares its kernels with other requests.

    Raises:
        TypeError, ValueError: it is not a row of logits.
    """
    if not isinstance(row, Tensor):
        raise TypeError(f"it returned {type(row).__name__} instead of a tensor")
    if (row.shape, row.dtype, row.device) != (logits.shape, logits.dtype, logits.device):
        raise ValueError(f"it returned {row.dtype} {tuple(row.shape)} instead of the logits' type and shape")
    largest = row.max()
    if not bool(torch.isfinite(largest)):  # NaN, +inf, or -inf everywhere
        raise ValueError("it returned logits without a largest finite one")


def make_processors(
    calls: Sequence[ProcessorCall], registered: Mapping[str, ProcessorFactory]
) -> RequestProcessors | None:
    """Make the processors of a request; None if it names none.

    Args:
        calls: what the request names.
        registered: the processors of the server.

    Raises:
        RefusedRequestError: a name is not registered, or its class does not take the arguments; `param` is the field.
    """
    made: list[tuple[str, LogitsProcessor]] = []
    for call in calls:
        factory = registered.get(call.name)
        if factory is None:
            names = ", ".join(sorted(registered)) or "none; the operator registers them (--logits-processor)"
            raise RefusedRequestError(
                f"'{call.field}' names a logits processor that this server does not have. Registered: {names}",
                call.field,
                "invalid_value",
            )
        try:
            made.append((call.name, factory(*call.args, **call.kwargs)))
        except Exception as error:
            # What a class says of its arguments is for the client; other exceptions may say anything.
            reason = str(error)[:200] if isinstance(error, TypeError | ValueError) else type(error).__name__
            raise RefusedRequestError(
                f"'{call.field}': the logits processor '{call.name}' does not take these arguments: {reason}",
                call.field,
                "invalid_value",
            ) from error
    return RequestProcessors(made) if made else None


def load_processors(given: Sequence[tuple[str, str]]) -> dict[str, ProcessorFactory]:
    """Import the processors of installed packages and of the operator, who may give a name of a package again.

    Args:
        given: names, each with `module:Class`.

    Raises:
        ValueError: one cannot be imported; the text names it.
    """
    places = {entry.name: entry.value for entry in entry_points(group=GROUP)} | dict(given)
    found: dict[str, ProcessorFactory] = {}
    for name, place in places.items():
        module, _, attribute = place.partition(":")
        try:
            if not _NAME.fullmatch(name):
                raise ValueError("a name has at most 128 letters, digits and . : _ -")
            factory = import_module(module)
            for part in attribute.split("."):
                factory = getattr(factory, part)
            if not callable(factory):
                raise TypeError("it is not a class")
        except Exception as error:
            raise ValueError(f"{name}={place} cannot be imported: {type(error).__name__}: {error}") from error
        found[name] = factory
    return found
