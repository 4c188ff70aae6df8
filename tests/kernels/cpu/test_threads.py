"""The threads, memory and processes of the CPU kernels: callers at the same time, limits, forks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from plumbline_kernels.cpu.library import Library, load


def test_threads_and_callers_at_the_same_time_change_nothing():
    """Callers that find the pool busy work alone; parts are never lost or computed for another task."""
    library = load()
    numbers = torch.randn(1640, 256, generator=torch.Generator().manual_seed(1))
    weight, x = library.pack(numbers[40:]), numbers[:40]
    alone = library.logits(x, weight, None)
    shared = Library(library.path, threads=3)
    call: Callable[[int], bool] = lambda _: torch.equal(shared.logits(x, weight, None), alone)  # noqa: E731
    with ThreadPoolExecutor(3) as callers:
        assert all(callers.map(call, range(200)))


def test_a_process_that_may_have_no_more_threads_computes_with_those_it_has():
    """A limit of memory refuses the stack of a thread, as a limit of processes would."""
    code = """if True:
        import resource, sys, torch
        from plumbline_kernels.cpu.library import Library, load
        library = Library(load().path, threads=64)
        weight, x = library.pack(torch.ones(6400, 256)), torch.ones(40, 256)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (used, used))
        assert bool((library.logits(x, weight, None) == 256).all())
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_forked_process_computes_with_threads_of_its_own():
    code = """if True:
        import os, torch
        from plumbline_kernels.cpu.library import Library, load
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork.
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
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_kernel_without_memory_raises_and_the_next_one_computes():
    code = """if True:
        import resource, torch
        from plumbline_kernels.cpu.library import load
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
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
