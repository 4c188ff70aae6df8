"""Detect whether a chat template expects message content as a string or as a list of parts.

Templates of text models join strings (`message.content + '\\n'`); templates that grew out of vision models walk over
parts (`for part in message.content`). Given the wrong format, the first print a Python list and the second loop over
the characters of a string. The format is detected in the template's syntax tree and not by rendering, because one
rendered conversation does not show what the template does with another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

__all__ = ["ContentFormat", "content_format"]

ContentFormat = Literal["string", "parts", "either"]
"""`string`: text only. `parts`: always a list. `either`: the template accepts both."""

_FILTERS = frozenset({"list", "rejectattr", "reverse", "selectattr"})
"""Filters that return a list of parts for a list of parts."""


def content_format(template: nodes.Template) -> ContentFormat:
    """Return the format of `content` that this template expects.

    A template expects parts if it loops over a message's content and reads the type or text of each part, selects parts
    by an attribute, or reads the text of a part by index; directly, or through a variable or macro argument. If such a
    template also tests whether the content is a string, it accepts both.
    """
    names = _names(template)
    if not any(_reads_parts(node, names) for node in _walk(template)):
        return "string"
    tells_apart = any(
        test.name in ("string", "iterable", "sequence", "mapping") and _is_content(test.node, names)
        for test in template.find_all(nodes.Test)
    )
    return "either" if tells_apart else "parts"


def _walk(node: nodes.Node) -> Iterator[nodes.Node]:
    for child in node.iter_child_nodes():
        yield child
        yield from _walk(child)


def _names(template: nodes.Template) -> set[str]:
    """Return every name by which the template refers to a message's content."""
    macros = {macro.name: macro for macro in template.find_all(nodes.Macro)}
    names: set[str] = set()
    while True:
        found = {
            assign.target.name
            for assign in template.find_all(nodes.Assign)
            if isinstance(assign.target, nodes.Name) and _is_content(assign.node, names)
        }
        for call in template.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name in macros:
                parameters = macros[call.node.name].args
                given = zip(parameters, call.args, strict=False)
                found |= {parameter.name for parameter, value in given if _is_content(value, names)}
        if found <= names:
            return names
        names |= found


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    """Return whether this expression is a message's content, possibly with some parts filtered out."""
    match node:
        case nodes.Name(name=name):
            return name in names
        case nodes.Getattr(attr="content"):
            return True
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Call(node=nodes.Getattr(attr="get"), args=[nodes.Const(value="content"), *_]):
            return True
        case nodes.Filter(name=name, node=inner) if name in _FILTERS:
            return _is_content(inner, names)
        case nodes.CondExpr(expr1=first, expr2=second):
            return _is_content(first, names) or _is_content(second, names)
        case nodes.Or(left=left, right=right):
            return _is_content(left, names) or _is_content(right, names)
        case _:
            return False


def _reads_parts(node: nodes.Node, names: set[str]) -> bool:
    match node:
        case nodes.For(iter=iterated, target=nodes.Name(name=part), body=body):
            # A loop that reads no field of its items may be over any list, such as a tool's result.
            return _is_content(iterated, names) and any(_reads_field(inside, part) for inside in body)
        case nodes.Filter(name="selectattr" | "rejectattr", node=inner):
            return _is_content(inner, names)
        case nodes.Getattr(attr="text", node=nodes.Getitem(arg=nodes.Const(value=int()), node=inner)):
            return _is_content(inner, names)
        case nodes.Getitem(
            arg=nodes.Const(value="text"), node=nodes.Getitem(arg=nodes.Const(value=int()), node=inner)
        ):
            return _is_content(inner, names)
        case _:
            return False


def _reads_field(node: nodes.Node, part: str) -> bool:
    """Return whether the type or text of this part is read in these nodes."""
    match node:
        case nodes.Getattr(attr="text" | "type", node=nodes.Name(name=name)) if name == part:
            return True
        case nodes.Getitem(arg=nodes.Const(value="text" | "type"), node=nodes.Name(name=name)) if (
            name == part
        ):
            return True
        case _:
            return any(_reads_field(child, part) for child in node.iter_child_nodes())
