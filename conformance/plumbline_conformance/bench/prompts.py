"""Choose the prompts and the lengths of answers of a benchmark, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from plumbline_conformance.console.options import OptionError

__all__ = ["Lengths", "lengths_of", "prompts", "read_prompts"]

_TEXT = """
amber anchor apple arrow basket beacon bell birch bridge button cabin candle canyon carpet cedar chalk cherry
clock cloud copper coral cotton crane crystal dawn desert diamond door dune ember engine feather fern field
flint forest garden glass grain granite harbor hazel hill honey island ivory jacket jungle kettle ladder lake
lantern leaf lemon linen maple marble meadow mirror moon moss mountain needle ocean olive orchard paper pearl
pebble pepper pine planet plum pocket prairie quartz rabbit rain raven ribbon river road rose saddle salt sand
shadow shell silver sky smoke snow spice spring star stone storm summer table thunder tiger timber tower train
valley velvet violin walnut water wheel willow window winter wool yarn
"""
_WORDS = _TEXT.split()
_MOST_LENGTH = 1_000_000
_MOST_BYTES = 64 * 1024**2
"""Bytes of a file with prompts."""


class Lengths(msgspec.Struct, frozen=True):
    """A uniform distribution of whole numbers, both ends included."""

    least: int
    most: int

    def draw(self, source: random.Random) -> int:
        """Draw one length."""
        return source.randint(self.least, self.most)


def lengths_of(text: str, option: str) -> Lengths:
    """Read `60`, or `50-200` for a uniform distribution.

    Raises:
        UnusableInput: it is neither, or out of range.
    """
    least, dash, most = text.partition("-")
    try:
        found = Lengths(int(least), int(most if dash else least))
    except ValueError:
        raise OptionError(
            option, f"must be a number such as 60, or a range such as 50-200, got {text!r}"
        ) from None
    if not 1 <= found.least <= found.most <= _MOST_LENGTH:
        raise OptionError(option, f"must lie within 1 and {_MOST_LENGTH}, the lower end first, got {text}")
    return found


def read_prompts(path: Path) -> list[Any]:
    """Read prompts from a file with one a line.

    A line is a text, or JSON: a string, a list of messages, or an object with `prompt` or `messages`.

    Raises:
        UnusableInput: the file cannot be read, is too large, or has no prompt or a line of other JSON.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        lines = data.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionError("--prompts", f"names {path}, which cannot be read: {reason}") from None
    if len(data) > _MOST_BYTES:
        raise OptionError("--prompts", f"names {path}, which is larger than {_MOST_BYTES} bytes")
    found = [_prompt(line, number, path) for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise OptionError("--prompts", f"names {path}, which has no prompts: write one a line")
    return found


def _prompt(line: str, number: int, path: Path) -> Any:
    if line.lstrip()[0] not in '"[{':
        return line
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return line
    if isinstance(value, dict):
        value = value.get("messages", value.get("prompt"))
    if not isinstance(value, str | list) or not value:
        raise OptionError(
            "--prompts", f"names {path}, whose line {number} needs a text, `prompt` or `messages`"
        )
    return value


def prompts(
    seed: int, words: Lengths, answers: Lengths, given: list[Any] | None
) -> Iterator[tuple[Any, int]]:
    """Yield prompts with the most tokens of their answers, without an end.

    Prompts of words differ from the first word on, so that no prefix cache helps; those of a file repeat in turn.
    """
    source = random.Random(seed)
    number = 0
    while True:
        if given is None:
            prompt: Any = f"{number:x}{source.getrandbits(32):08x} " + " ".join(
                source.choices(_WORDS, k=max(1, words.draw(source) - 1))
            )
        else:
            prompt = given[number % len(given)]
        yield prompt, answers.draw(source)
        number += 1
