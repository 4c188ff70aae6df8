"""Run the engine contract, the server tests and the judge on third-party engines (`nox -s engines`).

`vllm_workers` is vLLM with a model on two workers, each on a core: it is judged, and one of them is killed.

The server tests are structured output, tools and conversations over all APIs, the known answers of the scripted
checkpoint (text, reasoning and calls of chat, completions and Responses, whole and streamed), and generated requests.

`engines.py llama_cpp` needs llama-cpp-python where it runs. `engines.py vllm` creates the environment of the reference
server vLLM, in which this project's packages are found after vLLM's own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = os.pathsep.join(str(ROOT / name) for name in ("src", "kernels", "conformance", "openapi"))
GIB = str(1 << 30)
VLLM = ("--engine", "vllm", "--kv-cache-bytes", GIB, "--engine-args", "enforce_eager=true")
WORKERS = "vllm_workers"
SERVER_TESTS = ("tests/server/tools/test_constrained_calls.py", "tests/server/tools/test_agent_loop.py")
"""Structured output, tools, and conversations with the official client, over chat, completions and Responses."""
OWN_TESTS = {
    "llama_cpp": ("tests/engines/llama_cpp",),
    "transformers": (
        "tests/engines/test_transformers.py",
        "tests/engines/media/test_images.py",
        "tests/engines/media/test_video.py",
    ),
    "vllm": tuple(
        f"tests/engines/test_{name}.py" for name in ("vllm", "adapters", "audio", "images", "video")
    ),
}
"""By engine."""
TORCHVISION = "torchvision==0.28.0"
"""The package that transformers' video processors and vLLM's image models need."""
EXAMPLES = "200"
"""Generated requests of each of the two fuzzers."""
PYTEST = ("-m", "pytest", "-p", "no:xdist", "-q", "-m", "")


def main(names: Sequence[str]) -> int:
    """Try the engines of these names; return 0 if everything passes on all."""
    sys.path.insert(0, str(ROOT / "conformance" / "reference_servers"))
    with tempfile.TemporaryDirectory() as folder:
        models = cache(lambda: _Models(Path(folder)))
        lines: list[str] = []
        for name in names or ("transformers", "llama_cpp", "vllm", WORKERS):
            for part, status in _tried_workers() if name == WORKERS else _tried(name, models()):
                lines.append(f"{name}: {part}: {'passes' if status == 0 else f'fails with status {status}'}")
                print(lines[-1], flush=True)
    print("\n".join(["", *lines]))
    return int(any("fails" in line for line in lines))


class _Models:
    """The scripted checkpoint, which is trained once, and the pocket model, both also as GGUF files."""

    def __init__(self, folder: Path) -> None:
        self.scripted = folder / "scripted"
        self.scripted_gguf = folder / "scripted.gguf"
        self.pocket_gguf = folder / "pocket.gguf"
        variables = {**os.environ, "PYTHONPATH": SOURCES}
        plumbline = str(Path(sys.executable).parent / "plumbline")
        train = [plumbline, "script-model", "--out", str(self.scripted), "--gguf", str(self.scripted_gguf)]
        subprocess.run(train, env=variables, check=True)
        convert = [sys.executable, "-m", "plumbline.pocket.to_gguf", "--to", str(self.pocket_gguf)]
        subprocess.run(convert, env=variables, check=True)


def _tried(name: str, models: _Models) -> Iterator[tuple[str, int]]:
    """Run every suite on an engine; yield its title and its exit status."""
    python = _vllm_python() if name == "vllm" else Path(sys.executable)
    gguf = name == "llama_cpp"
    variables = _variables(python, () if gguf else _torchvision(python)) | {
        "PLUMBLINE_ENGINES": "thorough",
        "PLUMBLINE_TEST_ENGINE": name,
        "PLUMBLINE_TEST_MODEL": str(models.pocket_gguf) if gguf else "",
    }
    serve = [] if gguf else ["--engine", name]
    if name == "vllm":
        serve = [*VLLM]
    pocket = ["--model", str(models.pocket_gguf)] if gguf else []
    scripted = ["--model", str(models.scripted_gguf)] if gguf else []
    own = OWN_TESTS[name]
    suites: dict[str, list[str]] = {
        "contract of engines": [*PYTEST, "tests/engines/contract", "-k", name],
        "tests of the engine": [*PYTEST, *own],
        "tests of the server": [*PYTEST, *SERVER_TESTS],
        "known answers": ["conformance/own_server/exact.py", str(models.scripted), *scripted, *serve],
        "judge": ["conformance/own_server/check.py", "--serve", *pocket, *serve],
        "fuzz": ["conformance/own_server/fuzz.py", "--examples", EXAMPLES, "--serve", *pocket, *serve],
    }
    yield from _run(suites, python, variables)


def _tried_workers() -> Iterator[tuple[str, int]]:
    """Kill one of two workers of vLLM, and judge two; see `_tried`."""
    python = _vllm_python()
    first, *_, last = sorted(os.sched_getaffinity(0))
    variables = _variables(python, _torchvision(python)) | {"VLLM_CPU_OMP_THREADS_BIND": f"{first}|{last}"}
    suites = {
        "tests of workers": [*PYTEST, "tests/faults/test_workers.py"],
        "judge": ["conformance/own_server/check.py", "--serve", *VLLM, "tensor_parallel_size=2"],
    }
    yield from _run(suites, python, variables)


def _variables(python: Path, folders: Sequence[str]) -> dict[str, str]:
    """Return the environment of suites."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([SOURCES, *folders]),
        "VLLM_NO_USAGE_STATS": "1",
        # vLLM compiles with programs of its own environment.
        "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
    }


def _run(
    suites: Mapping[str, list[str]], python: Path, variables: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    for title, suite in suites.items():
        yield title, subprocess.run([python, *suite], env=variables, cwd=ROOT, check=False).returncode


def _vllm_python() -> Path:
    """Return the interpreter of vLLM's environment, with our packages after its own."""
    from environments import Environment  # type: ignore[import-not-found,unused-ignore]
    from servers import PEERS  # type: ignore[import-not-found,unused-ignore]

    environment = Environment("vllm", PEERS["vllm"], ROOT / ".nox")
    environment.add_ours()
    return Path(environment.bin / "python")


def _torchvision(python: Path) -> list[str]:
    """Return the folder of a torchvision that can be imported with a CPU build of torch; an empty list without one.

    It is installed in a folder of its own, because vLLM's environment must stay as recorded and ours does not need it.
    """
    from patches import without_registrations  # type: ignore[import-not-found,unused-ignore]

    folder = ROOT / ".nox" / ".torchvision"
    if not folder.is_dir():
        install = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(folder),
            TORCHVISION,
        ]
        if subprocess.run(install, check=False).returncode:
            print(
                f"{TORCHVISION} cannot be installed: engines are tried without videos, and vLLM without images",
                flush=True,
            )
            return []
        without_registrations(folder)
    return [str(folder)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
