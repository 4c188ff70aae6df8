# /// script
# dependencies = ["nox>=2025.5"]
# ///
"""The front door: every session installs what it needs and says in one line what it is for."""

from __future__ import annotations

import os
import sys
import venv
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "types", "contract", "tests"]

ROOT = Path(__file__).parent
CONSTRAINTS = "constraints.txt"
SERVE = "serve"
DEV = "serve,dev"
BENCH = "serve,dev,peers"


class Environment:
    """An environment that several sessions share.

    nox gives every session one of its own, but torch is large and daily work needs the same packages everywhere:
    `.nox/serve` is what a user installs, `.nox/serve,dev` has the tools as well. Each is made once, and again when
    pyproject.toml or constraints.txt change.
    """

    def __init__(self, session: nox.Session, extras: str) -> None:
        self._session = session
        self._folder = ROOT / ".nox" / f".env-{extras.replace(',', '-')}"
        self._bin = self._folder / ("Scripts" if sys.platform == "win32" else "bin")
        stamp = self._folder / "installed.txt"
        wanted = "".join((ROOT / name).read_text("utf-8") for name in (CONSTRAINTS, "pyproject.toml"))
        if stamp.is_file() and stamp.read_text("utf-8") == wanted:
            return
        if not (self._bin / "python").exists():
            session.log(
                f"Setting up {self._folder.relative_to(ROOT)}: this happens once and takes a few minutes."
            )
            venv.create(self._folder, with_pip=True)
        # torch comes first and alone, pinned to the very release: where a CPU build of that release is at hand, the
        # pin takes it, and nothing that is installed later can replace it.
        self._pip(_pin("torch"))
        self._pip("-c", str(_constraints(self._folder)), "-e", f".[{extras}]")
        stamp.write_text(wanted, "utf-8")

    def run(self, command: str, *arguments: str, **variables: str) -> None:
        """Run a program of this environment."""
        path = os.pathsep.join([str(self._bin), os.environ.get("PATH", "")])
        environment = {"PATH": path, "PYTHONUNBUFFERED": "1", **variables}
        self._session.run(str(self._bin / command), *arguments, env=environment, external=True)

    def _pip(self, *arguments: str) -> None:
        quiet = ("--quiet", "--disable-pip-version-check")
        self.run("python", "-m", "pip", "install", *quiet, *arguments)


def _pin(name: str, constraints: str = CONSTRAINTS) -> str:
    for line in (ROOT / constraints).read_text("utf-8").splitlines():
        if line.startswith(f"{name}=="):
            return line
    raise LookupError(f"{constraints} has no pin for {name}")


def _constraints(environment: Path, name: str = CONSTRAINTS, torch: str | None = None) -> Path:
    """The pins to install with, written into the environment; `torch` is the pin of a torch that is not the file's.

    torch's CUDA builds bring the very Triton that they were built with, its CPU builds none. A pin of ours must not
    contradict the former, and is needed for the latter: the kernels are tested under Triton's interpreter.
    """
    brought = any(environment.glob("lib/python*/site-packages/triton-*.dist-info"))
    lines = (ROOT / name).read_text("utf-8").splitlines()
    kept = [line for line in lines if not (brought and line.startswith("triton=="))]
    kept = [torch if torch and line.startswith("torch==") else line for line in kept]
    path = environment / name
    path.write_text("\n".join(kept) + "\n", "utf-8")
    return path


@nox.session(venv_backend="none")
def serve(session: nox.Session) -> None:
    """Serve the API with the pocket model, or with `-- --model PATH_OR_HUB_ID --port 8000`."""
    Environment(session, SERVE).run("plumbline", "serve", *session.posargs)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the fast suite, or a part of it with `-- PATH …`; `-- -n 0` runs it in one process."""
    # The processes share a machine with the servers that some tests start: four are enough for any.
    parallel = ("-n", "auto", "--maxprocesses", "4", "--dist", "worksteal")
    Environment(session, DEV).run("python", "-m", "pytest", *parallel, *session.posargs)


@nox.session(venv_backend="none")
def properties(session: nox.Session) -> None:
    """Try the laws of dialects and promised forms for hours: 20,000 examples, 3,000 schemas, 1,000 answers."""
    long = {
        "PLUMBLINE_PROFILE": "long",
        "PLUMBLINE_LAWS": "thorough",
        "PLUMBLINE_SCHEMAS": "3000",
        "PLUMBLINE_SEEDS": "50",
        "PLUMBLINE_RUNS": "125",
    }
    paths = session.posargs or [
        "tests/properties",
        "tests/forms",
        "tests/dialects",
        "tests/server/test_promised_calls.py",
    ]
    Environment(session, DEV).run("python", "-m", "pytest", *paths, **long)


@nox.session(venv_backend="none")
def differential(session: nox.Session) -> None:
    """Compare our reading of outputs with vLLM's and SGLang's; `-- --write` writes the list."""
    script = ("tests/differential/environment.py", "--install", "tests/differential/compare.py")
    Environment(session, SERVE).run("python", *script, *session.posargs)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check formatting, style and who may import whom; `-- --fix` mends what can be mended."""
    environment = Environment(session, DEV)
    fix = "--fix" in session.posargs
    environment.run("ruff", "format", *([] if fix else ["--check"]), ".")
    environment.run("ruff", "check", *(["--fix"] if fix else []), ".")
    environment.run("lint-imports")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Type-check our packages, strictly."""
    Environment(session, DEV).run("mypy", *session.posargs)


@nox.session(venv_backend="none")
def generate(session: nox.Session) -> None:
    """Write the generated code from the contract; `-- --check` fails if it is not fresh."""
    Environment(session, DEV).run("python", "openapi/generate", *session.posargs)


@nox.session(venv_backend="none")
def contract(session: nox.Session) -> None:
    """Prove the contract: valid, fresh, reviewed against the official document, every example and rule id."""
    environment = Environment(session, DEV)
    environment.run("python", "openapi/generate", "--check")
    environment.run("python", "-m", "pytest", "tests/contract", *session.posargs)


@nox.session(venv_backend="none")
def conformance(session: nox.Session) -> None:
    """Judge our own server with the pocket model, or another with `-- --base-url URL --model NAME`."""
    Environment(session, SERVE).run("python", "conformance/own_server/check.py", *session.posargs)


@nox.session(venv_backend="none")
def peers(session: nox.Session) -> None:
    """Judge the reference servers, each in an environment of its own: all, or some with `-- vllm llama-cpp`."""
    Environment(session, SERVE).run("python", "conformance/reference_servers/run.py", *session.posargs)


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Fuzz our server with our strategies and with schemathesis: 2,000 examples each, or `-- --examples N --seed N`."""
    Environment(session, DEV).run("python", "conformance/own_server/fuzz.py", *session.posargs)


@nox.session(venv_backend="none")
def mutants(session: nox.Session) -> None:
    """Hold the judge's checks against servers that break one rule each, and print who was caught by what."""
    Environment(session, DEV).run("python", "tests/conformance/run_mutants.py", *session.posargs)


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure overheads, start-up and speed, beside the parsers and servers of others that are installed."""
    Environment(session, BENCH).run("python", "benchmarks/run.py", *session.posargs)


@nox.session(venv_backend="none")
def pocket(session: nox.Session) -> None:
    """Make the pocket model (hours on a CPU; training resumes), or do one of its steps with `-- train`."""
    environment = Environment(session, DEV)
    steps = (
        [session.posargs]
        if session.posargs
        else [["tokenizer"], ["train"], ["export"], ["evaluate", "--write"]]
    )
    for step in steps:
        environment.run("python", "-m", "plumbline.pocket", *step)


@nox.session(venv_backend="none")
def scripted(session: nox.Session) -> None:
    """Make the scripted checkpoint (about a minute) in `.scripted`, or another with `-- --scripts FILE --out DIR`."""
    arguments = session.posargs or ["--out", ".scripted"]
    Environment(session, SERVE).run("plumbline", "script-model", *arguments)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Run the examples of the README against a server and compare with what the README says."""
    Environment(session, DEV).run("python", "-m", "pytest", "tests/docs", *session.posargs)


@nox.session(venv_backend="virtualenv")
def minimums(session: nox.Session) -> None:
    """Run the fast suite on the oldest releases that pyproject.toml allows, but for torch (minimums.txt names them)."""
    _test_on_minimums(session, _pin("torch"))


@nox.session(name="minimums-torch", venv_backend="virtualenv", python="3.12")
def minimums_torch(session: nox.Session) -> None:
    """The same on Python 3.12 with the oldest torch, which brings its own Triton and gigabytes of CUDA libraries."""
    _test_on_minimums(session, _pin("torch", "minimums.txt"))


def _test_on_minimums(session: nox.Session, torch: str) -> None:
    session.install(torch)
    session.install(
        "-c", str(_constraints(Path(session.virtualenv.location), "minimums.txt", torch)), "-e", f".[{DEV}]"
    )
    session.run("python", "-m", "pytest", *session.posargs)
