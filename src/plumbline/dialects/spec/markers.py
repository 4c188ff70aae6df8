"""Prepare the searches for the markers of a tool dialect and a reasoning dialect."""

from __future__ import annotations

from plumbline.dialects.spec.dialect import ReasoningDialect, Section, ToolDialect
from plumbline.dialects.streams.cursor import Finder

__all__ = ["Markers"]


class Markers:
    """The markers of a tool dialect and a reasoning dialect, either of which may be missing. Immutable.

    Attributes:
        sections: for each marker of calls, the sections that begin with it.
        bare: the sections without a marker.
        opening: the beginnings of thinking; `reopening` are those that are dropped within it.
        again: for a section, by its identity, the beginnings that are dropped behind one.
        texts: all texts of the dialects. Those that are control tokens have to come to the parser as text.
    """

    def __init__(self, tool: ToolDialect | None, reasoning: ReasoningDialect | None) -> None:
        self.tool = tool
        self.reasoning = reasoning
        self.sections: dict[str, tuple[Section, ...]] = {}
        self.bare: tuple[Section, ...] = ()
        self.silent = (tool.silent if tool else ()) + (reasoning.silent if reasoning else ())
        if tool is not None:
            for section in tool.sections:
                for marker in filter(None, (*section.open, section.item_open)):
                    self.sections[marker] = (*self.sections.get(marker, ()), section)
            self.bare = tuple(s for s in tool.sections if s.starts and not (s.open or s.item_open))
        starts = "".join(section.starts for section in self.bare)
        self.before_bare = Finder((marker for marker in self.sections if marker[0] in starts), least=2)
        thinks = reasoning is not None and not reasoning.append
        self.opens = reasoning.open if reasoning is not None and thinks else ()
        self.closes = reasoning.close if reasoning is not None and thinks else ()
        anywhere = (*self.opens, *self.closes) if reasoning is not None and reasoning.anywhere else ()
        self.in_text = Finder((*self.sections, *self.silent, *anywhere), least=2)
        self.opening = Finder(self.opens)
        self.reopening = Finder(self.opens if anywhere else ())
        self.header = (tool.header if tool else "") or (reasoning.header if reasoning else "")
        headed = (tool.headed if tool else ()) + (reasoning.headed if reasoning else ())
        self.headed = Finder(headed, least=1 if self.header else 2)
        # Markers of calls that begin like a text around answers (muse: `<|message|><atem:function_calls>`).
        longer = [marker for marker in self.sections if self.silent and marker.startswith(self.silent)]
        sections = tool.sections if tool is not None and tool.anywhere else ()
        ends = [end for section in sections for end in (*section.close, section.item_close)]
        self.at_boundary = Finder((*self.opens, *self.closes, *self.silent, *longer, *ends))
        self.again = {id(section): Finder(section.open) for section in sections}
        self.after_silent = Finder((*self.sections, *self.silent, *self.opens, *anywhere, self.header))
        # Amid a line of prose, and in thinking, the model writes about these markers.
        self.at_line = frozenset(
            marker for marker, sections in self.sections.items() if all(s.at_line for s in sections)
        )
        calls = tuple(marker for marker in self.sections if marker not in self.at_line)
        inside = calls if reasoning is not None and reasoning.calls_inside else ()
        following = reasoning.next_message if reasoning is not None else ""
        self.in_thought = Finder((*self.closes, *inside, *self.reopening.markers, following), least=2)
        self.after_broken = {
            id(section): Finder((*section.close, section.item_close, *self.sections))
            for section in (tool.sections if tool else ())
        }
        self.texts = (
            frozenset((*self.in_text.markers, *self.at_boundary.markers))
            | frozenset(
                marker
                for section in (tool.sections if tool else ())
                for marker in (*section.close, section.item_close, *section.call_format.markers)
                if marker
            )
            | frozenset(reasoning.markers if reasoning is not None else ())
        )
        # Texts around answers that begin like what stands between two calls (functionary: `>>>all` and `>>>`).
        self.headers = {
            id(section): Finder(headers)
            for section in (tool.sections if tool else ())
            if (between := section.between.strip())
            and (headers := [t for t in self.silent if t.startswith(between) and t != between])
        }
        self.closers = {
            id(section): Finder(section.close) for section in (tool.sections if tool else ()) if section.close
        }
