"""Which of a family's ways to write calls a model writes itself.

A dialect lists every way that its family has, and all of them are read. One is written: the grammar of promised calls
holds a model to it, so it has to be the one that the model was trained on. What tells it, in this order:

* what the model's chat template writes for an earlier turn that called;
* whose markers the template has, where it writes no such turn;
* whose markers are added tokens, where the template has neither's.

Where nothing tells two apart, the earlier stays before the later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from plumbline.dialects.parsers.marker_parser import MarkerParser
from plumbline.dialects.spec.call_format import Call
from plumbline.dialects.spec.dialect import Section, ToolDialect
from plumbline.dialects.spec.markers import Markers
from plumbline.events import TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart

__all__ = ["EXAMPLE", "SCHEMA", "Shows", "as_written"]

EXAMPLE: Final = Call("get_weather", '{"city": "Paris"}')
"""The call of the turn that a template is shown."""
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
"""The parameters of its tool."""

Shows = Callable[[str], str]
"""The text of a conversation that ends with a turn of `EXAMPLE`, given the id of the call; empty if the template
refuses it."""


class _Way(NamedTuple):
    """A section with the markers that its model writes."""

    section: Section
    open: str = ""
    close: str = ""


def as_written(
    dialect: ToolDialect,
    *,
    template: str = "",
    added_tokens: Collection[str] = (),
    shows: Shows | None = None,
) -> ToolDialect:
    """The dialect with the section first that a model writes, and of its markers those first that it writes.

    Args:
        dialect: as the registry has it.
        template: the source of the model's chat template.
        added_tokens: the texts of its tokenizer's added tokens.
        shows: writes a turn that calls with that template. It is asked only if the dialect leaves a choice.
    """
    # What is a call only where a line begins is how models slip, and would be text where a promise may put it.
    written = [section for section in dialect.sections if not section.at_line]
    if len(written) < 2 and all(len(s.open) < 2 and len(s.close) < 2 for s in written):
        return dialect
    call_id = f"functions.{EXAMPLE.name}:0" if dialect.ids == "kimi" else "abcdefghi"
    way = (_shown(written, shows(call_id)) if shows is not None else None) or _fitting(
        written, template, added_tokens
    )
    section = msgspec.structs.replace(
        way.section, open=_first(way.section.open, way.open), close=_first(way.section.close, way.close)
    )
    others = [other for other in dialect.sections if other is not way.section]
    sections = (section, *others)
    return dialect if sections == dialect.sections else msgspec.structs.replace(dialect, sections=sections)


def _first(texts: tuple[str, ...], first: str) -> tuple[str, ...]:
    """The texts, this one before the others."""
    return (first, *(text for text in texts if text != first)) if first in texts else texts


def _shown(sections: Sequence[Section], text: str) -> _Way | None:
    """The way in which a text has the example; of several that find it, the one whose markup begins first.

    A way without a marker finds the call inside of another way's markers, and so does one whose marker stands in them.
    """
    found: dict[int, _Way] = {}
    for section in sections:
        opens = sorted(section.open or section.starts, key=len, reverse=True)
        for match in re.finditer("|".join(map(re.escape, opens)), text) if opens else ():
            if _reads(section, text[match.start() :]):
                # Markers that end a section are looked for behind the one that begins it.
                closes = sorted(section.close, key=len, reverse=True)
                closed = re.search("|".join(map(re.escape, closes)), text[match.end() :]) if closes else None
                way = _Way(section, match.group() if section.open else "", closed.group() if closed else "")
                found.setdefault(match.start(), way)
                break
    return found[min(found)] if found else None


def _reads(section: Section, text: str) -> bool:
    """Whether the text begins with the example in this section."""
    alone = Markers(ToolDialect(name="", sections=(section,)), None)
    parser = MarkerParser(alone, {EXAMPLE.name: SCHEMA}, inside=False, new_id=lambda name, number: name)
    events = [*parser.push(TextDelta(text)), *parser.finish("stop")]
    if not events or not isinstance(events[0], ToolCallStart):
        return False
    end = next(number for number, event in enumerate(events) if isinstance(event, ToolCallEnd))
    arguments = "".join(event.arguments for event in events[:end] if isinstance(event, ToolCallDelta))
    ended = events[end]
    whole = isinstance(ended, ToolCallEnd) and ended.complete
    return whole and bool(json.loads(arguments) == json.loads(EXAMPLE.arguments))


def _fitting(sections: Sequence[Section], template: str, added_tokens: Collection[str]) -> _Way:
    """The way whose markers the template has, or else the tokenizer, or else most nearly; of several the first."""

    def distance(marker: str) -> int:
        return 0 if marker in template else 1 + _num_unknown(marker, added_tokens)

    def nearest(markers: tuple[str, ...]) -> str:
        return min(markers, key=distance, default="")

    def farthest(way: _Way) -> int:
        section = way.section
        markers = (way.open, way.close, section.item_open, section.item_close, *section.inner)
        return max(map(distance, filter(None, markers)), default=0)

    ways = [_Way(section, nearest(section.open), nearest(section.close)) for section in sections]
    return min(ways, key=farthest)


def _num_unknown(marker: str, added_tokens: Collection[str]) -> int:
    """How much of a marker is in no added token: 0 for nothing, 1 for a part, 2 for all of it."""
    # A tokenizer may have single characters and white space among its added tokens. They say nothing.
    known = sorted((t for t in added_tokens if len(t.strip()) > 1 and t in marker), key=len, reverse=True)
    if not known:
        return 2
    return 1 if re.sub("|".join(map(re.escape, known)), "", marker).strip() else 0
