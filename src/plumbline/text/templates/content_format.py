"""Which form of a message's content a chat template reads: a string, or the list of parts that clients may send.

Templates of text models join strings (`message.content + '\\n'`); templates that grew out of vision models walk over
parts (`for part in message.content`). Given the wrong form, the first print a Python list and the second read a string
letter by letter. The form is found in the template's syntax tree, never by rendering: what a template does with one
conversation says nothing about the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

__all__ = ["ContentForm", "content_format"]

ContentForm = Literal["string", "parts", "either"]
"""`string`: text only. `parts`: always a list. `either`: whatever the client sent, the template tells them apart."""

_FILTERS = frozenset({"list", "rejectattr", "reverse", "selectattr"})
"""Filters that leave a list of parts a list of parts."""


def content_format(template: nodes.Template) -> ContentForm:
    """The form of `content` that this template wants.

    A template wants parts if it loops over a message's content and looks at the type or the text of each part, picks
    parts from it by an attribute, or takes the text of a part by its index; directly, or under a name that it was
    assigned or passed to a macro as. If such a template also asks whether the content is a string, it takes both.
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
    """Every name under which the template speaks of a message's content."""
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
    """Whether this expression is a message's content, as it is or merely filtered by part."""
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
            # A loop that looks at no field of what it walks over may be about any list, such as a tool's result.
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
    """Whether the type or the text of this part is read anywhere here."""
    match node:
        case nodes.Getattr(attr="text" | "type", node=nodes.Name(name=name)) if name == part:
            return True
        case nodes.Getitem(arg=nodes.Const(value="text" | "type"), node=nodes.Name(name=name)) if (
            name == part
        ):
            return True
        case _:
            return any(_reads_field(child, part) for child in node.iter_child_nodes())
