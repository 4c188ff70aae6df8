"""Check our plug-in for vLLM: what it says without vLLM, and that it reads some vectors as our parsers do with vLLM."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


def test_without_vllm_it_says_what_it_needs() -> None:
    program = "import sys; sys.modules['vllm'] = None; import plumbline.vllm_parsers"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "ImportError: plumbline.vllm_parsers is a plug-in for vLLM's server and needs vLLM 0.32 or later: "
    )


@pytest.mark.long
@pytest.mark.skipif(not find_spec("vllm"), reason="vLLM is not installed")
def test_with_vllm_every_vector_is_read_as_by_our_parsers() -> None:
    script = Path(__file__).parent / "vllm_parsers.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
