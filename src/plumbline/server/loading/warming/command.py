"""Compile the GPU kernels of a model into Triton's cache on disk, without a GPU (`plumbline warm`)."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import Describe, OptionError
from plumbline_conformance.console.streams import put

if TYPE_CHECKING:
    from rich.console import Console

    from plumbline.server.loading.native.compile_share import Job
    from plumbline.server.settings import Settings

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
        Annotated[int, Meta(ge=1)] | None,
        _kernels("tokens of a request", "N", default="the model's, which includes fewer"),
    ] = None
    lora_rank: Annotated[
        Annotated[int, Meta(ge=0)], _kernels("the largest rank of its adapters", "N", default="no adapters")
    ] = 0
    batch_invariant: Annotated[bool, _kernels("those of a server with --batch-invariant")] = False

    def run(self, out: Console) -> int:
        """Compile them."""
        from plumbline.engines.native.models import UnsupportedModelError
        from plumbline.server.loading.model_files import find_files
        from plumbline.server.loading.native.compilers import CompilerError, Compilers, cache_folder
        from plumbline.server.settings import Settings

        capability = _capability(self.target)
        settings = Settings(models=(("", self.name),), device="cpu")
        folder, gguf = find_files(settings)
        if gguf is not None:
            raise OptionError(
                "MODEL", "must be a model folder: kernels for a GGUF file are compiled when it is loaded"
            )
        began = time.monotonic()
        try:
            job = self._job(settings, folder, capability)
            compiled = Compilers(job).wait()
        except UnsupportedModelError as error:
            raise OptionError("MODEL", f"does not run on a GPU with our engine: {error}") from error
        except CompilerError as error:
            raise OptionError("MODEL", f"has kernels that cannot be compiled: {error}") from error
        what = f"{compiled.new} kernels for sm_{capability} are new, and {compiled.found} were there"
        if not any(compiled):
            what = f"The kernels for sm_{capability} were there"
        put(f"{what}: they are in {cache_folder()} ({time.monotonic() - began:.0f} s).")
        put("On another machine put them there too, or name the folder in TRITON_CACHE_DIR.")
        return 0

    def _job(self, settings: Settings, folder: Path, capability: int) -> Job:
        """Return what a server needs, with the default options but for those of this command.

        Raises:
            UnsupportedModelError: our engine does not run the model on a GPU.
        """
        from plumbline.engines.native.engine_config import GPU_BLOCK_SIZE
        from plumbline.engines.native.models import UnsupportedModelError
        from plumbline.engines.native.models.support import exact_problem, kernels_problem
        from plumbline.server.loading.native.compile_share import Job
        from plumbline.server.loading.native.memory import num_batched_tokens
        from plumbline.server.loading.native.native_model import describe_model

        model = describe_model(settings, folder, None)
        if (problem := kernels_problem(model.description)) is not None:
            raise UnsupportedModelError(problem)
        if self.batch_invariant and (problem := exact_problem(model.description)) is not None:
            raise OptionError("--batch-invariant", f"is not possible for this model on a GPU: {problem}")
        return Job(
            folder=str(folder),
            capability=capability,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=num_batched_tokens(settings),
            block_size=GPU_BLOCK_SIZE,
            max_model_len=self.max_model_len or model.description.context_length,
            dtype=str(model.description.dtype).removeprefix("torch."),
            max_rank=self.lora_rank,
            max_loras=settings.max_loras,
            images=model.images is not None,
            exact=self.batch_invariant,
        )


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
