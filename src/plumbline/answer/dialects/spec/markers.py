"""Prepare the searches for the markers of a tool dialect and a reasoning dialect."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect
from plumbline.answer.dialects.streams.cursor import Finder

__all__ = ["Markers", "is_control", "is_markup", "is_tag"]

_NO_CALLS = ToolDialect(name="", sections=())
_NO_THINKING = ReasoningDialect(name="", open=(), close=())


class Markers:
    """The markers of a tool dialect and a reasoning dialect, either of which may be missing. Immutable.

    Attributes:
        sections: for each marker of calls, the sections that begin with it.
        begins: those of these markers that are whole by themselves.
        in_tags: sections end with an end tag.
        bare: the sections without a marker.
        named: the sections whose calls begin with the name of a tool at the beginning of a line, by what follows it.
        opening: the beginnings of thinking; `reopening` are those that are dropped within it.
        in_text: markers that may come in text; `to_markup` are these, and line feeds where a line may begin a call.
        again: for a section, by its identity, the beginnings that are dropped after one.
        texts: all texts of the dialects. The parser needs those that are control tokens as text.
    """

    def __init__(self, tool: ToolDialect | None, reasoning: ReasoningDialect | None) -> None:
        self.tool = tool
        self.reasoning = reasoning
        calls, thinking = tool or _NO_CALLS, reasoning or _NO_THINKING
        self.silent = (*calls.silent, *thinking.silent)
        self.header = calls.header or thinking.header
        self.headed = Finder((*calls.headed, *thinking.headed), least=1 if self.header else 2)
        self._index_sections(calls.sections)
        # No model writes control tokens in prose, so an end that ends nothing is noise.
        ends = _flat((*s.close[:1], s.item_close, *s.call_format.ends) for s in calls.sections)
        others = (*self.sections, *self.silent, *thinking.open, *thinking.close, *thinking.markers)
        others = (*others, thinking.next_message, self.header, *self.headed.markers)
        self.stray_ends = frozenset(end for end in ends if is_control(end)).difference(others)
        # Others may stand in prose, where the model has written the beginning, too.
        ends = _flat((*s.close, s.item_close, *s.call_format.ends) for s in calls.sections)
        self.plain_ends = Finder(
            end
            for end in ends
            if end.startswith("</") and is_tag(end) and end not in (*others, *self.stray_ends)
        )
        self.plain_closers = frozenset(
            end for end in self.plain_ends.markers if f"<{end[2:]}" in self.sections
        )
        self._find_in_thinking(thinking)
        self._find_around_answers(calls, thinking)
        self._find_after_calls(calls)
        inner = _flat((*s.close, s.item_close, *s.call_format.markers) for s in calls.sections)
        self.texts = frozenset(
            (*self.in_text.markers, *self.at_boundary.markers, *filter(None, inner), *thinking.markers)
        )

    def _index_sections(self, sections: tuple[Section, ...]) -> None:
        """Find the sections by the marker that they begin with."""
        self.sections: dict[str, tuple[Section, ...]] = {}
        for section in sections:
            for marker in filter(None, (*section.open, section.item_open)):
                self.sections[marker] = (*self.sections.get(marker, ()), section)
        self.begins = tuple(filter(is_tag, self.sections))
        self.in_tags = any(close.startswith("</") for section in sections for close in section.close)
        self.bare = tuple(s for s in sections if s.starts and not (s.open or s.item_open))
        starts = "".join(section.starts for section in self.bare)
        named = (
            (tag, s)
            for s in sections
            if not (s.starts or s.open or s.item_open)
            for tag in s.call_format.after_name
        )
        self.named = dict(named)
        self.after_name = Finder(self.named)
        self.before_bare = Finder((marker for marker in self.sections if marker[0] in starts), least=2)
        # Inside a line of prose, and in thinking, the model writes about these markers.
        self.at_line = frozenset(
            marker for marker, those in self.sections.items() if all(s.at_line for s in those)
        )

    def _find_in_thinking(self, thinking: ReasoningDialect) -> None:
        """Find what begins and ends thinking, and what may come inside it."""
        self.opens = () if thinking.append else thinking.open
        self.closes = () if thinking.append else thinking.close
        self.opening = Finder(self.opens)
        self.reopening = Finder(self.opens if thinking.anywhere else ())
        calls = tuple(marker for marker in self.sections if marker not in self.at_line)
        # No model writes control tokens in prose: what they begin ends thinking without an end.
        inside = calls if thinking.calls_inside else tuple(filter(is_control, calls))
        self.follows = frozenset(text for text in thinking.silent if text[0] == "<" or is_control(text))
        found = (
            *self.closes,
            *inside,
            *self.stray_ends,
            *self.reopening.markers,
            thinking.next_message,
            *self.follows,
        )
        self.in_thought = Finder((*found, self.header), least=2) if self.closes else Finder(())

    def _find_around_answers(self, calls: ToolDialect, thinking: ReasoningDialect) -> None:
        """Find what may come in text, and what may come only where an answer or a part of it begins."""
        anywhere = (*self.opens, *self.closes) if thinking.anywhere else ()
        plain = self.plain_ends.markers if self.plain_closers else ()
        self.in_text = Finder((*self.sections, *self.silent, *anywhere, *self.stray_ends, *plain), least=2)
        self.to_markup = Finder((*self.in_text.markers, "\n" if self.named else ""), least=2)
        self.after_silent = Finder((*self.sections, *self.silent, *self.opens, *anywhere, self.header))
        # Markers of calls that begin like a text around answers (muse: `<|message|><atem:function_calls>`).
        longer = [marker for marker in self.sections if self.silent and marker.startswith(self.silent)]
        marked = (s for s in calls.sections if s.open and is_markup(s.open[0]))
        self.again = {id(section): Finder(section.open) for section in marked}
        sections = calls.sections if calls.anywhere else ()
        ends = _flat((*section.close, section.item_close) for section in sections)
        self.at_boundary = Finder((*self.opens, *self.closes, *self.silent, *longer, *ends))

    def _find_after_calls(self, calls: ToolDialect) -> None:
        """Find what may follow a call of each section, which is known by its identity."""
        self.closers = {id(section): Finder(section.close) for section in calls.sections if section.close}
        self.after_broken = {
            id(section): Finder((*section.close, section.item_close, *self.sections))
            for section in calls.sections
        }
        self.json_ends = {
            key: Finder(marker for marker in ends.markers if len(marker) > 1 and marker[0] != "{")
            for key, ends in self.after_broken.items()
        }
        self.stray: dict[int, Finder] = {}
        self.owed_in_text: dict[int, Finder] = {}
        self.owed_in_thought: dict[int, Finder] = {}
        for section in calls.sections:
            key, call_format = id(section), section.call_format
            self.stray[key] = Finder((section.item_close, *call_format.ends, "```" if section.close else ""))
            closers = tuple(filter(is_markup, section.close))
            self.owed_in_text[key] = Finder((*self.to_markup.markers, *closers), least=2)
            self.owed_in_thought[key] = Finder((*self.in_thought.markers, *closers), least=2)
        ends = _flat((*s.close, s.item_close, *s.call_format.ends) for s in calls.sections)
        self.after_call = Finder((*self.at_boundary.markers, *filter(is_markup, ends)))
        # Texts around answers that begin like what stands between two calls (functionary: `>>>all` and `>>>`).
        self.headers: dict[int, Finder] = {}
        for section in calls.sections:
            between = section.between.strip()
            headers = [text for text in self.silent if text.startswith(between) and text != between]
            if between and headers:
                self.headers[id(section)] = Finder(headers)


def is_control(text: str) -> bool:
    """Whether a text is a control token, or ends with one, by the bars that families write these with."""
    return "|" in text or "\uff5c" in text


def is_markup(text: str) -> bool:
    """Whether a text is the end of markup that no prose has, unlike a bracket or a fence."""
    return len(text) > 2 and text[0] in "<[]◁"


def is_tag(text: str) -> bool:
    """Whether a text is markup that is whole by itself, unlike `<function=`."""
    return is_markup(text) and text[-1] in ">]"


def _flat(texts: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(texts))
