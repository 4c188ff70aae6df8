"""The files of docs/deploy fit the server: its options and metrics; tools accept them where they are installed."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from support.models import served, tiny_engine
from support.servers.asgi import serving

from plumbline.server.settings import OPTIONS

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SUFFIXES = re.compile(r"_(bucket|sum|count)$")


def expressions() -> list[str]:
    """The queries of the alerts and of the dashboard."""
    alerts = yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))
    board = json.loads((DEPLOY / "grafana" / "plumbline.json").read_text("utf-8"))
    found = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    return found + [target["expr"] for panel in board["panels"] for target in panel["targets"]]


async def test_every_query_is_of_a_metric_that_the_server_has() -> None:
    async with serving(served(tiny_engine())) as server:
        body = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        assert (await server.post("/v1/chat/completions", body)).status == 200
        exposed = (await server.get("/metrics")).body.decode()
    known = {line.split(" ")[2] for line in exposed.splitlines() if line.startswith("# TYPE")}
    # The store's metrics come with a store.
    known |= {"plumbline_store_failed_writes_total", "plumbline_store_failing"}
    for expression in expressions():
        names = re.findall(r"\bplumbline_\w+", expression)
        assert names or "up{" in expression
        for name in names:
            assert name in known or SUFFIXES.sub("", name) in known, name


def test_the_variables_of_the_containers_are_options() -> None:
    options = {option.variable for option in OPTIONS}
    options |= {option.file_option.variable for option in OPTIONS if option.about.in_file}
    containers = (DEPLOY / "Containerfile").read_text("utf-8")
    named = set(re.findall(r"PLUMBLINE_[A-Z_]+", containers))
    named |= {
        name for name in COMPOSE["services"]["plumbline"]["environment"] if name.startswith("PLUMBLINE_")
    }
    assert {"PLUMBLINE_HOST", "PLUMBLINE_STORE", "PLUMBLINE_API_KEY"} <= named <= options


def test_every_file_and_volume_of_the_composition_exists() -> None:
    mounts = [volume for service in COMPOSE["services"].values() for volume in service["volumes"]]
    assert any(mount.startswith("./") for mount in mounts)
    for mount in mounts:
        source = mount.split(":")[0]
        assert (DEPLOY / source).exists() if source.startswith("./") else source in COMPOSE["volumes"], mount
    build = COMPOSE["services"]["plumbline"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Containerfile")


def test_the_secrets_of_the_composition_reach_no_archive_and_no_image() -> None:
    """`COPY . .` would keep them in a layer, and the source archive has every file that git does not ignore."""
    assert "> .env" in (DEPLOY / "compose.yaml").read_text("utf-8")
    assert "**/.env" in (DEPLOY / "Containerfile.dockerignore").read_text("utf-8").splitlines()
    assert ".env" in (DEPLOY.parents[1] / ".gitignore").read_text("utf-8").splitlines()


def test_only_loopback_is_published() -> None:
    """People put a proxy with certificates before it; docs/guides/scale-out.md has one."""
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / "plumbline.service").read_text("utf-8")
    assert "/opt/plumbline/bin/plumbline serve " in text
    unit = tmp_path / "plumbline.service"
    # The program has to exist where the unit is verified.
    unit.write_text(text.replace("/opt/plumbline/bin/plumbline", "/bin/true"))
    done = subprocess.run([program, "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    about_it = [line for line in done.stderr.splitlines() if "plumbline" in line]
    assert about_it == []


def test_the_commands_of_the_unit_make_every_file_that_it_reads() -> None:
    text = (DEPLOY / "plumbline.service").read_text("utf-8")
    head, unit = text.split("[Unit]")
    commands = "\n".join(line for line in head.splitlines() if line.startswith("#   "))
    read = set(re.findall(r"/etc/plumbline\.\w+", unit))
    assert len(read) == 2
    assert read == set(re.findall(r"/etc/plumbline\.\w+", commands))


class _Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/health/ready" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize("tls", [False, True])
def test_the_health_check_follows_the_server(tls: bool) -> None:
    found = re.search(
        r"^HEALTHCHECK .* CMD (\[.*\])$", (DEPLOY / "Containerfile").read_text("utf-8"), re.MULTILINE
    )
    assert found is not None
    program, *options = json.loads(found[1])
    assert program == "python"
    with HTTPServer(("127.0.0.1", 0), _Health) as server:
        # Proxies are for the server's downloads, and must not be asked about itself.
        variables = {"PLUMBLINE_PORT": str(server.server_port), "http_proxy": "http://127.0.0.1:9"}
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            trustme.CA().issue_cert("plumbline.example").configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            variables["PLUMBLINE_SSL_CERTFILE"] = "/certificate.pem"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for status, code in ((200, 0), (503, 1)):
            _Health.status = status
            done = subprocess.run([sys.executable, *options], env=variables, timeout=30, check=False)
            assert done.returncode == code
        server.shutdown()


def test_hadolint_accepts_the_containers() -> None:
    program = shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed; nox -s deploy installs it")
    files = [DEPLOY / "Containerfile", DEPLOY.parents[1] / "conformance" / "ci" / "Containerfile"]
    done = subprocess.run([program, *files], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
