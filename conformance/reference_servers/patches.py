"""Patch installed servers so that they start on a machine without a GPU.

A patch does not change code that answers requests: it only removes parts that a CPU cannot load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

__all__ = ["PATCHES", "without_registrations"]

_STAND_IN = '''"""Stand in for SGLang's kernels: the paths of a CPU import some of them, and call none."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*arguments, **named):
        raise NotImplementedError(f"sgl_kernel.{name} is a stand-in")

    return absent
'''


def _sglang(packages: Path) -> None:
    """Let SGLang start without its kernels.

    1. The distribution `sglang-kernel` has kernels for CUDA only. In its place comes a package `sgl_kernel` whose
       members can be imported, and raise NotImplementedError where they are called.
    2. torchvision registers shapes for operations of its own binary, which does not load beside a CPU build of torch.
       Its `_meta_registrations.py` is cut before the first of these registrations.
    """
    package = packages / "sgl_kernel"
    package.mkdir()
    (package / "__init__.py").write_text(_STAND_IN, "utf-8")
    without_registrations(packages)


def without_registrations(packages: Path) -> None:
    """Let torchvision be imported with a CPU build of torch; `_sglang` explains the cut."""
    registrations = packages / "torchvision" / "_meta_registrations.py"
    kept, _, _ = registrations.read_text("utf-8").partition("@torch.library.register_fake")
    registrations.write_text(kept, "utf-8")


PATCHES: Mapping[str, Callable[[Path], None]] = MappingProxyType({"sglang": _sglang})
"""By server; each gets the folder of its packages."""
