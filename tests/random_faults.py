"""Put faults into a copy of the package, one at a time, and count how many the fast suite catches.

    python tests/random_faults.py --seed 29 --count 30

A fault flips a comparison or drops a statement, at a random place of a function. Each is tried with the tests of the
folders with the names of its packages and with `tests/server`, which uses all; the whole suite would take hours.
`--files N` takes only the N files of these that name the module most often, and the laws of dialects for a dialect.
With `--against FOLDER`, another checkout, only files that are the same in both get faults, and its tests are tried too:
the file that caught the fault here, and those that differ between the two.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.source_faults import Fault, simple_faults_of

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("contract/_generated", "pocket", "scripted_model", "engines/vllm", "engines/llama_cpp")
"""What is generated, trained, or needs a library that the suite runs without."""
OTHERS = {"media": "engines", "port": "engines"}
"""The folders of tests of packages that have none of their own name."""
HANGS = 1200
"""Seconds after which a fault counts as caught, because something waits for ever."""


def chosen(package: Path, other: Path | None, seed: int, count: int) -> list[Fault]:
    """Draw faults; nested functions would list theirs twice."""
    found: dict[tuple[str, int, int, str], Fault] = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        twin = other / name if other else path
        if not name.startswith(LEFT_OUT) and twin.is_file() and twin.read_bytes() == path.read_bytes():
            for fault in simple_faults_of(path, package):
                found[name, fault.node.lineno, fault.node.col_offset, fault.new] = fault
    return random.Random(seed).sample(list(found.values()), count)


def paths_of(fault: Fault, num_files: int) -> list[str]:
    """Return the tests that are tried: the files that name the module most often, then all, if `num_files` is 0."""
    packages, word = Path(fault.path).parts[:-1], Path(fault.path).stem[:7]
    # Most folders of tests have the name of a package within a house, such as `tests/dialects` and `tests/store`.
    names = [*(OTHERS.get(name, name) for name in reversed(packages)), "server"]
    folders = [folder for name in dict.fromkeys(names) if (ROOT / (folder := f"tests/{name}")).is_dir()]
    laws = ["tests/properties"] if "dialects" in packages else []
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("test_*.py"))]
    files.sort(key=lambda file: -(file.name + file.read_text("utf-8")).count(word))
    first = [file.relative_to(ROOT).as_posix() for file in files[: num_files or 8]]
    if num_files:
        return [" ".join([*first, *laws])]
    return [" ".join(first), *folders, *laws]


def changed_paths(fault: Fault, other: Path) -> list[str]:
    """Return the files of another checkout's tests that are not the same here: all others give the same result."""
    found = []
    for folder in paths_of(fault, 0)[1:]:
        for file in sorted((other / folder).rglob("test_*.py")):
            name = file.relative_to(other)
            twin = ROOT / name
            if not twin.is_file() or twin.read_bytes() != file.read_bytes():
                found.append(name.as_posix())
    return [" ".join(found)]


def caught(tree: Path, fault: Fault, tried: list[str]) -> str:
    """Return the test of a checkout that fails with the fault; empty if none does."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(tree / "src", copy, dirs_exist_ok=True)
        file = Path(copy, "plumbline", fault.path)
        file.write_bytes(fault.apply(file.read_bytes()))
        paths = os.pathsep.join([copy, str(tree / "kernels"), str(tree / "conformance")])
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", "--dist", "worksteal"]
        environment = {**os.environ, "CI": "1", "PYTHONPATH": paths}
        for tests in tried:
            given = [path for path in tests.split() if (tree / path).exists()]
            if not given:
                continue
            try:
                done = subprocess.run(
                    [*command, *given],
                    cwd=tree,
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=HANGS,
                )
            except subprocess.TimeoutExpired:
                return f"{tests}: hangs"
            if done.returncode:
                failed = re.search(r"(?m)^(?:FAILED|ERROR) (\S+)", done.stdout)
                return failed[1] if failed else f"{tests}: status {done.returncode}"
    return ""


def main() -> int:
    """Print a line for each fault and the sums."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=29)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--files", type=int, default=0, metavar="N", help="try only so many files of tests")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout")
    options = parser.parse_args()
    other = options.against / "src" / "plumbline" if options.against else None
    sums = [0, 0]
    for number, fault in enumerate(chosen(ROOT / "src" / "plumbline", other, options.seed, options.count), 1):
        began = time.monotonic()
        tried = paths_of(fault, options.files)
        results = [caught(ROOT, fault, tried)]
        if options.against:
            rest = tried if options.files else changed_paths(fault, options.against)
            results.append(caught(options.against, fault, [results[0].partition("::")[0], *rest]))
        sums = [total + bool(result) for total, result in zip(sums, results, strict=False)]
        told = " | ".join(result or "NOT CAUGHT" for result in results)
        print(f"{number:3} {fault}\n    {told} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"caught of {options.count}: {' | '.join(map(str, sums))} (seed {options.seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
