"""The page in a browser: events, verdicts, tokens and the state of the server are shown as they are."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

import pytest
from support.servers.live import Live

from .conftest import answer, choose, verdict

pytestmark = pytest.mark.browser


def test_a_violation_is_marked_at_its_event(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()

    def spoil(route: Any) -> None:
        answer = route.fetch()
        body = answer.text().replace('"role":"assistant"', '"role":"user"', 1)
        route.fulfill(response=answer, body=body)

    page.route("**/v1/chat/completions", spoil)
    seen.ask("Count from 3 to 7.")
    seen.panel("events")
    assert "Violations found: 1" in verdict(page)
    assert page.inner_text(".event:first-child .mark") == "CS-02"
    page.click(".event:first-child summary")
    page.wait_for_selector(".event:first-child .raw:has-text('Expected role assistant')")


def test_a_violation_is_marked_while_the_stream_runs(visit: Any, slow: Live) -> None:
    seen = visit(slow)
    page = seen.open()
    page.add_init_script("""
        const real = window.fetch;
        window.fetch = async (path, options) => {
            const response = await real(path, options);
            if (!String(path).includes("/v1/chat")) return response;
            const decoder = new TextDecoder(), encoder = new TextEncoder();
            const spoil = new TransformStream({ transform(part, sink) {
                sink.enqueue(encoder.encode(decoder.decode(part).replace('"role":"assistant"', '"role":"user"')));
            } });
            return new Response(response.body.pipeThrough(spoil), response);
        };""")
    seen.open()
    seen.panel("events")
    page.fill("#prompt", "go on")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".event:first-child .mark:text-is('CS-02')")
    assert page.inner_text("#send") == "Stop"
    page.keyboard.press("Escape")
    seen.finished()


def test_the_slider_shows_the_answer_as_it_was(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    seen.ask("Count from 3 to 7.")
    whole = seen.answer()
    seen.panel("events")
    verdict(page)
    slider = page.locator(".replay input")
    slider.fill("3")
    part = page.locator(".message.assistant .text").inner_text()
    assert whole.startswith(part)
    assert len(part) < len(whole)
    assert page.inner_text(".replay output").startswith("3 of ")
    assert page.locator(".event.later").count() == page.locator(".event").count() - 3
    page.click("text=Replay")
    page.wait_for_selector(".event.later", state="detached")
    assert seen.answer() == whole


def test_tokens_have_probabilities_and_alternatives(visit: Any, pocket: Live) -> None:
    for api in ("chat", "completions", "responses"):
        seen = visit(pocket)
        page = seen.open()
        choose(page, api)
        page.check("text=Ask for the probabilities of tokens")
        seen.ask("Once upon" if api == "completions" else "Count from 3 to 7.")
        seen.panel("tokens")
        page.wait_for_selector(".token")
        page.focus(".token:first-child")
        page.keyboard.press("ArrowRight")
        assert page.evaluate(
            "document.activeElement.previousElementSibling === document.querySelector('.token')"
        )
        assert page.locator(".alternatives tr").count() >= 5
        assert page.locator(".alternatives tr.drawn").count() == 1
        count = page.locator(".token").count()
        # They are kept with the events of the answer, and not a second time.
        page.reload()
        page.wait_for_selector(".message.assistant .toolbar")
        seen.panel("tokens")
        page.wait_for_selector(f".token >> nth={count - 1}")


def test_the_state_of_the_server_is_shown(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    seen.ask("Count from 3 to 7.")
    seen.panel("server")
    page.wait_for_selector(".tile")
    assert page.locator(".tile").count() == 8
    assert "plumbline-pocket" in page.inner_text(".card >> nth=0")
    assert "/v1/chat/completions" in page.inner_text("#view table")
    page.check("text=Show the texts of this browser")
    page.wait_for_selector("#view table button:has-text('Count from')")


def test_a_request_is_copied_as_code_that_runs(visit: Any, pocket: Live, tmp_path: Any) -> None:
    seen = visit(pocket)
    page = seen.open()
    seen.ask("It's \"quoted\" and 'quoted' – ü")
    page.click(".message.assistant >> text=Code")
    for name, command in (("curl", ["bash"]), ("Python", [sys.executable]), ("JavaScript", ["node"])):
        if shutil.which(command[0]) is None or (name == "curl" and shutil.which("curl") is None):
            continue
        page.click(f"#code button:text-is('{name}')")
        script = tmp_path / (f"{name}.mjs" if name == "JavaScript" else name)
        script.write_text(page.inner_text("#code code"), "utf-8")
        done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=60, check=True)
        assert "chat.completion.chunk" in done.stdout
        assert "data: [DONE]" in done.stdout or name == "Python"


def test_of_a_long_stream_the_last_events_are_shown_first(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    answer(page, "word " * 1500, size=5)
    seen.ask("hello")
    seen.panel("events")
    page.wait_for_selector("text=earlier events")
    assert page.locator(".event").count() == 1000
    page.click("text=earlier events")
    assert page.locator(".event").count() == 1503
    assert "role" in page.inner_text(".event >> nth=0")
