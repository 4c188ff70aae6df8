"""Run the compliance suite of Open Responses against our server (`nox -s openresponses`).

The suite is a third-party project and not part of this repository: pass the folder of a checkout, or it is cloned from
its public repository. It is copied before its packages are installed, so a checkout stays as it is. It runs on Bun,
which comes from the npm registry.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from own_server.launch import KEY, MODEL, DidNotStart, launched_server

__all__ = ["EXPECTED_FAILURES", "report", "run"]

REPOSITORY = "https://github.com/openresponses/openresponses"
BUN = "bun@1.4.5"
EXPECTED_FAILURES: Mapping[str, str] = {}
"""Tests that fail by design, with the reason. If one passes, it is reported, so that its line is removed."""

_PROGRAM = "bin/compliance-test.ts"
_COPIED = ("bin", "src", "package.json")


def run(arguments: Sequence[str]) -> int:
    """Run the suite; return 0 if it fails only where it is expected to, 1 for anything else, 2 if it could not run.

    Args:
        arguments: the folder of a checkout, or nothing.
    """
    work = Path(".nox") / "openresponses"
    work.mkdir(parents=True, exist_ok=True)
    try:
        suite = _suite(Path(arguments[0]) if arguments else _cloned(work), work)
        with launched_server(KEY) as base_url:
            results = _results(suite, base_url)
    except subprocess.CalledProcessError as error:
        print(f"{' '.join(map(str, error.cmd))} failed with exit code {error.returncode}", file=sys.stderr)
        return 2
    except (DidNotStart, FileNotFoundError) as error:
        print(f"The suite did not run: {error or 'the server did not start'}", file=sys.stderr)
        return 2
    return report(results)


def _cloned(work: Path) -> Path:
    folder = work / "checkout"
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", REPOSITORY, folder], check=True)
    return folder


def _suite(checkout: Path, work: Path) -> Path:
    """Copy the suite and install what it needs; return the copy."""
    if not (checkout / _PROGRAM).is_file():
        raise FileNotFoundError(
            f"{checkout / _PROGRAM} is not there; give the folder of a checkout of {REPOSITORY}"
        )
    suite = work / "suite"
    shutil.rmtree(suite, ignore_errors=True)
    suite.mkdir()
    for name in _COPIED:
        source = checkout / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, suite / name)
    # The command needs only zod; the other dependencies build the web site.
    zod = json.loads((suite / "package.json").read_text("utf-8"))["dependencies"]["zod"]
    (suite / "package.json").write_text(json.dumps({"private": True}), "utf-8")
    npm = ("npm", "install", "--silent", "--no-audit", "--no-fund")
    subprocess.run([*npm, "--ignore-scripts", f"zod@{zod}"], cwd=suite, check=True)
    subprocess.run([*npm, BUN], cwd=suite, check=True)
    return suite


def _results(suite: Path, base_url: str) -> list[dict[str, Any]]:
    command = ["node_modules/.bin/bun", "run", _PROGRAM, "--json"]
    options = ["--base-url", base_url, "--api-key", KEY, "--model", MODEL]
    ended = subprocess.run([*command, *options], cwd=suite, stdout=subprocess.PIPE, timeout=600, check=False)
    results: list[dict[str, Any]] = json.loads(ended.stdout)["results"]
    return results


def report(results: Sequence[Mapping[str, Any]]) -> int:
    """Print the results of the suite; return 0 if all of them are expected, else 1."""
    wrong = 0
    for result in results:
        name, status = result["id"], result["status"]
        reason = EXPECTED_FAILURES.get(name)
        expected = status == ("passed" if reason is None else "failed")
        wrong += not expected
        note = f" ({reason})" if reason is not None else ""
        print(f"{status:8}{name}{note}{'' if expected else '  <- not expected'}")
        if status == "failed" and reason is None:
            print("".join(f"        {error}\n" for error in result.get("errors") or ()), end="")
    passed = sum(result["status"] == "passed" for result in results)
    print(f"{passed} of {len(results)} tests of Open Responses pass.")
    return 1 if wrong or not results else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
