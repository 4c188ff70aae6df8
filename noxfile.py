# /// script
# dependencies = ["nox>=2025.5"]
# ///
"""The front door: every session installs what it needs and says in one line what it is for."""

from __future__ import annotations

import os
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "types", "contract", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.default_venv_backend = "virtualenv"
nox.options.error_on_missing_interpreters = True

CONSTRAINTS = "constraints.txt"
DEV = ".nox/dev"
"""The sessions of daily work share one environment: torch is large, and all of them need the same."""
ROOT = Path(__file__).parent


def install(session: nox.Session, extras: str) -> None:
    """Install this project editable with the pins of constraints.txt, once per environment."""
    stamp = Path(session.virtualenv.location) / f".plumbline-{extras or 'base'}"
    wanted = (ROOT / CONSTRAINTS).read_text("utf-8") + (ROOT / "pyproject.toml").read_text("utf-8")
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return
    if "serve" in extras:
        # First and alone, pinned to the very release: the CPU build satisfies it, and nothing later can replace it.
        session.install(_pin("torch"))
    suffix = f"[{extras}]" if extras else ""
    session.install("-c", CONSTRAINTS, "-e", f".{suffix}")
    stamp.write_text(wanted, "utf-8")


def _pin(name: str) -> str:
    for line in (ROOT / CONSTRAINTS).read_text("utf-8").splitlines():
        if line.startswith(f"{name}=="):
            return line.split(";")[0].strip()
    raise LookupError(f"{CONSTRAINTS} has no pin for {name}")


def run_python(session: nox.Session, *arguments: str, **variables: str) -> None:
    """Run this environment's interpreter with the session's own arguments at the end."""
    session.run("python", *arguments, *session.posargs, env={"PYTHONUNBUFFERED": "1", **variables})


@nox.session
def serve(session: nox.Session) -> None:
    """Serve the API with the pocket model, or with `-- --model PATH_OR_HUB_ID --port 8000`."""
    install(session, "serve")
    session.run("plumbline", "serve", *session.posargs)


@nox.session(venv_location=DEV)
def tests(session: nox.Session) -> None:
    """Run the fast suite."""
    install(session, "serve,dev")
    run_python(session, "-m", "pytest")


@nox.session(venv_location=DEV)
def lint(session: nox.Session) -> None:
    """Check formatting, lint and who may import whom; `-- --fix` mends what can be mended."""
    install(session, "serve,dev")
    fix = "--fix" in session.posargs
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("lint-imports")


@nox.session(venv_location=DEV)
def types(session: nox.Session) -> None:
    """Type-check our packages, strictly."""
    install(session, "serve,dev")
    session.run("mypy", *session.posargs)


@nox.session(venv_location=DEV)
def generate(session: nox.Session) -> None:
    """Write the generated code from the contract; `-- --check` fails if it is not fresh."""
    install(session, "serve,dev")
    session.run("python", "openapi/generate", *session.posargs)


@nox.session(venv_location=DEV)
def contract(session: nox.Session) -> None:
    """Prove the contract: valid, fresh, reviewed against the official document, every example and rule id."""
    install(session, "serve,dev")
    session.run("python", "openapi/generate", "--check")
    run_python(session, "-m", "pytest", "tests/contract")


@nox.session
def conformance(session: nox.Session) -> None:
    """Judge our own server with the pocket model, or any other with `-- --base-url URL --model NAME`."""
    install(session, "serve")
    session.run("python", "-m", "plumbline_conformance.own", *session.posargs)


@nox.session(venv_location=DEV)
def bench(session: nox.Session) -> None:
    """Measure overheads, start-up and speed, with transformers serve on the same folder beside ours."""
    install(session, "serve,dev,peers")
    session.run("python", "benchmarks/run.py", *session.posargs)


@nox.session(venv_location=DEV)
def pocket(session: nox.Session) -> None:
    """Train the pocket model from nothing and evaluate it (hours on two cores; resumes from its checkpoint)."""
    install(session, "serve,dev")
    run_python(session, "-m", "plumbline.pocket")


@nox.session(venv_location=DEV)
def docs(session: nox.Session) -> None:
    """Run every example of the README against a server and compare with what it promises."""
    install(session, "serve,dev")
    run_python(session, "-m", "pytest", "tests/docs")


@nox.session
def minimums(session: nox.Session) -> None:
    """Run the fast suite with the oldest releases that pyproject.toml allows."""
    session.install("-c", CONSTRAINTS, _pin("torch"))
    session.install("-r", "minimums.txt", "-e", ".[serve,dev]")
    run_python(session, "-m", "pytest", **({"CI": "1"} if os.environ.get("CI") else {}))
