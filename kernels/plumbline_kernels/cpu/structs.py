"""Declare structures once, as annotated classes: they become ctypes structures and a header of C++.

A library that includes the header exports where its compiler has put each field; `difference` compares that.
"""

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

__all__ = ["KernelOperation", "Struct", "declare", "difference", "header", "operations", "places"]

_NUMBERS: dict[str, Any] = {"int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "float": ctypes.c_float}
_PLAIN = {int: "int64_t", bool: "int32_t", float: "float"}

_structs: "list[type[Struct]]" = []
_S = TypeVar("_S", bound="type[Struct]")


class Struct(ctypes.Structure):
    """A structure. Tensors, arrays and sequences of structures are pointers to what they have, and are kept alive."""

    types: ClassVar[dict[str, str]]
    """The C++ types of the fields."""
    pointers: ClassVar[frozenset[str]]
    """The fields that are pointers."""
    defaults: ClassVar[dict[str, Any]]
    """The values of fields by default, but those that are zeros."""
    kept: list[object]
    """What the structure points to."""

    def __init__(self, **values: Any) -> None:
        # Each step makes those of its logits and draws: this must not take a tenth of a small model's step.
        super().__init__()
        self.kept = []
        for name, value in self.defaults.items():
            if name not in values:
                self.put(name, value)
        for name, value in values.items():
            self.put(name, value)

    def put(self, name: str, value: Any) -> None:
        """Set a field; None leaves the zeros of a new structure."""
        if value is None:
            return
        self.kept.append(value)
        setattr(self, name, self._address(value) if name in self.pointers else value)

    def _address(self, value: Any) -> int:
        if hasattr(value, "data_ptr"):
            return int(value.data_ptr())
        if isinstance(value, (list, tuple)):
            value = (type(value[0]) * len(value))(*value)
            self.kept.append(value)
        return ctypes.addressof(value) if isinstance(value, ctypes.Array) else int(value)


class KernelOperation(Struct):
    """A structure that describes an operation of a program; its place among them is its kind."""

    buffers: ClassVar[int] = 1
    """How many results of a width are kept apart."""


@dataclass_transform(kw_only_default=True)
def declare(cls: _S) -> _S:
    """Add a class to the table. `Annotated` has the C++ type where Python's does not say it; T is the model's type."""
    declared = cls.__annotations__
    cls.types = {name: _type(kind) for name, kind in declared.items()}
    cls.pointers = frozenset(name for name, c_type in cls.types.items() if c_type.endswith("*"))
    # Those that are not zeros, as a new structure is.
    cls.defaults = {name: cls.__dict__[name] for name in declared if cls.__dict__.get(name)}
    cls._fields_ = [(name, _field(kind)) for name, kind in declared.items()]
    _structs.append(cls)
    return cls


def _kind(declared: Any) -> Any:
    return declared.__metadata__[0] if hasattr(declared, "__metadata__") else declared


def _type(declared: Any) -> str:
    kind = _kind(declared)
    return kind if isinstance(kind, str) else _PLAIN.get(kind) or _name(kind)


def _name(cls: type[Struct]) -> str:
    """Return the name of a structure in C++."""
    return cls.__name__.removesuffix("Struct")


def _field(declared: Any) -> Any:
    c_type = _type(declared)
    return ctypes.c_void_p if c_type.endswith("*") else _NUMBERS.get(c_type, _kind(declared))


def operations() -> "list[type[KernelOperation]]":
    """Return the operations; their places are their kinds."""
    return [cls for cls in _structs if issubclass(cls, KernelOperation)]


def _is_template(cls: type[Struct]) -> bool:
    return any(c_type in ("T*", "const T*") for c_type in cls.types.values())


def _places(constants: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
    """Yield what a library exports: a name, its value in C++, and its value here."""
    for name, number in constants.items():
        yield name, name, number
    for kind, operation in enumerate(operations()):
        yield f"the kind of {_name(operation)}", str(kind), kind
    for cls in _structs:
        name = _name(cls) + ("<float>" if _is_template(cls) else "")
        for field, c_type in cls.types.items():
            at = getattr(cls, field).offset
            yield f"{_name(cls)}.{field} ({c_type})", f"(int64_t)offsetof({name}, {field})", at
        yield f"the size of {_name(cls)}", f"(int64_t)sizeof({name})", ctypes.sizeof(cls)


def places(constants: Mapping[str, int]) -> dict[str, int]:
    """Return the constants, the kinds of operations, and the places of fields, as this process has them."""
    return {name: here for name, _, here in _places(constants)}


def difference(found: Mapping[str, int], wanted: Mapping[str, int]) -> str | None:
    """Return the first thing that is elsewhere in a library than here; None if all is the same."""
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            return f"{name} is {found.get(name, 'missing')} there, and {wanted.get(name, 'missing')} here"
    return None


def header(constants: Mapping[str, int]) -> str:
    """Write the constants, the structures, a switch over the operations, and the places of all of it in C++."""
    lines = [
        "// Written by structs.py from layout.py.",
        "#pragma once",
        "#include <cstddef>",
        "#include <cstdint>",
    ]
    lines += [f"constexpr int {name} = {number};" for name, number in constants.items()]
    for cls in _structs:
        template = "template <typename T> " if _is_template(cls) else ""
        fields = " ".join(f"{c_type} {name};" for name, c_type in cls.types.items())
        lines.append(f"{template}struct {_name(cls)} {{ {fields} }};")
    lines.append(
        "template <typename T, typename Run> void dispatch(int64_t kind, const void* operation, Run& run) {"
    )
    lines.append("  switch (kind) {")
    for kind, operation in enumerate(operations()):
        lines.append(f"    case {kind}: return run(*(const {_name(operation)}<T>*)operation);")
    lines += ["  }", "}", "struct Place { const char* name; int64_t at; };", "constexpr Place PLACES[] = {"]
    lines += [f'  {{"{name}", {there}}},' for name, there, _ in _places(constants)]
    return "\n".join([*lines, "};", ""])
