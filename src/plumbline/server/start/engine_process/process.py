"""Be the process of an engine: load a model, serve it on a socket, and end with the keeper."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import fcntl
import gc
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from plumbline.base.workers.memory import highest, kept_trimmed, resident, trim
from plumbline.engines.remote.host import EngineHost
from plumbline.engines.remote.journal import Suspicion
from plumbline.port.progress import LoadProgress, report, watched
from plumbline.server.loading.model_files import named_files
from plumbline.server.observe.logs import configure
from plumbline.server.settings import OptionError
from plumbline.server.start.engine_process.light_imports import complete_torch, light_imports
from plumbline.server.start.engine_process.start_messages import (
    Cleared,
    EngineReady,
    EngineStart,
    Failed,
    Loading,
    ModelsPlanned,
    Report,
)
from plumbline.server.start.explain import explained
from plumbline.server.start.garbage import make_collections_rare

if TYPE_CHECKING:
    from plumbline.server.loading.engines import WithAdmission  # It imports torch, which takes seconds.

__all__ = ["main"]

_LOOK = 0.2
"""Seconds between two looks whether the engine is alive."""
_SET_SIGNAL = 10
"""F_SETSIG of Linux."""


class _Reports:
    """The pipe to the keeper. Any thread may write."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._lock = threading.Lock()

    def send(self, message: Report) -> None:
        """Send a report; a keeper that has ended ends this process in another way (`_Keeper`)."""
        with self._lock, contextlib.suppress(OSError):
            self._file.write(msgspec.json.encode(message) + b"\n")


def main() -> int:
    """Serve until the keeper ends this process, or until the engine fails; return the exit status."""
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        # A service manager may send them to all processes at once, and streams have `--shutdown-timeout` seconds yet.
        if hasattr(signal, name):
            signal.signal(
                getattr(signal, name), _ignore
            )  # SIG_IGN would be that of processes started here as well.
    gc.disable()  # Until `make_collections_rare`: little of what a start makes is garbage.
    reports = _Reports(int(sys.argv[1]))
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineStart)
    keeper = _Keeper(start.private)
    configure(start.settings.log_format)
    faulthandler.enable()  # The log has the lines that ran when a kernel crashes.
    try:
        if not start.folder:
            from plumbline.server.loading.plan import plan

            reports.send(ModelsPlanned(plan(start.settings)))
            return 0
        engine, reason = _load(start, reports)
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(_serve(start, engine, reason, reports, keeper))
    except BaseException as error:
        reports.send(_failure(error))
        if start.settings.debug:
            raise
        return 1


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop as the server has it, without what takes uvicorn's import."""
    try:
        import uvloop
    except ImportError:  # Windows has none.
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _ignore(*_: object) -> None:
    """Do nothing at a signal."""


class _Keeper:
    """The keeper's end of standard input: a line stops this process, and the end of the pipe is that of the keeper.

    Args:
        private: the folder that is shared with the keeper, and removed when that has ended.
    """

    def __init__(self, private: str) -> None:
        self._private = private
        self._stop: Callable[[], object] = partial(os._exit, 0)
        if (
            sys.platform == "linux"
        ):  # The kernel wakes a process that was stopped, so that the thread sees the end.
            fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(0, _SET_SIGNAL, signal.SIGCONT)
            fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
        threading.Thread(target=self._wait, name="keeper", daemon=True).start()

    def on_stop(self, stop: Callable[[], object]) -> None:
        """Call a function, on another thread, when the keeper stops this process; until now that ends it at once."""
        self._stop = stop

    def _wait(self) -> None:
        while os.read(0, 4096):
            self._stop()
        if self._private:
            shutil.rmtree(self._private, ignore_errors=True)
        # vLLM's processes would go on loading. The keeper kills the group of a process that ends before it.
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def _load(start: EngineStart, reports: _Reports) -> tuple[WithAdmission, str]:
    """Load the engine, and report how far that is."""

    def watch(progress: LoadProgress) -> None:
        reports.send(Loading(progress.stage, progress.done, progress.total))

    folder, gguf = Path(start.folder), None if start.gguf is None else Path(start.gguf)
    with watched(watch), named_files(folder) if gguf is None else contextlib.nullcontext():
        report("loading libraries")
        if _may_compile(start):
            from plumbline_kernels.cpu.build import build_ahead

            build_ahead()
        if gguf is not None:
            from plumbline.engines.llama_cpp.threads import bound_waits

            bound_waits()
        from plumbline.answer.text.gguf.vocabulary import read_tokens
        from plumbline.answer.text.tokenizer import TextTokenizer

        with light_imports() if _may_compile(start) else contextlib.nullcontext():
            from plumbline.server.loading.engines import build_engine, choose_engine

        gc.freeze()  # Libraries are most of the objects, and stay.
        choice = choose_engine(start.settings, folder, gguf)
        if choice.name in ("transformers", "vllm"):
            complete_torch()
        tokenizer = TextTokenizer.from_folder(folder) if gguf is None else read_tokens(gguf)
        return build_engine(choice, start.settings, start.name, tokenizer, folder, gguf), choice.reason


def _may_compile(start: EngineStart) -> bool:
    """Return whether the engine may need compiled kernels; what it is and runs on is known after seconds of imports."""
    settings = start.settings
    return (
        settings.compile != "off"
        and settings.engine in ("auto", "plumbline")
        and settings.device in ("auto", "cpu")
    )


def _end_without_memory(reports: _Reports) -> None:
    """End this process when its event loop has no memory: its connections would break, and it would go on half alive.

    A step without memory raises to the engine, which fails one request.
    """
    last = Failed("there was no memory for its event loop")

    def end() -> NoReturn:
        with contextlib.suppress(BaseException):
            reports.send(last)
        os._exit(1)

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), MemoryError):
            end()
        loop.default_exception_handler(context)

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        if isinstance(found.exc_value, MemoryError):
            end()
        sys.__unraisablehook__(found)

    asyncio.get_running_loop().set_exception_handler(handle)
    sys.unraisablehook = unraisable  # uvloop's callbacks cannot raise.


async def _serve(
    start: EngineStart, engine: WithAdmission, reason: str, reports: _Reports, keeper: _Keeper
) -> int:
    make_collections_rare()
    _end_without_memory(reports)
    stopping = asyncio.Event()
    private = Path(start.private)
    suspicion = Suspicion(
        private / "engine.journal",
        start.quarantined,
        start.suspects,
        lambda digest: reports.send(Cleared(digest)),
    )
    engine.admission.mark = suspicion.journal.mark
    host = EngineHost(engine, private / "engine.sock", suspicion, start.number)
    trimming = asyncio.create_task(kept_trimmed())
    try:
        await engine.start()
        # Before, a stop ends this process at once: vLLM takes minutes to start, and nothing waits for its answers.
        keeper.on_stop(partial(asyncio.get_running_loop().call_soon_threadsafe, stopping.set))
        await host.start()
        trim()
        info = msgspec.structs.replace(engine.info, resident_bytes=resident(), loading_bytes=highest())
        reports.send(EngineReady(info, reason))
        while not stopping.is_set() and engine.stats().alive:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), _LOOK)
        failure = engine.stats().failure
        if not stopping.is_set():
            reports.send(Failed(failure or "the engine has failed"))
    finally:
        trimming.cancel()
        await host.stop()
        await engine.stop()
    return 0 if stopping.is_set() else 1


def _failure(error: BaseException) -> Failed:
    """Return what the keeper has to know of an error that ends the process."""
    if isinstance(error, OptionError):
        return Failed(error.problem, error.option, explains_itself=True)
    if isinstance(error, ValueError | FileNotFoundError):
        return Failed(str(error), explains_itself=True)
    return Failed(explained(error))


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # Threads of libraries must not keep a process whose engine has stopped.
