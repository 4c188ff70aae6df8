"""Check that every difference from another server's parser has a verdict; skipped if none can be imported."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.skipif(
    not (find_spec("vllm") or find_spec("sglang")), reason="neither vLLM nor SGLang is installed"
)
def test_every_difference_has_a_verdict() -> None:
    script = Path(__file__).parent / "compare.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
