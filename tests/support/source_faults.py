"""Put faults into Python source: flipped operators, changed constants, dropped statements, swapped fields."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

__all__ = ["Fault", "faults_of", "simple_faults_of"]

FLIPPED: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Eq: ast.NotEq(), ast.NotEq: ast.Eq(), ast.Lt: ast.GtE(), ast.GtE: ast.Lt(), ast.Gt: ast.LtE(),
    ast.LtE: ast.Gt(), ast.In: ast.NotIn(), ast.NotIn: ast.In(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(),
}  # fmt: skip
SHIFTED: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.FloorDiv(), ast.FloorDiv: ast.Mult(),
}  # fmt: skip
DROPPED = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise, ast.Continue, ast.Break, ast.Delete)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Fault(NamedTuple):
    """A change of one expression or statement of a file below `src/plumbline`."""

    path: str
    node: ast.expr | ast.stmt
    new: str
    function: str = ""
    number: int = 1
    """Which of the faults of the file that would have the same name, from the top."""

    def apply(self, source: bytes) -> bytes:
        """Return the source with the fault; positions of nodes count bytes."""
        lines = source.splitlines(keepends=True)
        assert self.node.end_lineno is not None
        start = sum(map(len, lines[: self.node.lineno - 1])) + self.node.col_offset
        end = sum(map(len, lines[: self.node.end_lineno - 1])) + (self.node.end_col_offset or 0)
        return source[:start] + self.new.encode() + source[end:]

    @property
    def place(self) -> str:
        """Return a name of the fault that does not depend on line numbers."""
        name = f"{self.path} {self.function}: {_short(ast.unparse(self.node))} -> {_short(self.new)}"
        return name if self.number == 1 else f"{name} ({self.number})"

    def __str__(self) -> str:
        return f"{self.path}:{self.node.lineno}: {ast.unparse(self.node)!s:.70} -> {self.new:.70}"


def simple_faults_of(path: Path, package: Path) -> Iterator[Fault]:
    """Yield every flipped comparison and dropped statement of the functions of a file."""
    for name, function, node in _nodes(path, package):
        yield from _flipped(name, function, node)
        yield from _dropped(name, function, node)


def faults_of(path: Path, package: Path) -> Iterator[Fault]:
    """Yield every fault that can be put into the functions of a file, each once and with a name of its own."""
    names: Counter[str] = Counter()
    seen: set[tuple[int, int, str]] = set()
    for name, function, node in _nodes(path, package):
        for kind in (_flipped, _dropped, _shifted, _calculated, _decided, _constants, _swapped):
            for fault in kind(name, function, node):
                change = (fault.node.lineno, fault.node.col_offset, fault.new)
                if change not in seen:
                    seen.add(change)
                    names[fault.place] += 1
                    yield fault._replace(number=names[fault.place])


def _nodes(path: Path, package: Path) -> Iterator[tuple[str, str, ast.AST]]:
    """Yield the nodes of all functions, each once, without texts of errors and types of parameters."""
    name = path.relative_to(package).as_posix()
    seen: set[int] = set()
    for function in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(function, _FUNCTIONS):
            left_out = {id(inner) for child in _unjudged(function) for inner in ast.walk(child)}
            for node in ast.walk(function):
                if id(node) not in seen and id(node) not in left_out:
                    seen.add(id(node))
                    yield name, function.name, node


def _unjudged(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Yield parts whose change changes wording or types only: annotations, decorators, texts of errors, f-strings."""
    yield from function.decorator_list
    if function.returns is not None:
        yield function.returns
    for node in ast.walk(function):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield node.exc
        elif isinstance(node, ast.JoinedStr):
            yield node


def _flipped(name: str, function: str, node: ast.AST) -> Iterator[Fault]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        flipped = ast.Compare(node.left, [FLIPPED[type(node.ops[0])]], node.comparators)
        yield Fault(name, node, f"({ast.unparse(flipped)})", function)


def _dropped(name: str, function: str, node: ast.AST) -> Iterator[Fault]:
    if isinstance(node, DROPPED) and not _trivial(node):
        yield Fault(name, node, "pass", function)


def _shifted(name: str, function: str, node: ast.AST) -> Iterator[Fault]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SHIFTED:
        shifted = ast.Compare(node.left, [SHIFTED[type(node.ops[0])]], node.comparators)
        yield Fault(name, node, f"({ast.unparse(shifted)})", function)


def _calculated(name: str, function: str, node: ast.AST) -> Iterator[Fault]:
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        changed = ast.BinOp(node.left, ARITHMETIC[type(node.op)], node.right)
        yield Fault(name, node, f"({ast.unparse(changed)})", function)


def _decided(name: str, function: str, node: ast.AST) -> Iterator[Fault]:
    """Yield `and` for `or`, an operand without its `not`, and conditions that are always or never true."""
    if isinstance(node, ast.BoolOp):
        other = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        yield Fault(name, node, f"({ast.unparse(other)})", function)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield Fault(name, node, f"({ast.unparse(node.operand)})", function)
    elif isinstance(node, ast.If | ast.IfExp):
        for value in ("True", "False"):
            yield Fault(name, node.test, value, function)


def _constants(name: str, function: str, node: ast.AST) -> Iterator[Fault]:
    """Yield another value for each number, text and truth value that is not a docstring."""
    if not isinstance(node, ast.Constant) or not hasattr(node, "lineno"):
        return
    match node.value:
        case bool():
            yield Fault(name, node, str(not node.value), function)
        case int() | float():
            yield Fault(name, node, repr(node.value + 1), function)
        case str() if node.value and "\n" not in node.value and " " not in node.value:
            yield Fault(name, node, repr(node.value + "x"), function)
        case _:
            return


def _swapped(name: str, function: str, node: ast.AST) -> Iterator[Fault]:
    """Yield calls in which two neighbouring keyword arguments have each other's value."""
    if not isinstance(node, ast.Call):
        return
    for number, (one, other) in enumerate(pairwise(node.keywords)):
        if one.arg is None or other.arg is None or ast.dump(one.value) == ast.dump(other.value):
            continue
        changed = copy.deepcopy(node)
        first, second = changed.keywords[number], changed.keywords[number + 1]
        first.value, second.value = second.value, first.value
        yield Fault(name, node, ast.unparse(changed), function)


def _trivial(node: ast.stmt) -> bool:
    """Whether the statement is a docstring, or binds names that whatever follows would miss."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:99]}…"
