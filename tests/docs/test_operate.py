"""The operator's checklist names tests that exist, and its probes follow the server."""

from __future__ import annotations

import argparse
import ast
import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.models import GatedEngine, answer_with, served
from support.servers.asgi import Server, serving

from plumbline.server.settings import OPTIONS, Settings
from plumbline.server.settings.command_line import add_arguments
from plumbline.server.settings.sources import read_settings
from plumbline.server.start.connections.configuration import GRACE

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "operate.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", GUIDE)))
MANIFESTS: dict[str, Any] = {
    each["kind"]: each
    for each in yaml.safe_load_all((ROOT / "docs" / "deploy" / "kubernetes.yaml").read_text("utf-8"))
}
POD: dict[str, Any] = MANIFESTS["Deployment"]["spec"]["template"]
CONTAINER: dict[str, Any] = POD["spec"]["containers"][0]
PROBES = {name: CONTAINER[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")}


def command_line(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    return read_settings(vars(parser.parse_args(arguments)), {}).settings


def test_every_item_of_the_checklist_is_walked() -> None:
    rows = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) \|$", GUIDE, re.M)[2:]
    assert len(rows) >= 8
    for _, _, walked in rows:
        assert "tests/" in walked or walked == "`nox -s faults`"


@pytest.mark.parametrize("test", NAMED)
def test_every_named_test_exists(test: str) -> None:
    file, _, name = test.partition("::")
    defined = {
        node.name
        for node in ast.parse((ROOT / file).read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not name or name in defined


def test_the_parts_of_kubernetes_fit_together() -> None:
    settings = command_line(CONTAINER["args"])
    (_, pause) = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert POD["spec"]["terminationGracePeriodSeconds"] > int(pause) + settings.shutdown_timeout + GRACE
    variables = {option.variable for option in OPTIONS}
    assert {each["name"] for each in CONTAINER["env"]} <= variables
    # Kubernetes would give each pod a variable with the Service's address.
    link = f"{MANIFESTS['Service']['metadata']['name'].upper()}_PORT"
    assert link not in variables or POD["spec"]["enableServiceLinks"] is False
    (port,) = CONTAINER["ports"]
    assert (port["name"], port["containerPort"]) == ("http", settings.port)
    assert all(each["httpGet"]["port"] == "http" for each in PROBES.values())
    (service_port,) = MANIFESTS["Service"]["spec"]["ports"]
    assert service_port["targetPort"] == "http"
    for kind, selector in (("Deployment", ["selector", "matchLabels"]), ("Service", ["selector"])):
        found = MANIFESTS[kind]["spec"]
        for name in selector:
            found = found[name]
        assert found == POD["metadata"]["labels"]


async def probe(server: Server, name: str) -> int:
    """Return the status that a probe of the guide gets."""
    return (await server.get(PROBES[name]["httpGet"]["path"])).status


async def test_the_probes_of_kubernetes_follow_the_server() -> None:
    """Ready and alive without a key, and alive but not ready while it drains and a stream goes on."""
    engine = GatedEngine(answer_with("one two three"))
    async with serving(served(engine), api_keys=("a key",)) as server:
        assert [await probe(server, name) for name in PROBES] == [200, 200, 200]
        body = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        headers = {"authorization": "Bearer a key"}
        exchange = server.open("POST", "/v1/chat/completions", body, headers=headers)
        engine.let(2)
        await exchange.begin()
        server.app.draining.begin()
        assert await probe(server, "livenessProbe") == 200
        assert await probe(server, "readinessProbe") == 503
        engine.let()
        assert b"[DONE]" in b"".join([write async for write in exchange.writes()])
        await asyncio.sleep(0)
