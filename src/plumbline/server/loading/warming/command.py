"""Compile the GPU kernels of a model into Triton's cache on disk, without a GPU (`plumbline warm`)."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import Describe, OptionError
from plumbline_conformance.console.streams import put

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["WarmCommand"]

_kernels = partial(Describe, "kernels")


class WarmCommand(Command, frozen=True, kw_only=True):
    """Compile the GPU kernels of a model into Triton's cache, which needs no GPU and can be copied to another machine.

    The cache is found by the source of the kernels, the release of Triton and the GPU.
    """

    example = "plumbline warm Qwen/Qwen3-0.6B --target sm_90"
    extra = "serve"

    name: Annotated[str, _kernels("a model folder or its name on the hub", "MODEL", positional=True)]
    target: Annotated[
        str | None,
        _kernels("the GPU's architecture, such as sm_90", "sm_N", default="that of this machine's GPU"),
    ] = None
    max_model_len: Annotated[
        int | None, _kernels("tokens of a request", "N", default="the model's, which includes fewer")
    ] = None

    def run(self, out: Console) -> int:
        """Compile them."""
        from plumbline.engines.native.models import UnsupportedModelError
        from plumbline.server.loading.model_files import find_files
        from plumbline.server.settings import Settings

        capability = _capability(self.target)
        settings = Settings(models=(("", self.name),), device="cpu")
        folder, gguf = find_files(settings)
        if gguf is not None:
            raise OptionError("MODEL", "must be a model folder: llama.cpp runs GGUF files on a GPU")
        began = time.monotonic()
        try:
            count = compile_model(folder, capability, self.max_model_len)
        except UnsupportedModelError as error:
            raise OptionError("MODEL", f"does not run on a GPU with our engine: {error}") from error
        cache = os.environ.get("TRITON_CACHE_DIR") or Path("~/.triton/cache").expanduser()
        put(f"{count} kernels for sm_{capability} are in {cache} ({time.monotonic() - began:.0f} s).")
        put("On another machine put them there too, or name the folder in TRITON_CACHE_DIR.")
        return 0


def _capability(target: str | None) -> int:
    """Return the compute capability of a target such as sm_90.

    Raises:
        OptionError: it is none that our kernels compile for, or there is no GPU to take the place of one.
    """
    import torch

    from plumbline_kernels._backend import capability_of
    from plumbline_kernels.devices import gpu_problem

    if target is None:
        if not torch.cuda.is_available():
            raise OptionError("--target", "must be given where torch finds no GPU, such as --target sm_90")
        return capability_of(torch.device("cuda"))
    number = target.removeprefix("sm_").rstrip("a")
    if not (target.startswith("sm_") and number.isdecimal()):
        raise OptionError("--target", f"must be an architecture such as sm_90, got {target}")
    if (problem := gpu_problem(int(number))) is not None:
        raise OptionError("--target", f"is {target}, and {problem}")
    return int(number)


def compile_model(folder: Path, capability: int, max_model_len: int | None = None) -> int:
    """Compile what steps of a model need, in parallel; returns the number of variants.

    Layers of a kind need the same, so only the first ones are loaded.

    Raises:
        UnsupportedModelError, WeightsError: our engine does not run it.
    """
    import torch
    import triton

    from plumbline.engines.native.engine_config import EngineConfig
    from plumbline.engines.native.graphs import Capture, CompileRecorder
    from plumbline.engines.native.models import load_model
    from plumbline.engines.native.runner import ModelRunner
    from plumbline.engines.native.warm import warm_up
    from plumbline.server.settings import Settings
    from plumbline_kernels._backend import num_compiled
    from plumbline_kernels.without_gpu import compiling_for

    before = num_compiled()
    with (
        compiling_for(capability),
        ThreadPoolExecutor() as threads,
        triton.AsyncCompileMode(threads),
        torch.inference_mode(),
    ):
        model = load_model(folder, max_model_len=max_model_len, sample=True)
        length, rows = max_model_len or model.description.context_length, Settings().max_num_seqs
        blocks = -(-length // EngineConfig(max_model_len=1).block_size)
        config = EngineConfig(max_model_len=length, num_blocks=blocks, max_num_seqs=rows)
        runner = ModelRunner(
            model,
            num_blocks=1,
            block_size=config.block_size,
            device=torch.device("cpu"),
            num_states=1,
            capture=Capture(CompileRecorder(), rows, blocks),
        )
        assert runner.graphs is not None
        runner.graphs.record_all()
        warm_up(runner, config)
    return num_compiled() - before
