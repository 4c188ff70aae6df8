"""Write calls in tags that are nearly right."""

from __future__ import annotations

import json
import re

from plumbline.answer.dialects.formats.elements import ElementCall
from plumbline.answer.dialects.formats.tagged import TaggedCall
from plumbline.answer.dialects.formats.tags import element
from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Section, ToolDialect
from support.parsing.defects import PARIS, Defects, around, meant

__all__ = ["elements", "tags"]


def tags(tool: ToolDialect) -> Defects:
    """Tags that are nearly right."""
    section = tool.sections[0]
    if not isinstance(section.call_format, TaggedCall):
        return
    tag = section.call_format
    text = render_calls([PARIS], section)
    last = text.rindex(tag.end)
    yield "no end of the last value", text[:last].rstrip("\n") + text[last + len(tag.end) :], meant(PARIS)
    if tag.end.endswith(">") and tag.end.startswith("</"):
        yield "a cut end", f"{text[: last + len(tag.end) - 1]}\n{text[last + len(tag.end) :]}", meant(PARIS)
        name = re.split(r"\W", tag.end[:-1])[-1]
        short = tag.end.replace(f"{name}>", f"{name[:5]}>")
        for wrong in (f"{tag.end[:-2]}>", f"{tag.end[:-3]}{tag.end[-2]}>", f"{tag.end[:-1]}s>", short):
            yield "misspelled ends", text.replace(tag.end, wrong), meant(PARIS)
        for other in ("city", "days"):
            yield (
                "the end of a parameter's name",
                text.replace(tag.end, tag.end.replace(f"{name}>", f"{other}>")),
                meant(PARIS),
            )
        like = f"a{tag.end[:-1]}s>b"
        inner = render_calls([WrittenCall("get", json.dumps({"city": like, "days": 3}))], section)
        yield "a tag like the end inside a value", inner, [("get", {"city": like, "days": 3})]
    if " " in tag.other_key and (plain := f"</{tag.other_key.split()[0][1:]}>") != tag.end:
        other = text.replace(tag.key, tag.other_key)
        yield "the plain beginning of a parameter", other, meant(PARIS)
        yield "plain tags of parameters", other.replace(tag.end, plain), meant(PARIS)
    if not tag.typed:
        first = text.index(tag.end)
        before = text[:first].rstrip("\n") if tag.wrapped or not tag.newline else text[:first]
        yield "no end of the first value", before + text[first + len(tag.end) :], meant(PARIS)
    yield from doubled(section, tag, text)
    if tag.close:
        yield "no end of the call", text.replace(tag.close, ""), meant(PARIS)
        yield "the end of the call twice", text.replace(tag.close, f"{tag.close}\n{tag.close}"), meant(PARIS)
        if tag.close.startswith("</"):
            yield (
                "an end of another element",
                text.replace(tag.close, f"{tag.close}\n</function_invocation>"),
                meant(PARIS),
            )
    close = "".join(section.close[:1])
    for size in range(2, len(close)):
        yield "an end that breaks off", text.removesuffix(close) + close[:size], meant(PARIS)
    if tag.close:
        for inside in (f"a{tag.close}\n{close}\nb", f"{tag.open}x>\n{tag.close}\n{close}", f"a {close}\nb"):
            for given in ({"city": inside, "days": 3}, {"days": 3, "city": inside}):
                inner = render_calls([WrittenCall("get", json.dumps(given))], section)
                yield "ends of calls inside a value", inner, [("get", given)]
    inner = render_calls([WrittenCall("get", json.dumps({"city": f"a{tag.end}b", "days": 3}))], section)
    yield "an end inside a value", inner, [("get", {"city": f"a{tag.end}b", "days": 3})]
    for marker in filter(
        lambda one: one[-1] in ">]", section.open + (section.item_open,) * bool(section.item_open)
    ):
        for inside in (
            f"a{tag.end}{marker}b",
            f"a{tag.end}{tag.newline}{marker}\nb",
            f"a{tag.end}{marker}",
            f"use {marker}\nb",
            f"a\n{marker}\nb",
            f"a{tag.end} {marker}<b>",
            f"a{marker}{tag.open}",
            f"{marker}{tag.open}",
        ):
            inner = render_calls([WrittenCall("get", json.dumps({"city": inside, "days": 3}))], section)
            yield "the beginning of calls inside a value", inner, [("get", {"city": inside, "days": 3})]
            inner = render_calls([WrittenCall("get", json.dumps({"city": inside}))], section)
            yield "the beginning of calls in the last value", inner, [("get", {"city": inside})]
    for written, key in ((tag.open, "get"), (tag.key, "city"), (tag.key, "days")):
        if written.endswith('="') and written.startswith("<") and "|>" not in written:
            for quotes in ("''", "\u201c\u201d", "  "):
                changed = text.replace(f'{written}{key}"', f"{written[:-1]}{quotes[0]}{key}{quotes[1]}")
                yield f"{quotes} around {key}", changed, meant(PARIS)
        elif written.endswith("=") and written.startswith("<"):
            yield "a colon", text.replace(f"{written}{key}", f"{written[:-1]}: {key}"), meant(PARIS)
            for shape in ('"{}"', "'{}'", ' "{}"'):
                yield shape, text.replace(f"{written}{key}", written + shape.format(key)), meant(PARIS)
            named = text.replace(f"{written}{key}>", f'{written[:-1]} name="{key}">')
            yield "an attribute", named, meant(PARIS)
    if tag.value_open:
        yield "no beginning of a value", text.replace(tag.value_open, "", 1), meant(PARIS)
    if not tag.open and not tag.opened:
        yield "no beginning of a name", text.replace(tag.newline + tag.key, "", 1), meant(PARIS)
        yield "a space for it", text.replace(tag.newline + tag.key, " ", 1), meant(PARIS)
    ping = render_calls([WrittenCall("ping", "{}")], section)
    place = ping.index("ping") + len("ping")
    place = ping.index(tag.opened, place) + len(tag.opened) if tag.opened else place
    yield "an end of a value behind the name", ping[:place] + tag.end + ping[place:], [("ping", {})]
    if tag.wrapper:
        again = text.replace(tag.newline + tag.key, tag.wrapper, 1)
        yield "the beginning of a call for the first parameter's", again, meant(PARIS)
    begun = tag.write(WrittenCall("get", "{}")).removesuffix(tag.close)
    yield "JSON for the parameters", around(section, f"{begun}{PARIS.arguments}{tag.close}"), meant(PARIS)
    for name in ("arguments", "args", "input", "parameters", "params"):
        wrapped = f'{{"{name}": {PARIS.arguments}}}'
        yield "JSON in a name for it", around(section, f"{begun}{wrapped}{tag.close}"), meant(PARIS)
        for text in (wrapped, json.dumps({name: PARIS.arguments})):
            inner = render_calls([WrittenCall("get", text)], section)
            yield "a parameter around the others", inner, meant(PARIS)
        inner = render_calls([WrittenCall("shout", json.dumps({name: "ls -la"}))], section)
        yield "a parameter for the only one", inner, [("shout", {"text": "ls -la"})]
        for value in ({"city": "Paris", "other": 1}, '{"city": "Par'):
            inner = render_calls([WrittenCall("get", json.dumps({name: value}))], section)
            yield "a parameter that is around no others", inner, [("get", {name: value})]
    if not tag.typed:
        for name in ("days", "tags", "opts"):
            inner = render_calls([WrittenCall("get", json.dumps({name: "", "city": ""}))], section)
            yield "nothing where no text is allowed", inner, [("get", {"city": ""})]


def doubled(section: Section, tag: TaggedCall, text: str) -> Defects:
    """Tags that come twice, that carry the name of the parameter, or that stand inside the value."""
    if tag.is_element:
        yield "the parameter's name in the end", text.replace(tag.end, "</city>", 1), meant(PARIS)
    if tag.value_open:
        for space in ("", "\n"):
            yield "the key's tag twice", text.replace(tag.key, f"{tag.key}{space}{tag.key}"), meant(PARIS)
            ends = f"{tag.key_end}{space}{tag.key_end}"
            yield "the key's end twice", text.replace(tag.key_end, ends), meant(PARIS)
        yield "the key's tag for its end", text.replace(tag.key_end, tag.key, 1), meant(PARIS)
        if tag.is_element:
            yield "the key's end after a value", text.replace(tag.end, tag.end + tag.key_end), meant(PARIS)
            yield (
                "the key's end for the last value's",
                f"{tag.key_end}".join(text.rsplit(tag.end, 1)),
                meant(PARIS),
            )
            stray = text.replace(tag.key, tag.key_end + tag.key, 1)
            yield "the key's end before the first key", stray, meant(PARIS)
        glued = f"{tag.end}{tag.newline}{tag.key}days"
        yield "no end before a key in the same line", text.replace(glued, f"{tag.key}days"), meant(PARIS)
    if tag.is_element and (nested := element(tag.value_open or tag.key)):
        value = f"{nested}>\n<b></b>\n{tag.end}"
        inner = render_calls([WrittenCall("get", json.dumps({"city": value, "days": 3}))], section)
        yield "an element like the value's inside it", inner, [("get", {"city": value, "days": 3})]


def elements(tool: ToolDialect) -> Defects:
    """Elements of MiniMax M3 without one of their tags."""
    section = tool.sections[0]
    if not isinstance(section.call_format, ElementCall):
        return
    tag = section.call_format.tag
    whole = WrittenCall("get", '{"city": "Paris", "days": 3, "tags": ["a", "b"]}')
    text = render_calls([whole], section)
    for name in ("city", "days", "tags", "item", "invoke"):
        yield f"no end of {name}", text.replace(f"{tag}</{name}>", ""), meant(whole)
        if name != "item":
            yield f"another end of {name}", text.replace(f"{tag}</{name}>", f"{tag}</other>"), meant(whole)
    several = text.replace(f"{tag}<tags>", "").replace(f"{tag}</tags>", "")
    yield "elements of the list's own name", several.replace("item>", "tags>"), meant(whole)
    for name in ("city", "days"):
        yield f"no beginning of {name}", text.replace(f"<{name}>", ""), meant(whole)
    yield "JSON", around(section, f'{section.call_format.begins} name="get">{whole.arguments}'), meant(whole)
    for name in ("city", "days", "tags"):
        begun = text.replace(f"{tag}<{name}>", f'{tag}<parameter name="{name}">')
        yield f"M2's tag for {name}", begun, meant(whole)
        yield f"M2's tags for {name}", begun.replace(f"{tag}</{name}>", f"{tag}</parameter>"), meant(whole)
    plain = text.replace(f"{tag}<city>", f'{tag}<parameter name="city">').replace(
        f"{tag}</city>", "</parameter>"
    )
    yield "M2's plain end of a string", plain, meant(whole)
