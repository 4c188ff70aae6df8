"""Choose the variant of a family's calls that a model writes itself.

A dialect lists every variant of its family, and the parser reads all of them. The grammar of calls enforces one, which
must be the variant that the model was trained on. It is, in this order:

* the variant that the model's chat template writes for an earlier turn with a call;
* the variant with markers that stand in the template;
* the variant with markers that are added tokens.

Where nothing distinguishes two variants, the first in the dialect wins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from plumbline.answer.dialects.parsers.marker_parser import MarkerParser
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Section, ToolDialect
from plumbline.answer.dialects.spec.markers import Markers
from plumbline.answer.events import TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart

__all__ = ["EXAMPLE", "SCHEMA", "ShowCall", "choose_variant", "dialects_of_example"]

EXAMPLE: Final = WrittenCall("get_weather", '{"city": "Paris"}')
"""The call in the turn that the chat template renders."""
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "The city."}},  # Some templates require one.
    "required": ["city"],
}
"""The parameters of its tool."""

_LONGEST = 1024
"""Characters in which the example call ends, with its markers, in every dialect."""

ShowCall = Callable[[str], str]
"""Renders a conversation that ends with `EXAMPLE`, given the id of the call; empty if the template refuses it."""


class _Variant(NamedTuple):
    """A section with the markers that the model writes."""

    section: Section
    open: str = ""
    close: str = ""


def choose_variant(
    dialect: ToolDialect,
    *,
    template: str = "",
    added_tokens: Collection[str] = (),
    show_call: ShowCall | None = None,
) -> ToolDialect:
    """Put the section that a model writes first, and in it the markers that the model writes.

    Args:
        dialect: as the registry has it.
        template: the source of the model's chat template.
        added_tokens: the texts of its tokenizer's added tokens.
        show_call: renders the example call with that template. Used only if the dialect has several variants.
    """
    candidates = _written(dialect)
    if len(candidates) < 2 and all(len(s.open) < 2 and len(s.close) < 2 for s in candidates):
        return dialect
    call_id = f"functions.{EXAMPLE.name}:0" if dialect.ids == "kimi" else "abcdefghi"
    shown = None if show_call is None else _in_example(candidates, show_call(call_id))
    variant = shown[1] if shown else _by_markers(candidates, template, added_tokens)
    section = msgspec.structs.replace(
        variant.section,
        open=_first(variant.section.open, variant.open),
        close=_first(variant.section.close, variant.close),
    )
    others = [other for other in dialect.sections if other is not variant.section]
    sections = (section, *others)
    return dialect if sections == dialect.sections else msgspec.structs.replace(dialect, sections=sections)


def dialects_of_example(dialects: Iterable[ToolDialect], text: str) -> list[ToolDialect]:
    """Find the dialects that read the example call in a turn best; none if no dialect reads it.

    Templates join markers from variables (`'<' + token + 'invoke name='`), so that they match no pattern, but the turn
    that they write has them. Of several dialects those with the outermost marker count, and of these the ones that
    leave the least text after the call. Calls without a marker must begin the turn, because anywhere else an unknown
    marker may stand before them.

    Args:
        dialects: those to try. Harmony is left out: its calls are messages, with a header that the prompt begins.
        text: the turn as the template writes it, or the empty string.
    """
    found: list[tuple[int, int, ToolDialect]] = []
    begin = len(text) - len(text.lstrip())
    for dialect in dialects:
        for section in () if dialect.messages else _written(dialect):
            shown = _in_example([section], text) if section.open else None
            position = begin if shown is None else shown[0]
            if section.open and shown is None:
                continue
            rest = _rest(section, text[position:])
            if rest is not None:
                found.append((position, rest, dialect))
    best = min((each[:2] for each in found), default=())
    return [dialect for *place, dialect in found if tuple(place) == best]


def _written(dialect: ToolDialect) -> list[Section]:
    """Return the sections that a model of the family writes on purpose."""
    # Markers that count only at the beginning of a line are slips of models, which no grammar should enforce.
    return [section for section in dialect.firm if not section.at_line]


def _first(texts: tuple[str, ...], first: str) -> tuple[str, ...]:
    """Move a text to the front."""
    return (first, *(text for text in texts if text != first)) if first in texts else texts


def _in_example(sections: Sequence[Section], text: str) -> tuple[int, _Variant] | None:
    """Find the variant of the example call in a text, and where it begins; of several, the one that begins first.

    A variant without markers also matches inside the markers of another, and so does one with a marker that stands
    inside them.
    """
    found: dict[int, _Variant] = {}
    for section in sections:
        opens = sorted(section.open or section.starts, key=len, reverse=True)
        # Of bare names only whole ones are tried.
        word = "" if section.open or not section.starts[:1].isalnum() else r"\b"
        for match in re.finditer(f"{word}(?:{'|'.join(map(re.escape, opens))})", text) if opens else ():
            if _rest(section, text[match.start() :]) is not None:
                closes = sorted(section.close, key=len, reverse=True)
                closed = re.search("|".join(map(re.escape, closes)), text[match.end() :]) if closes else None
                variant = _Variant(
                    section, match.group() if section.open else "", closed.group() if closed else ""
                )
                found.setdefault(match.start(), variant)
                break
    return (min(found), found[min(found)]) if found else None


def _rest(section: Section, text: str) -> int | None:
    """Return how many characters of text follow the example in this section; None if the text begins otherwise."""
    text = text[:_LONGEST]
    alone = Markers(ToolDialect(name="", sections=(section,)), None)
    parser = MarkerParser(
        alone, {EXAMPLE.name: SCHEMA}, inside=False, new_id=lambda name, number: name, exact=True
    )
    events = [*parser.push(TextDelta(text)), *parser.finish("stop")]
    if not events or not isinstance(events[0], ToolCallStart):
        return None
    end = next(number for number, event in enumerate(events) if isinstance(event, ToolCallEnd))
    arguments = "".join(event.arguments for event in events[:end] if isinstance(event, ToolCallDelta))
    ended = events[end]
    whole = isinstance(ended, ToolCallEnd) and ended.complete
    if not whole or json.loads(arguments) != json.loads(EXAMPLE.arguments):
        return None
    return sum(len(event.text) for event in events[end:] if isinstance(event, TextDelta))


def _by_markers(sections: Sequence[Section], template: str, added_tokens: Collection[str]) -> _Variant:
    """Find the variant with the markers that the template has, or else the tokenizer, or else most of them."""

    def distance(marker: str) -> int:
        return 0 if marker in template else 1 + _num_unknown(marker, added_tokens)

    def nearest(markers: tuple[str, ...]) -> str:
        return min(markers, key=distance, default="")

    def farthest(variant: _Variant) -> int:
        section = variant.section
        markers = (variant.open, variant.close, section.item_open, section.item_close, *section.inner)
        return max(map(distance, filter(None, markers)), default=0)

    variants = [_Variant(section, nearest(section.open), nearest(section.close)) for section in sections]
    return min(variants, key=farthest)


def _num_unknown(marker: str, added_tokens: Collection[str]) -> int:
    """Rate how much of a marker is in no added token: 0 for nothing, 1 for a part, 2 for all of it."""
    # Some tokenizers have single characters and white space among their added tokens.
    known = sorted((t for t in added_tokens if len(t.strip()) > 1 and t in marker), key=len, reverse=True)
    if not known:
        return 2
    return 1 if re.sub("|".join(map(re.escape, known)), "", marker).strip() else 0
