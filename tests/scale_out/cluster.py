"""Run Kubernetes on this machine, in namespaces of its own: control plane, kubelet, kube-proxy and containerd.

The image has no files: its folders are links to this machine's, which each pod sees below `/host`. So a pod runs the
code that is tested, in its Python environment.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from .fleet import wait_for

__all__ = ["KEY", "Cluster", "cluster", "missing"]

PROGRAMS = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "etcd",
    "containerd", "containerd-shim-runc-v2", "ctr", "runc", "iptables", "conntrack", "ip", "unshare", "gcc",
)  # fmt: skip
PLUGINS = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
NODE, PODS, SERVICES = "10.99.0.1", "10.97.0.0/24", "10.98.0.0/24"
"""Addresses in a network namespace that has no way out."""
ROOT = Path(__file__).parents[2]
TOKEN = "operator"
KEY = "key-of-the-test"
NEW_NETWORK = 0x40000000
"""CLONE_NEWNET."""
OF_THE_IMAGE = ("proc", "sys", "dev", "tmp", "data", "host", "etc", "run", "root")
"""Folders of a pod that are its own."""
PAUSE = "int pause(void); int main(void) { for (;;) pause(); }"
"""The process that keeps the network of a pod."""


def _plugins() -> Path | None:
    places = [*PLUGINS, *(Path(each) for each in os.environ.get("PATH", "").split(os.pathsep))]
    return next((each for each in places if (each / "host-local").exists()), None)


def missing() -> list[str]:
    """Return what a cluster needs and this machine lacks."""
    found = [each for each in PROGRAMS if shutil.which(each) is None]
    if _plugins() is None:
        found.append("the CNI plugins")
    return found if os.geteuid() == 0 else [*found, "root"]


class Cluster:
    """Kubernetes on one node.

    Args:
        folder: for its files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        found = re.search(r"v1\.(\d+)", subprocess.check_output(["kubelet", "--version"], text=True))
        assert found is not None
        self.minor = int(found[1])
        """Of its version."""

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """Run a command and return what it prints."""
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=given, text=True, capture_output=True)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def is_ready(self) -> bool:
        """Return whether the node takes pods."""
        try:
            return "True" in self.kubectl(
                "get", "nodes", "-o", "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
            )
        except AssertionError:
            return False

    def apply(self, manifests: Path) -> None:
        """Apply the documented manifests, with what stands in for a registry, a disk and a larger machine."""
        self.kubectl(
            "create",
            "secret",
            "generic",
            "plumbline",
            f"--from-literal=api-key={KEY}",
            "--from-literal=store=none",
        )
        every = [*yaml.safe_load_all(manifests.read_text("utf-8"))]
        for each in every:
            if each["kind"] == "Deployment":
                _fit(each["spec"]["template"]["spec"], self.folder)
            if each["apiVersion"] == "policy/v1" and self.minor < 21:
                each["apiVersion"] = "policy/v1beta1"
        self.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(every))
        self.rolled_out()

    def roll_out(self) -> None:
        """Replace each pod, as after a change of the image, and wait until the old ones are gone."""
        self.kubectl("rollout", "restart", "deployment/plumbline")
        self.rolled_out()

    def rolled_out(self) -> None:
        """Wait until the pods of the last change run, and no others."""
        self.kubectl("rollout", "status", "deployment/plumbline", "--timeout=300s")
        wait_for(lambda: len(self.pods()) == 2, 200)

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the server."""
        found: list[dict[str, Any]] = json.loads(
            self.kubectl("get", "pods", "-l", "app=plumbline", "-o", "json")
        )["items"]
        return found

    def events(self) -> list[str]:
        """Return what happened to pods, in words: reason and message."""
        found = json.loads(self.kubectl("get", "events", "-o", "json"))["items"]
        return [
            f"{each['reason']}: {each['message']}"
            for each in found
            if each["involvedObject"]["kind"] == "Pod"
        ]

    def url(self) -> str:
        """Return the address of the Service."""
        return "http://" + self.kubectl("get", "service", "plumbline", "-o", "jsonpath={.spec.clusterIP}")


def _fit(pod: dict[str, Any], folder: Path) -> None:
    """Let a pod of the manifest run here; what it does with probes, signals and time stays."""
    container = pod["containers"][0]
    container["imagePullPolicy"] = "Never"
    container["resources"]["requests"] = {"cpu": "100m", "memory": "256Mi"}  # This machine is smaller.
    data = folder / "data"
    data.mkdir(exist_ok=True)
    data.chmod(0o777)
    pod["volumes"] = [
        {"name": "data", "hostPath": {"path": str(data)}}
    ]  # As with a claim: kernels are compiled once.
    # Folders of this machine, those that other users cannot reach by its own path among them.
    for name, path in (
        ("host", "/"),
        ("python", sys.base_prefix),
        ("packages", sys.prefix),
        ("code", str(ROOT)),
    ):
        pod["volumes"].append({"name": name, "hostPath": {"path": path}})
        at = "/host" if path == "/" else path
        container["volumeMounts"].append({"name": name, "mountPath": at, "readOnly": True})


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Run Kubernetes while the block runs; threads and processes that the block starts are in its network."""
    found = Cluster(folder)
    _write(found)
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net", "rb") as before:
        assert libc.unshare(NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
        try:
            for command in (
                "link set lo up",
                "link add node0 type bridge",
                f"addr add {NODE}/24 dev node0",
                "link set node0 up",
                "route add default dev node0",
            ):
                subprocess.run(["ip", *command.split()], check=True)
            with open(folder / "log", "wb") as log:
                # All processes end with the first one of their namespace.
                isolated = [
                    "unshare",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "--mount",
                    "--mount-proc",
                    "bash",
                    str(folder / "node"),
                ]
                node = subprocess.Popen(isolated, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
                try:
                    wait_for(found.is_ready, 180)
                    yield found
                finally:
                    node.kill()
                    node.wait()
        finally:
            libc.setns(before.fileno(), NEW_NETWORK)
            _remove_groups()


def _write(found: Cluster) -> None:
    """Write the configuration of all parts."""
    folder = found.folder
    subprocess.run(
        ["openssl", "genrsa", "-out", str(folder / "key"), "2048"], check=True, capture_output=True
    )
    (folder / "tokens").write_text(f'{TOKEN},operator,1,"system:masters"\n')
    cluster_ = {"server": f"https://{NODE}:6443", "insecure-skip-tls-verify": True}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": cluster_}],
        "users": [{"name": "operator", "user": {"token": TOKEN}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "operator"}}],
        "current-context": "here",
    }
    found.kubeconfig.write_text(yaml.safe_dump(kubeconfig))
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(KUBELET))
    (folder / "proxy.yaml").write_text(
        yaml.safe_dump({**PROXY, "clientConnection": {"kubeconfig": str(found.kubeconfig)}})
    )
    (folder / "containerd.toml").write_text(CONTAINERD.format(folder=folder, plugins=_plugins()))
    (folder / "net.d").mkdir()
    (folder / "net.d" / "1.conflist").write_text(json.dumps(NETWORK))
    _write_images(folder)
    (folder / "node").write_text(_node(found))


KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failSwapOn": False,
    "evictionHard": {
        "memory.available": "0%",
        "nodefs.available": "0%",
        "imagefs.available": "0%",
        "nodefs.inodesFree": "0%",
    },
    "imageGCHighThresholdPercent": 100,
    "resolvConf": "",
}
PROXY = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "mode": "iptables",
    "clusterCIDR": PODS,
    "hostnameOverride": "node",
    "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
}
NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}
CONTAINERD = """
version = 2
root = "{folder}/containerd"
state = "{folder}/containerd.run"
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/pause:1"
disable_apparmor = true
# Root may not protect processes from the lack of memory in every virtual machine.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{folder}/net.d"
"""


def _node(found: Cluster) -> str:
    """Return the commands that start all parts."""
    folder, config = found.folder, f"--kubeconfig={found.kubeconfig}"
    remote = "--container-runtime=remote" if found.minor < 24 else ""
    socket = f"unix://{folder}/containerd.sock"
    return f"""
set -u
cd {folder}
mkdir -p /var/lib/cni
for own in /var/log /var/lib/cni; do mount -t tmpfs tmpfs $own; done
containerd --config containerd.toml > containerd.log 2>&1 &
until ctr -a containerd.sock version > /dev/null 2>&1; do sleep 0.1; done
ctr -a containerd.sock -n k8s.io images import images.tar
etcd --data-dir etcd > etcd.log 2>&1 &
kube-apiserver --etcd-servers=http://127.0.0.1:2379 --cert-dir=certs --bind-address={NODE} --advertise-address={NODE} \
    --service-cluster-ip-range={SERVICES} --token-auth-file=tokens --authorization-mode=AlwaysAllow \
    --service-account-issuer=https://{NODE} --service-account-key-file=key --service-account-signing-key-file=key \
    --disable-admission-plugins=ServiceAccount > apiserver.log 2>&1 &
until kubectl {config} get --raw /readyz > /dev/null 2>&1; do sleep 0.2; done
kube-controller-manager {config} --leader-elect=false > manager.log 2>&1 &
kube-scheduler {config} --leader-elect=false > scheduler.log 2>&1 &
kube-proxy --config=proxy.yaml > proxy.log 2>&1 &
kubelet {config} --config=kubelet.yaml --root-dir={folder}/kubelet --cert-dir={folder}/kubelet.certs {remote} \
    --container-runtime-endpoint={socket} --hostname-override=node --node-ip={NODE} > kubelet.log 2>&1 &
wait
"""


def _write_images(folder: Path) -> None:
    """Write an archive of the images of pods: of the server, and of the process that keeps a pod's network."""
    subprocess.run(
        ["gcc", "-static", "-Os", "-x", "c", "-", "-o", str(folder / "pause")],
        input=PAUSE.encode(),
        check=True,
    )
    server = io.BytesIO()
    with tarfile.open(fileobj=server, mode="w") as layer:
        for name in OF_THE_IMAGE:
            _add(layer, name, tarfile.DIRTYPE, mode=0o1777 if name == "tmp" else 0o755)
        for top in sorted(Path("/").iterdir()):
            if top.name not in OF_THE_IMAGE:
                _add(layer, top.name, tarfile.SYMTYPE, link=f"host/{top.name}")
        for name in ("alternatives", "ld.so.cache", "passwd", "ssl"):
            _add(layer, f"etc/{name}", tarfile.SYMTYPE, link=f"/host/etc/{name}")
    pause = io.BytesIO()
    with tarfile.open(fileobj=pause, mode="w") as layer:
        layer.add(folder / "pause", "pause")
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": "/data",
        "XDG_CACHE_HOME": "/data/cache",
        "PLUMBLINE_HOST": "0.0.0.0",
    }
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    of_server = {
        "Entrypoint": [sys.executable, "-m", "plumbline", "serve", "--served-model-name=m"],
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "User": "10001",
        "WorkingDir": "/data",
    }
    with tarfile.open(folder / "images.tar", "w") as archive:
        listed = [
            _image(archive, "docker.io/library/plumbline:latest", server.getvalue(), of_server),
            _image(archive, "docker.io/library/pause:1", pause.getvalue(), {"Entrypoint": ["/pause"]}),
        ]
        _add(archive, "manifest.json", tarfile.REGTYPE, data=json.dumps(listed).encode())


def _image(archive: tarfile.TarFile, name: str, layer: bytes, config: dict[str, Any]) -> dict[str, Any]:
    """Add an image to an archive in Docker's form; return its entry in the list."""
    digest = hashlib.sha256(layer).hexdigest()
    described = {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    data = json.dumps(described).encode()
    named = hashlib.sha256(data).hexdigest()
    _add(archive, f"{named}.json", tarfile.REGTYPE, data=data)
    _add(archive, f"{digest}.tar", tarfile.REGTYPE, data=layer)
    return {"Config": f"{named}.json", "RepoTags": [name], "Layers": [f"{digest}.tar"]}


def _add(
    archive: tarfile.TarFile, name: str, kind: bytes, *, link: str = "", data: bytes = b"", mode: int = 0o755
) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size, entry.mode = kind, link, len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def _remove_groups() -> None:
    """Remove the cgroups of containers, which are empty now."""
    time.sleep(0.5)
    for top in Path("/sys/fs/cgroup").glob("**/k8s.io"):
        for group in sorted(top.rglob("*"), reverse=True):
            if group.is_dir():
                group.rmdir()
        top.rmdir()
