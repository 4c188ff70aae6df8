"""The page in a browser: two answers side by side, presets, and requests as code."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from support.servers.axe import violations
from support.servers.live import Live, live
from support.servers.pocket import pocket_settings

from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings

from .conftest import choose

pytestmark = pytest.mark.browser

MARKS = "each => [...each.querySelectorAll('mark')].map((mark) => mark.textContent)"


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages"])
def test_two_settings_are_compared(visit: Any, pocket: Live, api: str) -> None:
    seen = visit(pocket)
    page = seen.open()
    choose(page, api)
    asked = "Once upon" if api == "completions" else "Count from 1 to 20."
    seen.ask(asked)
    page.click(".message.assistant >> text=Compare")
    dialog = page.locator("#compare")
    assert dialog.locator("textarea").first.input_value() == asked
    limits = dialog.locator(".side input[type=number]").locator("visible=true")
    assert limits.count() >= 4
    name = {"chat": "max_completion_tokens", "responses": "max_output_tokens"}.get(api, "max_tokens")
    widest = max(
        box["width"] for each in dialog.locator("[type=checkbox]").all() if (box := each.bounding_box())
    )
    assert widest < 30  # `dialog input` once made it a third of the line, and its label three lines.
    for side in (0, 1):
        dialog.locator(".side").nth(side).get_by_label("temperature").fill("0")
    dialog.locator(".side").nth(1).get_by_label(name).fill("16")
    dialog.locator(".side").nth(1).get_by_label(name).press("Tab")
    page.click("text=Ask both")
    page.wait_for_selector("#compare [role=status]:has-text('tokens only in A')")
    one, other = (dialog.locator(".answer").nth(side) for side in (0, 1))
    assert one.inner_text().startswith(other.inner_text())
    assert len(other.inner_text()) < len(one.inner_text())
    assert len(one.evaluate(MARKS)) > len(other.evaluate(MARKS))
    assert violations(page) == []
    dialog.locator("text=Keep this answer").nth(1).click()
    dialog.wait_for(state="hidden")
    assert "2/2" in page.inner_text(".message.assistant .branches")
    page.reload()
    page.wait_for_selector(".message.assistant .branches:has-text('2/2')")


def test_two_models_are_compared(visit: Any) -> None:
    """Each side asks its own model."""
    settings = msgspec.structs.replace(pocket_settings(), served_model_names=("one", "other"))
    with live(lambda: load(settings), Settings()) as server:
        seen = visit(server)
        page = seen.open()
        seen.ask("Count from 1 to 5.")
        page.click(".message.assistant >> text=Compare")
        page.locator("#compare .side").nth(1).get_by_label("Model").select_option("other")
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.post_data or ""))
        page.click("text=Ask both")
        page.wait_for_selector("#compare [role=status]:has-text('Both answers are the same')")
        asked = [json.loads(body)["model"] for body in sent if '"messages"' in body]
        assert sorted(asked) == ["one", "other"]


def test_tokens_that_differ_are_those_outside_of_both(visit: Any, pocket: Live) -> None:
    page = visit(pocket).open()
    script = """async ([one, other]) => {
      const { common } = await import("/page/diff.js");
      const [left, right] = common([...one], [...other]);
      const kept = (text, both) => [...text].filter((_, place) => both[place]).join("");
      return [kept(one, left), kept(other, right)];
    }"""
    for one, other, both in (
        ("abcd", "abcd", "abcd"),
        ("abcd", "axcd", "acd"),
        ("", "abc", ""),
        ("abcbdab", "bdcaba", 4),
        ("x" * 3000, "y" * 3000, ""),
    ):
        left, right = page.evaluate(script, [one, other])
        assert left == right
        assert left == both if isinstance(both, str) else len(left) == both


def test_presets_are_kept_and_chosen(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("temperature").first.fill("0.25")
    page.get_by_label("temperature").first.press("Tab")
    page.get_by_label("Name of a preset").fill("brief <b>")
    page.click("text=Save as a preset")
    page.get_by_label("System prompt").fill("")
    page.click("text=Use all defaults")
    page.reload()
    page.wait_for_selector("#preset")
    page.select_option("#preset", "brief <b>")
    assert page.get_by_label("System prompt").input_value() == "Be brief."
    with page.expect_request("**/v1/chat/completions") as sent:
        seen.ask("Count from 3 to 7.")
    body = json.loads(sent.value.post_data)
    assert body["temperature"] == 0.25
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    page.click("text=brief <b> ×")
    assert page.locator("#preset option").count() == 1


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages"])
def test_python_of_a_request_runs(visit: Any, pocket: Live, api: str, tmp_path: Any) -> None:
    seen = visit(pocket)
    page = seen.open()
    choose(page, api)
    page.get_by_label("top_k").first.fill("5")
    page.get_by_label("top_k").first.press("Tab")
    seen.ask("Count from 3 to 5.")
    page.click(".message.assistant >> text=Code")
    page.click("#code button:text-is('Python')")
    script = tmp_path / "request.py"
    script.write_text(page.inner_text("#code code"), "utf-8")
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    events = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(events) > 3
    page.click("#code button:text-is('JSON')")
    assert json.loads(page.inner_text("#code code"))["top_k"] == 5
