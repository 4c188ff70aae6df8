"""Pictures and texts that are dropped or pasted into the page."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.models import scripted, scripted_info, served
from support.servers.live import Live, live

from plumbline.server.settings import Settings

pytestmark = pytest.mark.browser

WAYS = {
    "drop": 'document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));',
    "paste": 'document.querySelector("#prompt").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data }));',
}


@pytest.mark.parametrize("way", WAYS)
def test_pictures_go_to_a_model_that_reads_them(visit: Any, way: str) -> None:
    info = scripted_info(modalities={"image": 5})
    with live(lambda: served(scripted(info=info)), Settings()) as server:
        seen = visit(server)
        page = seen.open()
        page.wait_for_selector("#attach:visible")
        file = 'new File([new Uint8Array([137, 80, 78, 71])], "p.png", { type: "image/png" })'
        page.evaluate(f"() => {{ const data = new DataTransfer(); data.items.add({file}); {WAYS[way]} }}")
        page.wait_for_selector("#attachments img")
        with page.expect_request("**/v1/chat/completions") as sent:
            seen.ask("What is this?")
        [message] = json.loads(sent.value.post_data)["messages"]
        assert message["content"][0]["image_url"]["url"] == "data:image/png;base64,iVBORw=="
        assert page.locator(".message.user img").count() == 1


def test_a_model_that_reads_no_pictures_says_so(visit: Any, slow: Live) -> None:
    page = visit(slow).open()
    page.evaluate("""() => {
        const data = new DataTransfer();
        data.items.add(new File(["x"], "p.png", { type: "image/png" }));
        document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }""")
    page.wait_for_selector("#notice:has-text('does not read pictures')")


def test_a_text_file_is_part_of_the_message_and_other_files_are_refused(visit: Any, slow: Live) -> None:
    seen = visit(slow)
    page = seen.open()
    page.evaluate("""() => {
        const data = new DataTransfer();
        data.items.add(new File(["a ``` fence\\n````\\n"], "n\u00f6tes.md", { type: "text/markdown" }));
        data.items.add(new File(["unwanted"], "other.py", { type: "" }));
        data.items.add(new File([new Uint8Array([0, 255, 1])], "a.bin"));
        document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }""")
    page.wait_for_selector("#notice:has-text('a.bin is neither a picture nor text')")
    page.click("#attachments li:has-text('other.py') button")
    with page.expect_request("**/v1/chat/completions") as sent:
        seen.ask("Sum up.")
    [message] = json.loads(sent.value.post_data)["messages"]
    assert message["content"] == "Sum up.\n\nn\u00f6tes.md:\n`````\na ``` fence\n````\n`````"
    assert page.locator("#attachments li").count() == 0
