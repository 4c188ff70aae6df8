"""The threads, memory and processes of the CPU kernels: callers at the same time, limits, forks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from plumbline_kernels.cpu.library import Library, load

FORKING = """if True:
    import os, signal, sys, torch
    from plumbline_kernels.cpu.library import Library, load
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork.
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            exec(eval(line))
            os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
"""
"""Run each code in a process of its own without a second of imports for each."""


@pytest.fixture(scope="module")
def run_code() -> Iterator[Callable[[str], int]]:
    """Runs code in a new process, which has torch, `Library` and `load`, and returns its status."""
    command = [sys.executable, "-c", FORKING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        writes, reads = process.stdin, process.stdout

        def run(code: str) -> int:
            writes.write(f"{code!r}\n")
            writes.flush()
            return int(reads.readline())

        yield run
        writes.close()


def test_threads_and_callers_at_the_same_time_change_nothing() -> None:
    """Callers that find the pool busy work alone; parts are never lost or computed for another task."""
    library = load()
    numbers = torch.randn(1640, 256, generator=torch.Generator().manual_seed(1))
    weight, x = library.pack(numbers[40:]), numbers[:40]
    alone = library.logits(x, weight, None)
    shared = Library(library.path, threads=3)
    call: Callable[[int], bool] = lambda _: torch.equal(shared.logits(x, weight, None), alone)  # noqa: E731
    with ThreadPoolExecutor(3) as callers:
        assert all(callers.map(call, range(200)))


def test_a_process_that_may_have_no_more_threads_computes_with_those_it_has(
    run_code: Callable[[str], int],
) -> None:
    """A limit of memory refuses the stack of a thread, as a limit of processes would."""
    code = """if True:
        import resource
        library = Library(load().path, threads=64)
        weight, x = library.pack(torch.ones(6400, 256)), torch.ones(40, 256)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (used, used))
        assert bool((library.logits(x, weight, None) == 256).all())
    """
    assert run_code(code) == 0


def test_a_forked_process_computes_with_threads_of_its_own(run_code: Callable[[str], int]) -> None:
    code = """if True:
        library = Library(load().path, threads=3)
        weight, x = library.pack(torch.ones(6400, 256)), torch.ones(40, 256)
        compute = lambda: bool((library.logits(x, weight, None) == 256).all())
        assert compute()
        child = os.fork()
        if child == 0:
            before = len(os.listdir("/proc/self/task"))
            os._exit(0 if compute() and len(os.listdir("/proc/self/task")) == before + 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
    """
    assert run_code(code) == 0


def test_a_kernel_without_memory_raises_and_the_next_one_computes(run_code: Callable[[str], int]) -> None:
    code = """if True:
        import resource
        library = load()
        weight, x = library.pack(torch.ones(32, 1 << 14), bits=8), torch.ones(1 << 12, 1 << 14)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (16 << 20)
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used, most))
        try:
            library.logits(x, weight, None)
        except MemoryError:
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            assert abs(library.logits(x[:1], weight, None) - (1 << 14)).max() < 100
        else:
            raise AssertionError("64 MB fit into 16")
    """
    assert run_code(code) == 0
