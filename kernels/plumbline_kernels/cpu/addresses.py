"""Name the types of the fields of structures that are tensors, or their addresses."""

from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Anything", "Floats", "Ints", "Out", "Rows", "Shorts"]

Rows = Annotated["Tensor | int | None", "const T*"]
Out = Annotated["Tensor | int | None", "T*"]
Anything = Annotated["Tensor | int | None", "const void*"]
Floats = Annotated["Tensor | int | None", "const float*"]
Ints = Annotated["Tensor | int | None", "const int64_t*"]
Shorts = Annotated["Tensor | int | None", "const int32_t*"]
