"""Try the contract of engines, the tests of the server and the judge on engines of others (`nox -s engines`).

`engines.py llama_cpp` needs llama-cpp-python where it runs. `engines.py vllm` creates the environment of the reference
server vLLM, in which this project's packages are found behind vLLM's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join(str(ROOT / name) for name in ("src", "kernels", "conformance", "openapi"))
GIB = str(1 << 30)
SERVER_TESTS = ("tests/server/test_constrained_calls.py", "tests/server/test_agent_loop.py")


def main(names: Sequence[str]) -> int:
    """Try the engines of these names; return 0 if the contract and the judge pass on all."""
    failed = [name for name in names or ("transformers", "llama_cpp", "vllm") if not _passes(name)]
    print(f"failed: {', '.join(failed)}" if failed else "all engines pass")
    return int(bool(failed))


def _passes(name: str) -> bool:
    python = _vllm_python() if name == "vllm" else Path(sys.executable)
    variables = {
        **os.environ,
        "PLUMBLINE_ENGINES": "thorough",
        "PYTHONPATH": SOURCES,
        "VLLM_NO_USAGE_STATS": "1",
        # vLLM compiles with programs of its own environment.
        "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
    }
    with tempfile.TemporaryDirectory() as folder:
        contract = ["-m", "pytest", "-p", "no:xdist", "-q", "tests/engines/test_contract.py", "-k", name]
        file = ""
        if name == "llama_cpp":
            contract += ["tests/engines/llama_cpp"]
            file = f"{folder}/pocket.gguf"
            subprocess.run(
                [python, "-m", "plumbline.pocket", "to_gguf", "--to", file], env=variables, check=True
            )
            options = ["--model", file]
        else:
            options = ["--engine", name]
        further: list[list[str]] = []
        if name == "vllm":
            own = [
                "tests/engines/test_vllm.py",
                "tests/engines/test_adapters.py",
                "tests/engines/test_audio.py",
                "tests/engines/test_images.py",
            ]
            further.append(["-m", "pytest", "-p", "no:xdist", "-q", *own])
            options += ["--kv-cache-bytes", GIB, "--engine-args", "enforce_eager=true"]
        judged = ["conformance/own_server/check.py", "--serve", *options]
        # Structured output, tools, and conversations with the official client, over chat, completions and Responses.
        server = ["-m", "pytest", "-p", "no:xdist", "-q", *SERVER_TESTS]
        variables |= {"PLUMBLINE_TEST_ENGINE": name, "PLUMBLINE_TEST_MODEL": file}
        every: list[list[str]] = [contract, server, judged, *further]
        runs = [subprocess.run([python, *each], env=variables, cwd=ROOT, check=False) for each in every]
    return all(run.returncode == 0 for run in runs)


def _vllm_python() -> Path:
    """Return the interpreter of vLLM's environment, with our packages behind its own."""
    sys.path.insert(0, str(ROOT / "conformance" / "reference_servers"))
    from environments import Environment  # type: ignore[import-not-found,unused-ignore]
    from servers import PEERS  # type: ignore[import-not-found,unused-ignore]

    environment = Environment("vllm", PEERS["vllm"], ROOT / ".nox")
    environment.add_ours()
    return Path(environment.bin / "python")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
