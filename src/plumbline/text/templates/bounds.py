"""Bound the time and the joins of a template: an endless loop ends with an error, and not with a thread that is lost.

Templates have no `while`, but loops within loops and macros that call themselves can run for years. So each pass of a
loop and each call of a macro counts a step, and every so many steps the clock of the thread is read. `~` becomes a call
that checks the length of its result, as `sizes.py` does for other operations.
"""

from __future__ import annotations

import time

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

__all__ = ["JOIN", "STEP", "Steps", "bounded"]

STEP = "__step__"
"""The variable that counts; templates may not use the name."""
JOIN = "__join__"
"""The function that joins texts; templates may not use the name."""
_SECONDS = 10.0
"""CPU time of the thread that renders. A conversation of 10 MiB takes about a second."""
_BETWEEN = 1024
"""Steps between looks at the clock."""


class Steps:
    """Count the steps of one rendering."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._until = time.thread_time() + seconds
        self._left = _BETWEEN

    def __call__(self) -> None:
        """Count a step.

        Raises:
            TemplateError: of jinja2, when the rendering has used its time.
        """
        self._left -= 1
        if not self._left:
            self._left = _BETWEEN
            if time.thread_time() > self._until:
                raise jinja2.TemplateError(f"it took more than {self._seconds:g} s of CPU time")


def bounded(tree: nodes.Template) -> nodes.Template:
    """Make the loops and macros of a syntax tree count their steps, and its joins check their lengths.

    Raises:
        TemplateSyntaxError: of jinja2, if the template uses the name of the counter or of the function that joins.
    """
    named: list[nodes.Name | nodes.Macro] = [*tree.find_all(nodes.Name), *tree.find_all(nodes.Macro)]
    for found in named:
        if found.name in (STEP, JOIN):
            raise jinja2.TemplateSyntaxError(f"the name {found.name} is reserved", found.lineno)
    loops: list[nodes.For | nodes.Macro | nodes.CallBlock] = [
        *tree.find_all(nodes.For),
        *tree.find_all(nodes.Macro),
        *tree.find_all(nodes.CallBlock),
    ]
    for each in loops:
        call = nodes.Call(nodes.Name(STEP, "load"), [], [], None, None)
        if isinstance(each, nodes.For) and each.test is not None:
            each.test = nodes.Or(
                call, each.test
            )  # Its condition is evaluated for items that it leaves out, too.
        else:
            each.body.insert(0, nodes.ExprStmt(call).set_lineno(each.lineno))
    _Joins().visit(tree)
    return tree


class _Joins(NodeTransformer):
    """Replaces `~` by a call."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802 - The name of the node.
        """Return the call."""
        self.generic_visit(node)
        call = nodes.Call(nodes.Name(JOIN, "load"), node.nodes, [], None, None)
        call.set_lineno(node.lineno)
        return call
