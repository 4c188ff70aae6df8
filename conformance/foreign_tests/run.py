"""Run the tests of other servers against our server (`nox -s foreign`).

They are fetched from PyPI, or read from the folder of `--source`. Each test passes or is listed with a reason in
`expected/`; `--write` puts the numbers into docs/reference/compatibility-vllm.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from foreign_tests.expected import ForeignOutcome, Summary, read_expected, summary_of
from foreign_tests.page import RESULTS, write_page
from foreign_tests.plugin import EXPECTED, OUTCOMES
from foreign_tests.sources import MissingTests, packages, prepared
from foreign_tests.suites import SUITES, Suite
from own_server.launch import DidNotStart, launched_server

__all__ = ["run"]

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".nox" / "foreign-tests"
_SECONDS = 120
"""For one test; some wait forever for an answer that does not come."""


def run(arguments: Sequence[str]) -> int:
    """Run suites; return 0 if every outcome is expected, 1 if not, 2 if a suite could not be run."""
    parser = argparse.ArgumentParser(prog="nox -s foreign --", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SUITE", help=f"default: {', '.join(SUITES)}")
    parser.add_argument("--source", type=Path, metavar="FOLDER", help="the tests of one suite, unpacked")
    parser.add_argument("--tests", metavar="WORDS", help="only tests that match these words, as pytest's -k")
    parser.add_argument(
        "--write", action="store_true", help="write the numbers into docs/reference/compatibility-vllm.md"
    )
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - SUITES.keys()):
        parser.error(f"there is no suite {unknown[0]}; there are {', '.join(SUITES)}")
    names = options.names or list(SUITES)
    if options.source is not None and len(names) != 1:
        parser.error("--source is for one suite; name it")
    if options.tests and options.write:
        parser.error("--write is for whole suites, so leave --tests out")
    found: dict[str, Summary] = {}
    for name in names:
        try:
            outcomes = _outcomes(SUITES[name], options.source, options.tests)
        except (MissingTests, DidNotStart) as error:
            print(f"{name}: not run: {error or 'the server did not start'}", file=sys.stderr)
            return 2
        found[name] = summary_of(read_expected(SUITES[name].expected), outcomes)
        print(_told(SUITES[name], found[name], whole=options.tests is None))
    if options.write:
        kept = msgspec.json.decode(RESULTS.read_bytes(), type=dict[str, Summary]) if RESULTS.is_file() else {}
        write_page({name: found.get(name) or kept[name] for name in SUITES if name in found or name in kept})
    problems = [problem for one in found.values() for problem in one.problems]
    return int(bool(problems))


def _outcomes(suite: Suite, source: Path | None, words: str | None) -> list[ForeignOutcome]:
    """Run the tests of a suite in a process of their own."""
    HOME.mkdir(parents=True, exist_ok=True)
    work = prepared(suite, HOME, source)
    written = work / "outcomes.json"
    paths = [
        str(work),
        str(packages(HOME)),
        *(str(ROOT / name) for name in ("conformance", "src", "kernels")),
    ]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        EXPECTED: str(suite.expected),
        OUTCOMES: str(written),
    }
    command = [sys.executable, "-m", "pytest", "-p", "foreign_tests.plugin", "--rootdir", str(work)]
    command += ["-p", "no:cacheprovider", "-p", "no:schemathesis", "-q", "--tb=short"]
    command += ["--continue-on-collection-errors", "--timeout", str(_SECONDS), "-k", words or ""]
    with launched_server(None, *suite.server) if suite.server is not None else nullcontext() as base_url:
        if base_url is not None:
            # llama.cpp's own switch for a server that runs already.
            variables |= {"DEBUG_EXTERNAL": "1", "PORT": str(urlsplit(base_url).port)}
        with (HOME / f"{suite.name}.log").open("w", encoding="utf-8") as log:
            subprocess.run(
                [*command, *suite.files],
                cwd=work,
                env=variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
    if not written.is_file():
        raise MissingTests(f"pytest wrote no outcomes; see {HOME / f'{suite.name}.log'}")
    return msgspec.json.decode(written.read_bytes(), type=list[ForeignOutcome])


def _told(suite: Suite, summary: Summary, *, whole: bool) -> str:
    """Return the lines about a suite; entries without a test count only if the whole suite ran."""
    problems = [text for text in summary.problems if whole or not text.startswith("no test is")]
    counts = (
        f"{summary.passed} pass, {sum(summary.different.values())} differ by design, "
        f"{sum(summary.inapplicable.values())} do not apply, {summary.skipped} do not concern a server"
    )
    return "\n".join([f"{suite.title} ({suite.archive}): {counts}", *(f"  {text}" for text in problems)])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
