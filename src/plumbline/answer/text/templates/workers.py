"""Render chat templates in worker processes, which end with a template that takes too much time or memory.

A template is a program: one operation of it, such as a comparison of lists that share their entries, can take years in
C code that holds the interpreter lock. So no template of a model or of a request renders in the server's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from plumbline.answer.text.templates.content_format import ContentFormat
from plumbline.answer.text.templates.handler import ERROR
from plumbline.answer.text.templates.template import (
    TemplateError,
    TemplateFacts,
    TemplateSpec,
)
from plumbline.base.workers.pool import Bounds, WorkerError, WorkerPool, WorkersBusyError

__all__ = ["Rendering", "TemplateWorkers", "TemplatesBusyError", "WorkerTemplate", "rendering_now"]

T = TypeVar("T")

_BOUNDS = Bounds(cpu_seconds=10.0, seconds=40.0, memory=1 << 30, result=1 << 26)
"""A conversation of 10 MiB takes about a second, and 0.2 GiB."""
_EXCEEDED = {
    "time": f"it took more than {_BOUNDS.cpu_seconds:g} s of CPU time",
    "memory": f"it needs more than {_BOUNDS.memory >> 20} MiB of memory",
    "result": f"it makes a prompt of more than {_BOUNDS.result >> 20} MiB",
    "crash": "the process that rendered it ended",
}


class TemplatesBusyError(Exception):
    """As many prompts wait to be rendered as may wait; the text can be shown to the client."""

    def __init__(self) -> None:
        super().__init__("Too many prompts wait to be rendered. Try again later.")


class Rendering:
    """Render in a worker, from a thread, as long as the worker is lent.

    Args:
        call: sends a payload to the worker, and waits for the answer.
    """

    def __init__(self, call: Callable[[bytes], bytes]) -> None:
        self._call = call

    def facts(self, spec: TemplateSpec) -> TemplateFacts:
        """Parse a template.

        Raises:
            TemplateError: it is not valid, or exceeds a bound.
        """
        return msgspec.json.decode(self._answer(spec, None, {}), type=TemplateFacts)

    def render(
        self, spec: TemplateSpec, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> str:
        """Render a conversation; see `ChatTemplate.render`.

        Raises:
            TemplateError: the template refused the messages, or exceeded a bound.
        """
        return self._answer(spec, list(messages), options).decode("utf-8", "surrogatepass")

    def _answer(
        self, spec: TemplateSpec, messages: list[Mapping[str, Any]] | None, options: Mapping[str, Any]
    ) -> bytes:
        payload = pickle.dumps((tuple(spec), messages, dict(options)), pickle.HIGHEST_PROTOCOL)
        try:
            answer = self._call(payload)
        except WorkerError as error:
            what = "be read" if messages is None else "render these messages"
            raise TemplateError(f"The chat template could not {what}: {_EXCEEDED[error.reason]}.") from error
        if answer[:1] == ERROR:
            raise TemplateError(answer[1:].decode())
        return answer[1:]


class WorkerTemplate:
    """Render with a template as `ChatTemplate` does, in a worker."""

    def __init__(self, spec: TemplateSpec, facts: TemplateFacts, rendering: Rendering) -> None:
        self.source = spec.source
        self._spec = spec
        self._facts = facts
        self._rendering = rendering

    def content_format(self, *, tools: bool) -> ContentFormat:
        """See `TemplateFacts.content_format`."""
        return self._facts.content_format(tools=tools)

    def uses(self, variable: str, *, tools: bool) -> bool:
        """See `TemplateFacts.uses`."""
        return self._facts.uses(variable, tools=tools)

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """See `ChatTemplate.render`."""
        return self._rendering.render(self._spec, messages, options)


class TemplateWorkers:
    """The workers of a server, which clients share evenly. One event loop may use it.

    Args:
        waiting: prompts that may wait, half of them of one client.
    """

    def __init__(self, waiting: int = 2048) -> None:
        self._pool = _pool(waiting)

    async def start(self) -> None:
        """Start the processes, so that the first request does not wait for them."""
        await self._pool.start()

    async def close(self) -> None:
        """End the processes. Idempotent."""
        await self._pool.close()

    @contextlib.asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[Rendering]:
        """Wait for a worker, and lend it within the block to a thread.

        Args:
            client: whose turn it is.

        Raises:
            TemplatesBusyError: too many prompts wait.
            WorkerError: no process could be started.
        """
        loop = asyncio.get_running_loop()
        try:
            async with self._pool.worker(client) as worker:

                def call(payload: bytes) -> bytes:
                    return asyncio.run_coroutine_threadsafe(worker.call(payload), loop).result()

                yield Rendering(call)
        except WorkersBusyError:
            raise TemplatesBusyError from None


@contextlib.contextmanager
def rendering_now() -> Iterator[Rendering]:
    """Lend a worker within the block to the thread that calls: at the start of a server, before its event loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="templates", daemon=True)
    thread.start()
    pool = _pool()

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    try:
        yield Rendering(lambda payload: run(pool.call(payload, "")))
    finally:
        run(pool.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _pool(waiting: int = 1) -> WorkerPool:
    return WorkerPool(
        "plumbline.answer.text.templates.handler:handler", bounds=_BOUNDS, waiting=waiting, niceness=5
    )
