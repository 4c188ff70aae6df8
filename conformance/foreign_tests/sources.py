"""Fetch the tests of a suite from its source archive, and put them beside their stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from foreign_tests.suites import HERE, Suite

__all__ = ["MissingTests", "packages", "prepared"]

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


class MissingTests(Exception):  # noqa: N818 - the name describes the tests
    """The tests cannot be fetched, or the given folder does not have them."""


def prepared(suite: Suite, home: Path, given: Path | None = None) -> Path:
    """Return a new folder with the tests of a suite, from which pytest can run them.

    Args:
        suite: the suite that the tests belong to.
        home: a folder for archives, packages and the result.
        given: an unpacked source of that server, instead of the archive.

    Raises:
        MissingTests: a file of the suite is missing, or the archive cannot be fetched.
    """
    source = given if given is not None else _archive(suite, home) / suite.within
    work = home / suite.name
    shutil.rmtree(work, ignore_errors=True)
    for name in (*suite.files, *suite.helpers):
        if not (source / name).is_file():
            raise MissingTests(f"{source / name} is not there; {suite.title} are those of {suite.archive}")
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, work / name)
    if suite.stand_ins.is_dir():
        shutil.copytree(
            suite.stand_ins, work, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    return work


def packages(home: Path) -> Path:
    """Return a folder with the packages of `pins.txt`: what the tests import, and what reads archives' metadata.

    They are in no environment of ours, because nothing else needs them.

    Raises:
        MissingTests: they cannot be installed.
    """
    folder, pins = home / "packages", (HERE / "pins.txt").read_text("utf-8")
    stamp = folder / "installed.txt"
    if stamp.is_file() and stamp.read_text("utf-8") == pins:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    _run(*_PIP, "install", "--no-deps", "--target", str(folder), "-r", str(HERE / "pins.txt"))
    stamp.write_text(pins, "utf-8")
    return folder


def _archive(suite: Suite, home: Path) -> Path:
    """Fetch and unpack the source archive; return its folder."""
    folder = home / "archives" / suite.archive
    if not folder.is_dir():
        new = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        # pip builds the metadata of what it downloads. Without isolation it does not install the build requirements
        # first, among which is torch with CUDA for vLLM.
        options = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(new))
        _run(
            *_PIP,
            "download",
            *options,
            suite.archive,
            **suite.build,
            PYTHONPATH=str(packages(home).resolve()),
        )
        (archive,) = new.glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(new, filter="data")
        archive.unlink()
        new.rename(folder)
    (source,) = folder.iterdir()
    return source


def _run(*command: str, **variables: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason was given"]
        error = next((line for line in lines if line.lower().lstrip().startswith("error")), lines[-1])
        raise MissingTests(f"pip: {error.strip()}")
