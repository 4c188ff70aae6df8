"""Laws of the processes that compile kernels before a model needs them.

* Every variant is in one share, and adapters have variants of their own.
* What has been compiled is found again by its content: a warm cache means that a start compiles nothing.
* A process that dies or hangs is an error that names the kernel, and ends the others. So does a load that fails.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from plumbline.cli import main
from plumbline.engines.native.engine_config import GPU_BLOCK_SIZE
from plumbline.engines.native.models import WeightsError
from plumbline.port.progress import LoadProgress, watched
from plumbline.server.loading.native import compilers as ahead
from plumbline.server.loading.native import native_loader
from plumbline.server.loading.native.compile_share import Job, compile_share
from plumbline.server.loading.native.compilers import Compiled, CompilerError, Compilers
from plumbline.server.settings import Settings

triton = pytest.importorskip("triton")

SHAPE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 8192,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    config = AutoConfig.for_model("qwen3", **SHAPE)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture
def job(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(triton.knobs.compilation, "listener", None)
    return Job(
        folder=str(model),
        capability=90,
        max_num_seqs=16,
        max_num_batched_tokens=256,
        block_size=16,
        max_model_len=512,
        dtype="bfloat16",
    )


def variants(monkeypatch: pytest.MonkeyPatch, job: Job, share: int = 0, count: int = 1) -> Counter[str]:
    """Return the variants of a share, which are not compiled."""
    found: Counter[str] = Counter()

    def note(kernel: Any, key: Any, signature: Any, device: int, *_: Any) -> object:
        found[f"{kernel.fn.__name__} {key}"] += 1
        placed = kernel.device_caches[device][0][key] = object()
        return placed

    with monkeypatch.context() as patch:
        patch.setattr(triton.runtime.jit.JITFunction, "_do_compile", note)
        compile_share(job, share, count)
    return found


def test_every_variant_is_in_one_share(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = variants(monkeypatch, job)
    assert len(whole) == whole.total() >= 10
    shares = [variants(monkeypatch, job, share, 3) for share in range(3)]
    assert sum(shares, Counter()) == whole
    assert all(shares)


@pytest.mark.long
def test_adapters_have_variants_of_their_own(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    more = variants(monkeypatch, msgspec.structs.replace(job, max_rank=8, max_loras=4))
    added = more - variants(monkeypatch, job)
    assert added
    assert {name.split()[0] for name in added} >= {"_shrink_kernel", "_expand_kernel"}


@pytest.mark.long
def test_exact_batches_have_variants_of_their_own(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = variants(monkeypatch, msgspec.structs.replace(job, exact=True))
    assert any("exact" in name.split()[0] for name in exact - variants(monkeypatch, job))


SAYS = "import os, signal, sys, time; print('begins attend_kernel', flush=True); "


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "the kernel attend_kernel was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the kernel attend_kernel was killed by SIGSEGV$"),
        ("sys.exit(3)", "the kernel attend_kernel failed with status 3"),
        ("time.sleep(100)", "the kernel attend_kernel has not ended within"),
    ],
)
def test_a_process_that_dies_or_hangs_is_an_error_that_names_the_kernel(
    then: str, message: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "usable_cores", lambda: 2)
    # The other one has not ended yet.
    program = f"import sys, time; sys.argv[1] == '1' and time.sleep(100); {SAYS}{then}"
    began = time.monotonic()
    compilers = Compilers(job, (sys.executable, "-c", program), silent=1.0 if "sleep(100)" in then else 50.0)
    with pytest.raises(CompilerError, match=message):
        compilers.wait()
    assert time.monotonic() - began < 20
    assert all(each.process.poll() is not None for each in compilers._processes)
    assert not [*ahead.cache_folder().glob("plumbline-*")], "what failed has not been compiled"


def test_a_load_that_fails_ends_the_processes(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers = Compilers(job, (sys.executable, "-c", "import time; time.sleep(100)"))
    monkeypatch.setattr(native_loader, "_compilers", lambda *_: compilers)
    folder = shutil.copytree(job.folder, tmp_path / "damaged")
    os.truncate(folder / "model.safetensors", 1000)

    with pytest.raises(WeightsError):
        native_loader.build_native(Settings(), "model", folder, None, lambda *_: None, lambda _: [])
    assert compilers._processes
    assert all(each.process.poll() is not None for each in compilers._processes)


@pytest.mark.parametrize("option", [("--max-model-len", "0"), ("--lora-rank", "-1")])
def test_limits_that_are_none_are_refused_before_a_process_begins(
    option: tuple[str, str], job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["warm", job.folder, "--target", "sm_90", *option]) == 2
    assert f"{option[0]} must be an integer of at least" in capsys.readouterr().err


@pytest.mark.parametrize("exact", [False, True])
def test_the_command_compiles_what_a_server_with_its_options_needs(
    exact: bool, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Job] = []

    def begin(job: Job) -> Compilers:
        jobs.append(job)
        return made(job, ("true",))

    made = ahead.Compilers
    monkeypatch.setattr(ahead, "Compilers", begin)
    assert main(["warm", job.folder, "--target", "sm_90", *["--batch-invariant"] * exact]) == 0
    assert [(each.exact, each.block_size, each.max_num_seqs) for each in jobs] == [
        (exact, GPU_BLOCK_SIZE, Settings().max_num_seqs)
    ]


def test_the_stage_counts_and_a_second_start_begins_no_process(job: Job) -> None:
    seen: list[LoadProgress] = []
    program = "print('begins a'); print('ends a'); print('begins b'); print('found b'); print('noise')"
    with watched(seen.append):
        first = Compilers(job, (sys.executable, "-c", program))
        count = len(first._processes)
        assert first.wait() == Compiled(count, count)
    assert seen[-1].stage == f"compiling kernels, {2 * count} done"
    again = Compilers(job, ("false",))
    assert not again._processes
    assert again.wait() == Compiled(0, 0)
    other = Compilers(msgspec.structs.replace(job, max_model_len=1024), ("false",))
    assert other._processes
    other.stop()


def test_a_cache_that_takes_no_mark_does_not_end_the_start(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is mounted read-only, and has the kernels of another number of requests."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    compilers = Compilers(job, (sys.executable, "-c", "print('found a')"))
    assert compilers.wait() == Compiled(0, len(compilers._processes))


@pytest.mark.long
def test_a_warm_cache_means_that_a_start_compiles_nothing(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Compilers(job).wait()
    assert first.new >= 10
    assert first.found == 0
    found = sorted(tmp_path.glob("cache/*/*.cubin"))
    assert len(found) == first.new
    before = [path.stat().st_mtime_ns for path in found]

    # As a start without the mark, in one process and in several.
    hits: list[bool] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            "plumbline.server.loading.native.compile_share._say",
            lambda line: hits.append(line.startswith("found ")) if not line.startswith("begins ") else None,
        )
        compile_share(job, 0, 1)
    assert len(hits) == first.new
    assert all(hits)
    for mark in ahead.cache_folder().glob("plumbline-*"):
        mark.unlink()
    assert Compilers(job).wait() == Compiled(0, first.new)
    assert sorted(tmp_path.glob("cache/*/*.cubin")) == found
    assert [path.stat().st_mtime_ns for path in found] == before
