"""The Triton kernels compute what their torch references compute.

The interpreter has to be chosen before Triton is imported, so the cases run in a process of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")


@pytest.mark.long
@pytest.mark.skipif(
    tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 9),
    reason="older interpreters cannot run loops with bounds known at run time under NumPy 2.4",
)
@pytest.mark.parametrize(
    ("file", "least"),
    [
        ("interpreted_cases.py", 93),
        ("interpreted_delta.py", 54),
        ("interpreted_exact.py", 60),
        ("interpreted_experts.py", 56),
        ("interpreted_graphs.py", 9),
        ("interpreted_narrow.py", 50),
    ],
)
def test_every_kernel_agrees_with_its_reference_under_the_interpreter(file: str, least: int) -> None:
    """All cases of a file pass, and there are as many as there should be."""
    cases = Path(__file__).with_name(file)
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PLUMBLINE_FORCE_TRITON": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None
    assert int(passed[1]) >= least
