"""Install, start and judge the reference servers, one after the other, all with the pocket model (`nox -s peers`).

Each run is recorded in conformance/recordings. Verdicts and pages are made from the recordings, so `-- --again` makes
them without any server. A server that cannot be installed is reported, and its recording stays as it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.serving.processes import THREADS, free_port, started  # noqa: E402
from differences import read_run  # noqa: E402
from environments import Environment, MissingServer  # noqa: E402
from history import past_of, read_history, with_past  # noqa: E402
from pages import committed_files, write  # noqa: E402
from repetitions import repetitions_of  # noqa: E402
from servers import MODEL, PEERS, PeerServer  # noqa: E402
from supervisor import supervised  # noqa: E402

from own_server.launch import KEY  # noqa: E402
from plumbline.pocket import MODEL_DIR  # noqa: E402
from plumbline_conformance.cli.matrix import columns_from  # noqa: E402
from plumbline_conformance.reports.matrix.table import Column  # noqa: E402

HOME = ROOT / ".nox"
RECORDINGS = ROOT / "conformance" / "recordings"
_START = 600
"""Seconds that a server may take to start, also after it died during the run."""
_JUDGE = (sys.executable, "-m", "plumbline_conformance.cli")


class Site:
    """Start one server in its environment."""

    def __init__(self, name: str, peer: PeerServer) -> None:
        self.name = name
        self.peer = peer
        self.mcp = f"127.0.0.1:{free_port()}"
        """Where the judge runs an MCP server for ours."""
        home = peer.within or name
        self._environment = None if home == name and peer.ours else Environment(home, PEERS[home], HOME)
        self._bin = Path(sys.executable).parent if self._environment is None else self._environment.bin
        if self._environment is not None and peer.ours:
            self._environment.add_ours()
        if peer.gguf and self._environment is not None:
            _write_gguf(self._environment)

    @property
    def title(self) -> str:
        """Return its name and version."""
        if self._environment is None or self.peer.ours:
            from importlib.metadata import version

            return self.peer.title.format(version=version(self.peer.package))
        if self.peer.source is not None:
            return self.peer.title.format(version=self.peer.source.partition("==")[2])
        return self.peer.title.format(version=self._environment.version(self.peer.package))

    @contextmanager
    def running(self, *more: str) -> Iterator[str]:
        """Run the server with further arguments until the block ends; yield its base URL."""
        with ExitStack() as stack:
            upstream = ""
            if self.peer.upstream:
                # Without a key, which not every gateway passes on.
                ours = Site("plumbline", replace(PEERS["plumbline"], key=None))
                upstream = stack.enter_context(ours.running()).removesuffix("/v1")
            # A new folder, so that objects stored by another run are not visible in this one.
            data = stack.enter_context(TemporaryDirectory())
            yield stack.enter_context(self._running(upstream, data, *more))

    @contextmanager
    def _running(self, upstream: str, data: str, *more: str) -> Iterator[str]:
        port = free_port()
        names = {
            "port": port,
            "spare_port": free_port(),
            "mcp": self.mcp,
            "model": MODEL,
            "upstream": upstream,
            "data": data,
            "packages": "" if self._environment is None else self._environment.packages,
        }
        program, *rest = (part.format(**names) for part in (*self.peer.command, *more))
        for file, text in self.peer.files.items():
            (_models() / file).write_text(text.format(**names), "utf-8")
        given = {name: value.format(**names) for name, value in self.peer.variables.items()}
        variables = {**THREADS, "XDG_DATA_HOME": data, **given}
        if self.peer.key is not None:
            variables[self.peer.key] = KEY
        if not self.peer.ours:
            variables["PYTHONPATH"] = ""
        if self.peer.hub:
            variables["HF_HUB_CACHE"] = str(_hub())
        start = partial(
            started,
            [str(self._bin / program), *rest],
            port,
            ready=self.peer.ready,
            patience=_START,
            folder=_models(),
            **variables,
        )
        with supervised(start):
            yield f"http://127.0.0.1:{port}/v1"


def main() -> int:
    """Judge the named servers, or all of them."""
    parser = argparse.ArgumentParser(prog="nox -s peers --", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(PEERS)}")
    parser.add_argument("--again", action="store_true", help="judge the recordings, and start no server")
    parser.add_argument("--diff", action="store_true", help="also compare the other servers with ours")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="judge each server N times")
    options = parser.parse_args()
    if unknown := set(options.names) - set(PEERS):
        parser.error(f"unknown server: {', '.join(sorted(unknown))}")
    lines: list[str] = []
    for name in () if options.again else options.names or PEERS:
        try:
            lines.append(f"{name}: {_judge(name, diff=options.diff, runs=options.runs)}")
        except (MissingServer, RuntimeError, OSError) as error:
            lines.append(f"{name}: not judged: {error}")
    write(committed_files(ROOT))
    print("\n".join(lines))
    return 0


def _judge(name: str, *, diff: bool, runs: int) -> str:
    """Judge one server, and return the last line of the judge's output.

    Every run starts the server anew; the first is recorded.
    """
    site = Site(name, PEERS[name])
    # A failed run does not replace the recording.
    fresh = HOME / f"{name}.jsonl.gz"
    with site.running() as url:
        # Some servers show source paths in errors, so the path of this checkout is redacted.
        redacted = ("--record", str(fresh), "--server", site.title, "--conceal", str(ROOT))
        fresh.unlink(missing_ok=True)
        last, live = _check(site, url, *redacted)
        if other := _otherwise(live, fresh):
            raise RuntimeError(f"these checks judge the recording differently: {', '.join(other)}")
        if (RECORDINGS / fresh.name).is_file():
            _remember(name)
        shutil.copyfile(fresh, RECORDINGS / fresh.name)
    if diff and not site.peer.ours:
        # The last requests of the judge may have silenced the server.
        with site.running() as url:
            _compare(site, url)
    if runs > 1:
        reports = [live]
        for number in range(1, runs):
            with site.running() as url:
                reports.append(_check(site, url, number=number)[1])
        found = repetitions_of(site.title, [column.report for column in _columns(*reports)])
        _write(f"{name}.repetitions.json", found)
        last += f"; {found.sentence}"
    return last


def _check(site: Site, url: str, *more: str, number: int = 0) -> tuple[str, Path]:
    """Judge a server; return the last line of the output, and the report of the run with this number."""
    live = HOME / f"{site.name}.{number}.json"
    live.unlink(missing_ok=True)
    judged = ("check", url, "--model", site.peer.served, *_key("--api-key", site))
    if site.peer.ours:
        judged += ("--mcp", site.mcp)
    limits = ("--timeout", "120", "--restart-wait", str(_START))
    status, last = _run(*judged, *limits, "--json", str(live), *more)
    if status not in (0, 1):
        raise RuntimeError(f"it could not be judged, status {status}: {last}")
    return last, live


def _compare(site: Site, url: str) -> None:
    """Compare a running server with ours, and write the differences."""
    # The GGUF file has 32-bit weights. Where the other server computes in 32 bits, ours must as well.
    precision = ("--dtype", "float32") if site.peer.gguf or "float32" in site.peer.command else ()
    compared = HOME / f"{site.name}.differences.json"
    compared.unlink(missing_ok=True)
    with Site("plumbline", PEERS["plumbline"]).running(*precision) as ours:
        other = ("--reference-model", site.peer.served, *_key("--reference-api-key", site))
        sides = ("--model", MODEL, "--api-key", KEY, *other)
        written = ("--json", str(compared))
        _, last = _run("compare", ours, url, *sides, "--examples", "100", "--timeout", "120", *written)
    if not compared.is_file():
        raise RuntimeError(f"it could not be compared: {last}")
    _write(f"{site.name}.differences.json", read_run(compared))


def _remember(name: str) -> None:
    """Keep the results of a recording that is about to be replaced."""
    [column] = _columns(RECORDINGS / f"{name}.jsonl.gz")
    known = read_history(RECORDINGS / f"{name}.history.json")
    _write(f"{name}.history.json", with_past(known, past_of(column.report)))


def _write(name: str, found: msgspec.Struct | Sequence[msgspec.Struct]) -> None:
    text = msgspec.json.format(msgspec.json.encode(found), indent=1)
    (RECORDINGS / name).write_bytes(text + b"\n")


def _key(option: str, site: Site) -> tuple[str, ...]:
    return () if site.peer.key is None else (option, KEY)


def _otherwise(report: Path, recording: Path) -> list[str]:
    """Return the checks with another verdict on the recording than on the server."""
    live, replayed = _columns(report, recording)
    first = {result.check: result.verdict for result in live.report.results}
    again = {result.check: result.verdict for result in replayed.report.results}
    return sorted(name for name in first.keys() | again.keys() if first.get(name) != again.get(name))


def _columns(*paths: Path) -> list[Column]:
    return columns_from([f"{number}={path}" for number, path in enumerate(paths)])


def _run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([*_JUDGE, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    lines: Sequence[str] = done.stdout.splitlines() or ["the error is above"]
    return done.returncode, lines[-1]


def _models() -> Path:
    """Return a folder that contains the text model under its name: most of the servers read no LLaVA."""
    folder = HOME / "models"
    if not (folder / MODEL).is_dir():
        from plumbline.pocket.folder import write_text_model

        write_text_model(MODEL_DIR, folder / MODEL)
    return folder


def _hub() -> Path:
    """Return a hub cache that contains the model."""
    folder = HOME / "hub"
    cached = folder / f"models--{MODEL}"
    revision = "0" * 40
    if not (cached / "refs").is_dir():
        from plumbline.pocket.folder import write_text_model

        write_text_model(MODEL_DIR, cached / "snapshots" / revision)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text(revision, "utf-8")
    return folder


def _write_gguf(environment: Environment) -> None:
    """Write the GGUF file in this process, which has torch, with the package `gguf` of the server's environment."""
    path = _models() / f"{MODEL}.gguf"
    if path.is_file():
        return
    sys.path.append(str(environment.packages))
    from plumbline.pocket.to_gguf import write

    write(MODEL_DIR, path)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
