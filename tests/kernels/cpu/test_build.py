"""How the CPU kernels are compiled: once for a machine, whole or not at all, and kept where nobody else can write."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from plumbline_kernels.cpu import build, layout, library, structs
from plumbline_kernels.cpu.build import CompileError
from plumbline_kernels.cpu.library import load


def test_without_a_compiler_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match=r"no C\+\+ compiler 'no-such-compiler' was found; install one"):
        build.build()


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(CompileError, match=r"failed: .*no-such-option"):
        build.build("-fno-such-option")
    assert not list((tmp_path / "plumbline").iterdir())


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes a word slowly, and an empty cache."""
    compiler = tmp_path / "c++"
    compiler.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nsleep 0.1\nrm "$2"\necho compiled > "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return compiler


def test_compiled_code_is_kept_where_only_the_user_can_write(compiler: Any) -> None:
    first = build.build()
    assert first.read_text() == "compiled\n"
    assert stat.S_IMODE(first.parent.stat().st_mode) == stat.S_IMODE(first.stat().st_mode) == 0o700
    compiler.write_text(compiler.read_text())
    os.utime(compiler, ns=(first.stat().st_atime_ns, compiler.stat().st_mtime_ns))
    assert build.build().parent == first.parent

    first.parent.chmod(0o777)
    elsewhere = build.build()
    assert elsewhere.parent != first.parent
    elsewhere.unlink()
    Path(elsewhere.parent).rmdir()


def test_builds_at_the_same_time_leave_one_whole_file(compiler: Any) -> None:
    with ThreadPoolExecutor(4) as builders:
        paths = set(builders.map(lambda _: build.build(), range(4)))
    (path,) = paths
    assert path.read_text() == "compiled\n"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("cached", [True, False])
def test_a_build_waits_for_the_one_that_was_begun_ahead(
    compiler: Any, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    runs = []
    compile_once = build._compile

    def compile_and_count(*given: Any) -> Any:
        runs.append(given)
        return compile_once(*given)

    monkeypatch.setattr(build, "_compile", compile_and_count)
    if not cached:
        monkeypatch.setattr(build, "_folder", lambda: None)
    build.build_ahead()
    while not (runs or build._lock.locked()):
        pass
    path = build.build()
    assert path.read_text() == "compiled\n"
    assert len(runs) == 1
    assert build.build() == path
    path.unlink()


def test_an_error_of_a_build_ahead_is_raised_by_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    build.build_ahead()
    with pytest.raises(CompileError):
        build.build()


def test_building_imports_no_torch() -> None:
    code = "import sys, plumbline_kernels.cpu.build; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_cache_on_a_read_only_disk_is_read(compiler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.build()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    assert build.build() == first
    first.unlink()
    elsewhere = build.build()
    assert elsewhere.parent != first.parent
    elsewhere.unlink()
    elsewhere.parent.rmdir()


def test_a_user_without_a_home_compiles_at_each_start(compiler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    path = build.build()
    assert path.read_text() == "compiled\n"
    path.unlink()
    path.parent.rmdir()


@pytest.fixture(scope="module")
def whole() -> Path:
    """The library that this machine has compiled before."""
    return build.build()


def test_a_damaged_file_is_compiled_again(whole: Any, compiler: Any) -> None:
    """The compiler copies a library, because compiling takes four seconds."""
    compiler.write_text(compiler.read_text().replace('echo compiled > "$2"', f'cp "{whole}" "$2"'))
    path = build.build()
    path.write_bytes(path.read_bytes()[:100])
    assert load.__wrapped__().path == str(path)
    assert path.stat().st_size > 100


@pytest.mark.parametrize(
    ("place", "number"),
    [("Heads.softcap (float)", 60), ("the size of Step", 8), ("the kind of RopeOp", 3), ("WORD", 8)],
)
def test_a_library_whose_layout_differs_is_refused_by_name(
    whole: Any, monkeypatch: pytest.MonkeyPatch, place: str, number: Any
) -> None:
    """The table changes after the build: a field, a size, a kind, a constant."""
    was = layout.PLACES[place]
    monkeypatch.setattr(library, "PLACES", layout.PLACES | {place: number})
    with pytest.raises(CompileError) as refused:
        load.__wrapped__()
    assert f"{place} is {was} there, and {number} here; delete the file" in str(refused.value)


def test_a_library_of_other_functions_is_refused_by_name() -> None:
    """A file of the cache that is not of these kernels would be an AttributeError of ctypes."""
    with pytest.raises(CompileError, match="SILU is missing there, and 0 here; delete the file"):
        library.Library(torch._C.__file__, 1)


def test_a_field_of_another_type_is_missing() -> None:
    found = {"Heads.scale (double)": 48, "the size of Heads": 96}
    wanted = {"Heads.scale (float)": 48, "the size of Heads": 96}
    assert structs.difference(found, wanted) == "Heads.scale (float) is missing there, and 48 here"
    assert structs.difference(found, found) is None
    assert structs.difference(found, {}) == "Heads.scale (double) is 48 there, and missing here"


def test_another_layout_is_another_file_of_the_cache(compiler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.build()
    monkeypatch.setattr(build, "HEADER", layout.HEADER.replace("WORD = 4", "WORD = 8"))
    assert build.build() != first
