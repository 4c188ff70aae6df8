"""Compile kernels for a GPU that is not there, by launching them on CPU tensors.

Launches bind their arguments and look their variant up as on that GPU, and run nothing: results are whatever was in
memory. So Triton's cache on disk can be filled where no GPU is (`plumbline warm`), and tests count variants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from plumbline_kernels import _backend

__all__ = ["compiling_for"]


class _Driver:
    """A driver of Triton without a device."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_device(self) -> int:
        """There is one."""
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        """There is one."""
        return 0

    def get_current_target(self) -> Any:
        """Return the GPU that is compiled for."""
        return self._target


@contextmanager
def compiling_for(
    capability: int,
    compiled: Callable[[str], None] | None = None,
    launched: Callable[[str], None] | None = None,
    is_mine: Callable[[str, str], bool] | None = None,
) -> Iterator[None]:
    """Send the kernels that are launched in this context to the compiler for a GPU, and to no device.

    Args:
        capability: of the GPU, such as 90.
        compiled: is called with the name of a kernel in the place of the compiler.
        launched: is called with its name in the place of a launch.
        is_mine: returns whether to compile a variant, by the name of its kernel and its key, which is the same in every
            process.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run
    used: set[Any] = set()

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **options: Any) -> Any:
        if launched is not None:
            launched(kernel.fn.__name__)
            return None
        if kernel not in used:
            used.add(kernel)
            kernel.device_caches.clear()
        return launch(kernel, *args, grid=grid, warmup=True, **options)

    do_compile = JITFunction._do_compile

    def compile_some(kernel: Any, key: Any, signature: Any, device: int, *more: Any) -> object:
        name = kernel.fn.__name__
        if compiled is None and (is_mine is None or is_mine(name, str(key))):
            return do_compile(kernel, key, signature, device, *more)
        found = kernel.device_caches[device][0][key] = object()
        if compiled is not None:
            _backend.note_compiled(name)
            compiled(name)
        return found

    # Triton asks for a driver at its first use of the active one, which fails without a GPU.
    before = driver._active
    driver.set_active(_Driver(GPUTarget("cuda", capability, 32)))
    try:
        with (
            patch.object(JITFunction, "run", run),
            patch.object(JITFunction, "_do_compile", compile_some),
            patch.multiple(_backend, _FORCED=True, _CAPABILITY=capability),
        ):
            yield
    finally:
        for kernel in used:
            kernel.device_caches.clear()
        driver._active = before
