"""Triton is optional: without it the CPU path works all the same."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
sys.modules["triton"] = None
import torch
from plumbline_kernels import _backend
from plumbline_kernels.norm import rms_norm
assert rms_norm(torch.ones(2, 4), torch.ones(4), 0.0).tolist() == [[1.0] * 4] * 2
assert _backend.tl.constexpr is int
print("fine")
"""


@pytest.mark.long
def test_the_package_imports_and_computes_without_triton() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert result.stdout == "fine\n", result.stderr
