"""Replicas behind each proxy are restarted one after the other, under load: no request is lost.

A request is lost if it fails and its client cannot know that it may send it again: any POST, and a turn of a WebSocket
that has begun.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.servers.ports import free_port

from .cluster import KEY, cluster, missing
from .fleet import DEPLOY, PROXIES, Replica, healthy, proxied, replica, wait_for
from .kubernetes import roll_out, service, started
from .load import Load, load

pytestmark = pytest.mark.long

NOTICED = 3.0
"""Seconds in which a proxy must have seen that a replica is back."""
ROUNDS = 2
OPTIONS = ("--store=none", "--shutdown-timeout=30")
OF_PROXY = {"caddy": ("--stop-delay=3",)}
"""What the configuration of a proxy asks of replicas."""


def restart(one: Replica, seen: Load) -> None:
    """Restart a replica, and wait until it is ready and the others know."""
    assert one.stop() in (0, -15)
    one.start_again()
    wait_for(lambda: healthy(one.port))
    time.sleep(NOTICED)
    before = sum(seen.answered.values())
    wait_for(lambda: sum(seen.answered.values()) > before + 20)


@pytest.mark.parametrize("options", [(), ("--api-servers=2",)], ids=["one process", "two API servers"])
@pytest.mark.parametrize("proxy", PROXIES)
def test_a_rolling_restart_loses_no_request(proxy: str, options: tuple[str, ...], tmp_path: Path) -> None:
    if options and proxy != "nginx":
        pytest.skip("the proxy sees no difference; nginx, without probes, is the hardest")
    ports = [free_port(), free_port(), free_port()]
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(replica(port, (*OPTIONS, *OF_PROXY.get(proxy, ()), *options)))
            for port in ports[:2]
        ]
        wait_for(lambda: all(healthy(each.port) for each in replicas))
        url = stack.enter_context(proxied(proxy, tmp_path, ports))
        with load(url) as seen:
            wait_for(lambda: len(seen.answered) == 4 or seen.failed)
            assert not seen.failed
            for _ in range(ROUNDS):
                for each in replicas:
                    restart(each, seen)
    print(f"{proxy}: answered {dict(seen.answered)}, sent again {dict(seen.repeated)}")
    assert not seen.failed


def test_a_rollout_in_a_cluster_loses_no_request(tmp_path: Path) -> None:
    """The documented manifest in Kubernetes itself, of which nothing but the machine is emulated."""
    if lacks := missing():
        pytest.skip(f"no cluster, for want of: {', '.join(lacks)}")
    with cluster(tmp_path) as at:
        at.apply(DEPLOY / "kubernetes.yaml")
        with load(at.url(), authorization=f"Bearer {KEY}") as seen:
            wait_for(lambda: len(seen.answered) == 4 or seen.failed)
            assert not seen.failed
            first = {each["metadata"]["name"] for each in at.pods()}
            for _ in range(ROUNDS):
                at.roll_out()
        events = at.events()
        last = {each["metadata"]["name"] for each in at.pods()}
    print(f"Kubernetes 1.{at.minor}: answered {dict(seen.answered)}, sent again {dict(seen.repeated)}")
    assert not seen.failed
    assert not first & last
    # No probe took a pod that works for one that does not, and no hook failed.
    assert not [
        each for each in events if "will be restarted" in each or each.startswith("FailedPreStopHook")
    ]


def test_a_rollout_in_kubernetes_loses_no_request() -> None:
    """An emulation; see kubernetes.py."""
    pods: list[Replica] = []
    try:
        pods += [started(), started()]
        with service(pods) as at, load(f"http://127.0.0.1:{at.port}") as seen:
            wait_for(lambda: len(seen.answered) == 4 or seen.failed)
            roll_out(pods, at)
    finally:
        for pod in pods:
            pod.process.terminate()
            pod.process.wait(60)
    print(f"kubernetes: answered {dict(seen.answered)}, sent again {dict(seen.repeated)}")
    assert not seen.failed
