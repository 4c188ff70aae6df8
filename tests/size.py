"""Print the lines of each house, and how many more or fewer they are than at another commit.

python tests/size.py [COMMIT]    without a commit: the last tag
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import PurePosixPath

HOUSES = (
    *(
        f"src/plumbline/{name}"
        for name in ("answer", "base", "chat", "contract", "engines", "hub", "media", "port", "server")
    ),
    *(
        "src/plumbline",
        "src/plumbline_training",
        "kernels",
        "conformance",
        "openapi",
        "benchmarks",
        "tests",
        "docs",
    ),
)
"""A file belongs to the first that has it."""
SUFFIXES = {".py", ".h", ".cpp", ".yaml", ".js", ".css", ".html", ".md"}
LEFT_OUT = ("/_generated/", "/recordings/", "/corpus/")


def git(*arguments: str, check: bool = True) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=check).stdout


def house(path: str) -> str | None:
    """Return the house of a file whose lines count."""
    if PurePosixPath(path).suffix not in SUFFIXES or any(part in f"/{path}" for part in LEFT_OUT):
        return None
    return next((name for name in HOUSES if path.startswith(f"{name}/")), None)


def lines(commit: str) -> Counter[str]:
    """Return the lines of each house at a commit."""
    found: Counter[str] = Counter()
    empty = git("hash-object", "-t", "tree", "/dev/null").strip()
    for row in git("diff", "--numstat", "--no-renames", empty, commit).splitlines():
        added, _, path = row.split("\t")
        name = house(path)
        if name is not None and added != "-":
            found[name] += int(added)
    return found


def main() -> None:
    """Print the table."""
    other = sys.argv[1] if sys.argv[1:] else git("describe", "--tags", "--abbrev=0", check=False).strip()
    other = other or git("rev-list", "--max-parents=0", "HEAD").split()[0]  # Nothing has been released.
    now, then = lines("HEAD"), lines(other)
    for name in HOUSES:
        print(f"{name:24}{now[name]:9,}{now[name] - then[name]:+9,}")
    print(f"{'all':24}{now.total():9,}{now.total() - then.total():+9,}    (since {other})")


if __name__ == "__main__":
    main()
