"""Debian's Prometheus accepts the alert rules and the scrape configuration, and reads a server with them."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.models import served, tiny_engine
from support.servers.live import live
from support.servers.ports import free_port

from plumbline.server.settings import Settings

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
KEY = "a-key-of-the-operator"


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed here (Debian: apt-get install prometheus)")
    return found


def configured(folder: Path, target: str) -> Path:
    """Copy the files of docs/deploy, with another place of the key, another target and less patience."""
    (folder / "key").write_text(KEY)
    shutil.copy(DEPLOY / "alerts.yml", folder)
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))
    config["global"]["scrape_interval"] = "1s"
    (job,) = config["scrape_configs"]
    job["authorization"]["credentials_file"] = str(folder / "key")
    job["static_configs"] = [{"targets": [target]}]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_promtool_accepts_the_rules_and_the_configuration(tmp_path: Path) -> None:
    for arguments in (
        ("rules", DEPLOY / "alerts.yml"),
        ("config", configured(tmp_path, "localhost:8000")),
    ):
        done = subprocess.run(
            [program("promtool"), "check", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


RULES = """
rule_files: [{alerts}]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - {{series: 'up{{job="plumbline", instance="a"}}', values: '1 1 0x10'}}
      - {{series: 'plumbline_engine_alive{{model_name="m"}}', values: '1 1 0x10'}}
      - {{series: 'plumbline_engine_hanging_images{{model_name="m"}}', values: '0 0 1x10'}}
      - {{series: 'plumbline_store_failing', values: '0 0 1x10'}}
    alert_rule_test:
{expected}
"""


def test_the_alerts_are_raised_by_what_they_are_about(tmp_path: Path) -> None:
    """Each is silent while all is well, and is raised when what it watches has been bad for its time."""
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
    summaries = {rule["alert"]: rule["annotations"]["summary"] for rule in rules}
    labels = {
        "PlumblineDown": {"job": "plumbline", "instance": "a"},
        "PlumblineEngineDead": {"model_name": "m"},
        "PlumblineImagesHang": {"model_name": "m"},
        "PlumblineStoreFails": {},
    }
    tests = []
    for name, found in labels.items():
        summary = summaries[name]
        for label, value in found.items():
            summary = summary.replace(f"{{{{ $labels.{label} }}}}", value)
        raised = [{"exp_labels": found, "exp_annotations": {"summary": summary}}]
        tests.append({"eval_time": "30s", "alertname": name, "exp_alerts": []})
        tests.append({"eval_time": "5m", "alertname": name, "exp_alerts": raised})  # type: ignore[dict-item]
    expected = "\n".join(f"      - {json.dumps(test)}" for test in tests)
    path = tmp_path / "test.yml"
    path.write_text(RULES.format(alerts=DEPLOY / "alerts.yml", expected=expected))
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_prometheus_reads_a_server_with_its_key_and_evaluates_every_rule(tmp_path: Path) -> None:
    def asked(path: str) -> Any:
        with urllib.request.urlopen(f"{prometheus}/api/v1/{path}", timeout=5) as answer:
            return json.loads(answer.read())["data"]

    def in_time(condition: Any) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                if condition():
                    return
            except OSError:
                pass
            assert time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.2)

    with live(lambda: served(tiny_engine()), Settings(store="none", api_keys=(KEY,))) as server:
        config = configured(tmp_path, f"127.0.0.1:{server.port}")
        port = free_port()
        prometheus = f"http://127.0.0.1:{port}"
        command = [program("prometheus"), f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}"]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, f"--storage.tsdb.path={tmp_path / 'data'}"], stdout=log, stderr=log
            )
        try:
            in_time(lambda: [each["health"] for each in asked("targets")["activeTargets"]] == ["up"])
            rules = [rule for group in asked("rules")["groups"] for rule in group["rules"]]
            expected = yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
            assert [rule["name"] for rule in rules] == [rule["alert"] for rule in expected]
            in_time(
                lambda: (
                    {rule["health"] for group in asked("rules")["groups"] for rule in group["rules"]}
                    == {"ok"}
                )
            )
            board = json.loads((DEPLOY / "grafana" / "plumbline.json").read_text("utf-8"))
            for panel in board["panels"]:
                for target in panel["targets"]:
                    expression = target["expr"].replace("$__rate_interval", "1m")
                    assert asked(f"query?query={urllib.parse.quote(expression)}") is not None
        finally:
            process.terminate()
            process.wait(30)
