"""What Kubernetes does with docs/deploy/kubernetes.yaml in a rollout, as far as a server can tell; no cluster runs.

A Service is kube-proxy's: it chooses an endpoint for each connection and knows nothing of HTTP. Nodes learn late that a
pod is ending, so it gets connections for some seconds more. Connections that were chosen earlier stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import yaml
from support.servers.ports import free_port

from .fleet import DEPLOY, Replica, wait_for

__all__ = ["CONTAINER", "GRACE", "Service", "roll_out", "service", "started"]

_MANIFESTS: dict[str, Any] = {
    each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))
}
_POD: dict[str, Any] = _MANIFESTS["Deployment"]["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = _POD["containers"][0]
GRACE: int = _POD["terminationGracePeriodSeconds"]
LATE = 4.0
"""Seconds until all nodes know that a pod is ending."""


class Service:
    """A TCP address in front of pods.

    Args:
        pods: those that are ready.
    """

    def __init__(self, pods: list[Replica]) -> None:
        self.endpoints = [pod.port for pod in pods]
        self.port = free_port()
        self._loop = asyncio.new_event_loop()

    def run(self) -> None:
        """Forward connections until `stop`."""
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._task = asyncio.current_task()
        async with await asyncio.start_server(self._forward, "127.0.0.1", self.port) as server:
            await server.serve_forever()

    def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", random.choice(self.endpoints))
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_copy(reader, up_writer), _copy(up_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        writer.transport.abort()
    else:
        writer.close()


@contextmanager
def service(pods: list[Replica]) -> Iterator[Service]:
    """Run a service while the block runs."""
    found = Service(pods)
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.stop()
        thread.join(20)


def started() -> Replica:
    """Start a pod, and wait for its probes."""
    pod = Replica(free_port(), ("--store=none", *CONTAINER["args"]))
    for name in ("startupProbe", "readinessProbe"):
        wait_for(lambda probe=CONTAINER[name]: _succeeds(pod, probe))  # type: ignore[misc]
    return pod


def _succeeds(pod: Replica, probe: dict[str, Any]) -> bool:
    try:
        path = probe["httpGet"]["path"]
        return httpx2.get(f"http://127.0.0.1:{pod.port}{path}", timeout=1).status_code < 400
    except httpx2.HTTPError:
        return False


def roll_out(pods: list[Replica], at: Service) -> None:
    """Replace each pod: a new one is ready before an old one ends (`maxSurge: 1`, `maxUnavailable: 0`)."""
    for number, old in enumerate(list(pods)):
        pods[number] = new = started()
        at.endpoints.append(new.port)
        _end(old, at)


def _end(pod: Replica, at: Service) -> None:
    """Do what the API server and the kubelet do at the same time; raise if the pod would be killed."""
    began = time.monotonic()
    late = threading.Timer(LATE, at.endpoints.remove, (pod.port,))
    late.start()
    subprocess.run(CONTAINER["lifecycle"]["preStop"]["exec"]["command"], check=True)
    pod.process.terminate()
    pod.process.wait(GRACE - (time.monotonic() - began))
    late.join()
