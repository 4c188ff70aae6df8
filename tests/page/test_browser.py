"""The page in a browser, with real servers: what people do with it works, and is shown as it is.

Laws beside those of each test: nothing is requested from another server, and no error is logged (`visit`).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
from support.live import Live, live
from support.models import answer_with, scripted, scripted_info, served
from support.path_proxy import below_a_path
from support.pocket import pocket_settings

from plumbline.server.loading.model import load
from plumbline.server.settings import Settings

from .conftest import KEY

pytestmark = pytest.mark.browser

APIS = ("chat", "completions", "responses", "messages")
WEATHER = "What is the weather in Paris?"
HOSTILE = (
    "<img src=x onerror=alert(1)> <script>alert(1)</script> ![p](http://example.com/p.png) "
    "[l](javascript:alert(1)) **b** `c`\n\n```html\n<b>d</b>\n```\n\n" + ">" * 3000 + " deep"
)


def choose(page: Any, api: str) -> None:
    page.locator(f"#apis input[value={api}]").evaluate("each => each.click()")


def verdict(page: Any) -> str:
    page.wait_for_selector(".verdict.right, .verdict.wrong")
    return str(page.inner_text(".verdict"))


# Talk


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
    assert "Paris" in page.inner_text(".call pre")
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
    text = page.locator(".message.assistant .text").locator("pre, .plain").inner_text()
    if api == "completions":  # Without a turn to end, the small model goes on until the limit.
        assert text.startswith('{"name"')
    else:
        assert set(json.loads(text)) == {"name", "year"}


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
        "request", lambda each: each.url.endswith("/v1/responses") and sent.append(json.loads(each.post_data))
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
        "request", lambda each: each.url.endswith("/v1/responses") and sent.append(json.loads(each.post_data))
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


def test_pictures_go_to_a_model_that_reads_them(visit: Any) -> None:
    info = scripted_info(modalities={"image": 5})
    with live(lambda: served(scripted(info=info)), Settings()) as server:
        seen = visit(server)
        page = seen.open()
        page.wait_for_selector("#attach:visible")
        page.evaluate("""() => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array([137, 80, 78, 71])], "p.png", { type: "image/png" }));
            document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
        }""")
        page.wait_for_selector("#attachments img")
        with page.expect_request("**/v1/chat/completions") as sent:
            seen.ask("What is this?")
        [message] = json.loads(sent.value.post_data)["messages"]
        assert message["content"][0]["image_url"]["url"] == "data:image/png;base64,iVBORw=="
        assert page.locator(".message.user img").count() == 1


def test_a_model_that_reads_no_pictures_says_so(visit: Any, slow: Live) -> None:
    page = visit(slow).open()
    assert page.locator("#attach").is_hidden()
    page.evaluate("""() => {
        const data = new DataTransfer();
        data.items.add(new File(["x"], "p.png", { type: "image/png" }));
        document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }""")
    page.wait_for_selector("#notice:has-text('does not read pictures')")


def test_thinking_is_folded(visit: Any, pocket: Live) -> None:
    seen = visit(pocket)
    page = seen.open()
    deltas = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Let me see."},
        {"content": "Yes."},
        {},
    ]
    chunks = [
        {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"}]}
        for delta in deltas
    ]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )
    seen.ask("Is it so?")
    assert page.locator(".thinking div").is_hidden()
    page.click(".thinking summary")
    assert page.inner_text(".thinking div") == "Let me see."
    assert page.inner_text(".message.assistant .text") == "Yes."


# Safety and keys


def test_what_a_model_writes_is_text(visit: Any) -> None:
    with live(lambda: served(scripted(answer_with(HOSTILE))), Settings()) as server:
        seen = visit(server)
        page = seen.open()
        page.on("dialog", lambda dialog: seen.problems.append(dialog.message))
        seen.ask("hello")
        text = page.locator(".message.assistant .text")
        assert text.locator("img, script, a[href^=javascript]").count() == 0
        assert text.locator("strong").inner_text() == "b"
        assert text.locator("pre code").inner_text() == "<b>d</b>"
        assert "<script>alert(1)</script>" in text.inner_text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("# C#", "C#"),
        ("## closed ##", "closed"),
        ("# #", ""),
        ("[" * 300_000, "[" * 300_000),  # Took minutes when each "[" was read to the end.
        ("# a" + " " * 300_000 + "b", "a" + " " * 300_000 + "b"),
        ("[[a](https://example.org)]", "[a]"),
    ],
)
def test_markdown_is_read_at_a_linear_cost(visit: Any, pocket: Live, text: str, shown: str) -> None:
    page = visit(pocket).open()
    script = (
        "(text) => import('/page/markdown.js').then((m) => m.markdown(text).map((e) => e.textContent).join())"
    )
    assert page.evaluate(script, text) == shown


def test_the_page_asks_for_a_key_and_keeps_it_in_the_tab(visit: Any, keyed: Live) -> None:
    seen = visit(keyed)
    page = seen.page
    page.goto(keyed.url)
    page.wait_for_selector("#key[open]")
    page.fill("#key-value", "a wrong key")
    page.click("text=Use this key")
    page.wait_for_selector("text=The server does not know this key.")
    page.fill("#key-value", KEY)
    page.click("text=Use this key")
    page.wait_for_selector("#tab-settings[aria-selected=true]")
    seen.ask("hello")
    assert "You said: hello" in seen.answer()
    assert page.evaluate("sessionStorage.getItem('key')") == KEY
    assert KEY not in page.evaluate("JSON.stringify(localStorage)")
    page.click("text=Code")
    assert KEY not in page.inner_text("#code")


def test_requests_that_are_refused_together_get_the_same_key(visit: Any, keyed: Live) -> None:
    page = visit(keyed).page
    page.goto(keyed.url)
    page.wait_for_selector("#key[open]")
    page.evaluate("import('/page/stream.js').then(({ askKey }) => { askKey(''); })")
    page.fill("#key-value", KEY)
    page.click("text=Use this key")
    page.wait_for_selector("#tab-settings[aria-selected=true]")
    assert page.evaluate("sessionStorage.getItem('key')") == KEY


def test_a_dialog_that_is_closed_does_not_come_back(visit: Any, keyed: Live) -> None:
    page = visit(keyed).page
    page.goto(keyed.url)
    page.wait_for_selector("#key[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#notice:has-text('The page cannot start')")
    assert page.locator("#key[open]").count() == 0


def test_the_page_works_below_a_path(visit: Any, pocket: Live) -> None:
    with below_a_path("/llm", pocket) as port:
        seen = visit(pocket)
        seen.url = f"http://127.0.0.1:{port}"
        seen.page.goto(f"{seen.url}/llm/")
        seen.page.wait_for_selector("#tab-settings[aria-selected=true]")
        seen.ask("Count from 3 to 5.")
        assert seen.answer() == "3, 4, 5"
        seen.page.click("text=Code")
        seen.page.wait_for_selector(f"#code:has-text('{seen.url}/llm/v1/chat/completions')")
        seen.page.goto(f"{seen.url}/llm/docs")
        seen.page.click("a[href='openapi.json']")
        assert '"openapi"' in seen.page.inner_text("pre")


def test_events_are_read_from_any_frames_at_a_linear_cost(visit: Any, pocket: Live) -> None:
    """An event of 16 MiB in frames of 16 KiB, and two events cut at every byte."""
    page = visit(pocket).open()
    script = r"""async () => {
      const { EventReader } = await import("/page/stream.js");
      const bytes = (text) => new TextEncoder().encode(text);
      const text = 'event: a\r\ndata: {"x": "é"}\r\n\r\ndata: 2\n\ndata: 3\n\n';
      const events = [];
      for (let cut = 0; cut <= bytes(text).length; cut++) {
        const reader = new EventReader();
        const found = reader.take([[0, bytes(text).slice(0, cut)], [1, bytes(text).slice(cut)]]);
        events.push(JSON.stringify(found.map(({ data, name, json }) => [data, name ?? null, json])));
      }
      const frames = [[0, bytes("data: ")]];
      for (let number = 0; number < 1024; number++) frames.push([0, bytes("x".repeat(16384))]);
      frames.push([0, bytes("\n\n")]);
      const reader = new EventReader();
      let length = 0;
      for (let count = 1; count <= frames.length; count++) length = reader.take(frames.slice(0, count)).length;
      return [[...new Set(events)], length, reader.events[0].data.length];
    }"""
    cut, count, length = page.evaluate(script)
    assert [json.loads(each) for each in cut] == [
        [['{"x": "é"}', "a", {"x": "é"}], ["2", None, 2], ["3", None, 3]]
    ]
    assert (count, length) == (1, 16 << 20)


# Look inside


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
    assert "violation" in verdict(page)
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
        assert "data: [DONE]" in done.stdout
