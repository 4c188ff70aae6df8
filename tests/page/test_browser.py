"""The page in a browser, with real servers: what people do with it works, and is shown as it is.

Laws beside those of each test: nothing is requested from another server, and no error is logged (`visit`).
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.servers.live import Live, live
from support.servers.pocket import pocket_settings

from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings

from .conftest import answer, choose, verdict

pytestmark = pytest.mark.browser

APIS = ("chat", "completions", "responses", "messages")
WEATHER = "What is the weather in Paris?"


@pytest.mark.parametrize("api", APIS)
def test_an_answer_streams_and_is_judged(visit: Any, pocket: Live, api: str) -> None:
    seen = visit(pocket)
    page = seen.open()
    choose(page, api)
    seen.ask("Once upon" if api == "completions" else "Count from 3 to 7.")
    seen.panel("events")
    assert "checks found no violation" in verdict(page)
    assert page.inner_text(".message.assistant .text").strip()
    assert page.locator(".event").count() > 3
    assert page.locator(".event .rule").count() > 3
    assert page.inner_text("#conversations .entry") == page.inner_text(".message.user .plain")
    if api != "completions":
        assert "3, 4, 5, 6, 7" in seen.answer()


def test_shift_and_enter_break_the_line(visit: Any, pocket: Live) -> None:
    page = visit(pocket).open()
    page.fill("#prompt", "one")
    page.press("#prompt", "Shift+Enter")
    assert page.input_value("#prompt") == "one\n"
    assert page.locator(".message").count() == 0


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_a_tool_call_is_answered_by_hand(visit: Any, pocket: Live, api: str) -> None:
    seen = visit(pocket)
    page = seen.open()
    choose(page, api)
    page.click("text=Insert an example")
    seen.ask(WEATHER)
    assert "Paris" in page.inner_text(".call dd")
    assert '"city": "Paris"' in page.text_content(".call pre")
    with page.expect_request(lambda request: request.method == "POST" and "/v1/" in request.url) as sent:
        page.fill(".call textarea", '{"temperature": 21}')
        page.click("text=Send the result")
    assert '{\\"temperature\\": 21}' in sent.value.post_data
    page.wait_for_selector(".message.tool")
    seen.finished()
    assert page.locator(".message.assistant").count() == 2
    assert page.locator(".problem").count() == 0


@pytest.mark.parametrize("api", APIS)
def test_an_answer_fits_its_schema(visit: Any, pocket: Live, api: str) -> None:
    seen = visit(pocket)
    page = seen.open()
    choose(page, api)
    page.get_by_label("Format of answers").select_option("json_schema")
    seen.ask("Ada Lovelace was born in 1815.")
    if api == "completions":  # Without a turn to end, the small model goes on until the limit.
        assert page.inner_text(".message.assistant .plain").startswith('{"name"')
        return
    page.wait_for_selector(".json .verdict.right:has-text('matches its schema')")
    assert page.locator(".tree .member").all_inner_texts() == ["name: ", "year: "]
    page.click(".json >> text=Show as text")
    assert set(json.loads(page.inner_text(".json pre"))) == {"name", "year"}
    assert page.locator(".tree").is_hidden()


def test_an_answer_that_breaks_its_schema_says_where(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    page.get_by_label("Format of answers").select_option("json_schema")
    answer(page, '{"name": {"deep": {"deeper": [1, 2]}}, "year": "1815"}')
    seen.ask("hello")
    page.wait_for_selector(".json .verdict.wrong")
    wrong = page.inner_text(".json .verdict")
    assert "/year" in wrong
    assert "/name" in wrong
    assert page.locator(".tree .leaf").count() == 1
    page.click(".tree summary >> text=deep:")
    page.click(".tree summary >> text=deeper:")
    assert page.locator(".tree .leaf").count() == 3


@pytest.mark.parametrize(
    ("kind", "expected"), [("grammar", r"The answer is \d+\."), ("regex", "(yes|no), because .*")]
)
def test_an_answer_fits_its_grammar(visit: Any, pocket: Live, kind: str, expected: str) -> None:
    seen = visit(pocket)
    page = seen.open()
    page.get_by_label("Format of answers").select_option(kind)
    seen.ask("How many?")
    assert re.fullmatch(expected, page.inner_text(".message.assistant .text").strip())
    choose(page, "messages")
    page.fill("#prompt", "And now?")
    page.press("#prompt", "Enter")
    page.wait_for_selector("#notice:has-text('This API has no answers of the format')")


def test_a_browser_that_keeps_nothing_still_talks(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    seen.page.add_init_script("Object.defineProperty(window, 'indexedDB', { value: undefined })")
    page = seen.open()
    seen.ask("Count from 3 to 7.")
    page.click("#new")
    page.click("#conversations .entry")
    assert "3, 4, 5, 6, 7" in seen.answer()


def test_a_strict_server_knows_every_field(visit: Any) -> None:
    """Also those of a conversation with thinking, calls and probabilities."""
    with live(lambda: load(pocket_settings()), Settings(strict=True)) as server:
        seen = visit(server)
        page = seen.open()
        page.click("text=Insert an example")
        page.check("text=Ask for the probabilities of tokens")
        for api in ("chat", "responses", "messages"):
            choose(page, api)
            seen.ask(WEATHER)
            page.fill(".call textarea", "sunny")
            page.click("text=Send the result")
            page.wait_for_selector(".message.tool")
            seen.finished()
            assert page.locator(".problem").count() == 0
            page.click("#new")


def test_a_wrong_schema_is_named_before_it_is_sent(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    page.get_by_label("Format of answers").select_option("json_schema")
    editor = page.get_by_label("JSON by a schema")
    editor.fill("{")
    assert editor.get_attribute("aria-invalid") == "true"
    assert "JSON" in page.inner_text(".invalid:not(:empty)")


@pytest.mark.parametrize("way", ["button", "escape"])
def test_an_answer_is_stopped(visit: Any, slow: Live, way: str) -> None:
    seen = visit(slow)
    page = seen.open()
    page.fill("#prompt", "go on")
    page.press("#prompt", "Enter")
    page.wait_for_selector(".message.assistant .text:has-text('word3')")
    page.click("#send") if way == "button" else page.keyboard.press("Escape")
    seen.finished()
    assert "stopped" in page.inner_text(".message.assistant .facts")
    assert "word299" not in seen.answer()


def test_the_view_follows_the_answer_until_the_reader_scrolls_up(visit: Any, slow: Live) -> None:
    seen = visit(slow, height=300)
    page = seen.open()
    page.fill("#prompt", "go on")
    page.press("#prompt", "Enter")
    rest = "() => ((each) => each.scrollHeight - each.scrollTop - each.clientHeight)(document.getElementById('thread'))"
    page.wait_for_selector(".message.assistant .text:has-text('word120')")
    assert page.evaluate(rest) < 80
    page.evaluate("document.getElementById('thread').scrollTop = 0")
    page.wait_for_selector(".message.assistant .text:has-text('word200')")
    assert page.evaluate("document.getElementById('thread').scrollTop") == 0
    page.keyboard.press("Escape")
    seen.finished()


def test_conversations_outlive_a_reload_and_can_be_deleted(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    seen.ask("Count from 3 to 7.")
    before = seen.answer()
    page.wait_for_selector("#conversations .entry")
    page.reload()
    page.wait_for_selector(".message.assistant .text")
    assert seen.answer() == before
    seen.panel("events")
    assert "no violation" in verdict(page)
    page.click("#new")
    assert page.locator(".message").count() == 0
    page.click("#conversations .entry")
    assert seen.answer() == before
    page.hover("#conversations li")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.click("#conversations .icon")
    assert page.locator("#conversations .entry").count() == 1
    page.once("dialog", lambda dialog: dialog.accept())
    page.click("#conversations .icon")
    page.wait_for_selector(".welcome")
    assert page.locator("#conversations .entry").count() == 0


def test_an_answer_without_a_verdict_is_judged_when_it_is_shown_again(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    page.route("**/page/judge", lambda route: route.abort())
    seen.ask("Count from 3 to 7.")
    seen.answer()
    seen.panel("events")
    page.wait_for_selector(".verdict:has-text('Not judged:')")
    page.unroute("**/page/judge")
    page.reload()
    page.wait_for_selector(".message.assistant .text")
    seen.panel("events")
    assert "no violation" in verdict(page)


def test_messages_have_branches(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    seen.ask("Count from 3 to 7.")
    page.hover(".message.user")
    page.click(".message.user >> text=Edit")
    page.fill(".edit textarea", "Count from 2 to 4.")
    page.click("text=Send as a new branch")
    seen.finished()
    assert "2, 3, 4" in seen.answer()
    assert "2/2" in page.inner_text(".message.user .branches")
    page.click(".message.user [aria-label='Previous branch']")
    assert "3, 4, 5, 6, 7" in seen.answer()
    page.click("text=Try again")
    seen.finished()
    assert "2/2" in page.inner_text(".message.assistant .branches")


def test_responses_continue_what_is_stored(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    choose(page, "responses")
    sent: list[Any] = []
    page.on(
        "request",
        lambda each: each.url.endswith("/v1/responses") and sent.append(json.loads(each.post_data)),  # type: ignore[func-returns-value]
    )
    seen.ask("Count from 3 to 7.")
    seen.ask("Count from 2 to 4.")
    assert "previous_response_id" not in sent[0]
    assert sent[1]["previous_response_id"].startswith("resp_")
    assert len(sent[1]["input"]) == 1
    page.click("#new")
    page.fill("#stored-id", sent[1]["previous_response_id"])
    page.click("#stored button")
    page.wait_for_selector(".message.assistant .text")
    assert page.inner_text(".message.user .plain") == "Count from 3 to 7."
    assert "3, 4, 5, 6, 7" in seen.answer()
    seen.ask("Who are you?")
    assert sent[2]["previous_response_id"] == sent[1]["previous_response_id"]


def test_a_control_shows_the_default_of_the_model(visit: Any, pocket: Live) -> None:
    """The pocket model answers with temperature 0 where a request says nothing, not with the contract's 1."""
    page = visit(pocket).open()
    shown = page.get_by_label("temperature").first
    assert [
        shown.get_attribute("placeholder"),
        page.get_by_label("top_p").first.get_attribute("placeholder"),
    ] == [
        "0",
        "1",
    ]


def test_controls_of_the_contract_are_sent(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    page.get_by_label("max_completion_tokens").fill("3")
    page.get_by_label("temperature").first.fill("0.5")
    page.get_by_label("temperature").first.press("Tab")
    with page.expect_request("**/v1/chat/completions") as sent:
        seen.ask("Count from 3 to 7.")
    body = json.loads(sent.value.post_data)
    assert (body["max_completion_tokens"], body["temperature"]) == (3, 0.5)
    assert "length · 3 tokens" in page.inner_text(".message.assistant .facts")
    page.click("text=Use all defaults")
    assert page.get_by_label("max_completion_tokens").input_value() == ""


def test_of_several_choices_the_first_is_shown(visit: Any, pocket: Live) -> None:
    for api in ("chat", "completions"):
        seen = visit(pocket)
        page = seen.open()
        choose(page, api)
        page.click("text=All other parameters")
        page.get_by_label(re.compile(r"^n \d")).fill("3")
        page.get_by_label(re.compile(r"^n \d")).press("Tab")
        page.get_by_label("temperature").first.fill("0")
        page.get_by_label("temperature").first.press("Tab")
        seen.ask("Once upon" if api == "completions" else "Count from 3 to 7.")
        seen.panel("events")
        assert "no violation" in verdict(page)
        body = page.inner_text(".message.assistant .text")
        assert body == "3, 4, 5, 6, 7" if api == "chat" else len(body) > 10


def test_a_response_is_not_stored_if_the_user_says_so(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    choose(page, "responses")
    page.click("text=All other parameters")
    page.get_by_label("store", exact=True).select_option("false")
    sent: list[Any] = []
    page.on(
        "request",
        lambda each: each.url.endswith("/v1/responses") and sent.append(json.loads(each.post_data)),  # type: ignore[func-returns-value]
    )
    seen.ask("Count from 3 to 7.")
    seen.ask("Count from 2 to 4.")
    assert [body["store"] for body in sent] == [False, False]
    assert "previous_response_id" not in sent[1]
    assert len(sent[1]["input"]) == 3


def test_an_error_is_shown_with_its_field(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    page.click("text=All other parameters")
    page.get_by_label("top_logprobs").fill("4")
    page.get_by_label("top_logprobs").press("Tab")
    seen.ask("Who are you?")
    problem = page.inner_text(".problem")
    assert "logprobs" in problem
    assert "status 400" in problem
    assert "field " in problem
    seen.panel("events")
    assert "no violation" in verdict(page)


def test_a_suggestion_is_answered_and_never_by_markup(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    number = page.locator(".suggestions button").count()
    assert number == 4
    for each in range(number):
        page.click("#new")
        page.locator(".suggestions button").nth(each).click()
        seen.finished()
        assert "<" not in page.inner_text("#messages")
    # The last one is about the weather, and brings the tool.
    assert "get_weather" in page.inner_text(".call")
