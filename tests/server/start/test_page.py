"""The page at `/`: what it serves, to whom, and with which bounds.

Laws:
    1. Browsers get the page at `/`, and clients of the API a 404 in their envelope.
    2. No file loads anything from elsewhere, has code in its HTML, or makes HTML of a text.
    3. A file is sent once, and then only if it has changed.
    4. With keys, the files are open; the state of the server and the judge need one.
    5. The judge marks a violation at its event, and finds none in our own answers.
    6. An exchange that is too large, malformed or slow to judge is refused, and the next one is judged.
    7. Controls and reference have what the contract has.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from support.models import scripted, served
from support.servers.asgi import Answer, Server, serving

from plumbline.server.page import judge as judge_module
from plumbline.server.page.controls import OPERATIONS, contract, controls
from plumbline.server.page.exchange import MOST_BYTES
from plumbline.server.page.files import NAMES, VENDOR
from plumbline.server.page.reference import reference

ASSETS = files("plumbline.server.page").joinpath("assets")
LIBRARIES = Path(__file__).parents[2] / "page" / "libraries.json"
HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
KEY = {"authorization": "Bearer key"}
CHAT = {"model": "test-model", "messages": [{"role": "user", "content": "a few words"}], "stream": True}
SPOILED = {
    "CS-02": (b'"role":"assistant"', b'"role":"user"', 0),
    "CS-01": (b"chat.completion.chunk", b"chat.completion.piece", 0),
    "CS-03": (b'"finish_reason":"stop"', b'"finish_reason":null', None),
    "SSE-05": (b"data: [DONE]\n\n", b"", None),
}
"""By rule: what of a stream is replaced by what, and the event at which the judge marks it."""


@asynccontextmanager
async def server(**settings: Any) -> AsyncGenerator[Server, None]:
    async with serving(served(scripted()), **settings) as found:
        yield found


def exchange(answer: Answer, **changes: Any) -> dict[str, Any]:
    """The exchange of a stream, as the page sends it."""
    found = {
        "path": "/v1/chat/completions",
        "request": base64.b64encode(json.dumps(CHAT).encode()).decode(),
        "status": answer.status,
        "headers": answer.headers,
        "frames": [[0.25, base64.b64encode(answer.body).decode()]],
    }
    return {**found, **changes}


def spoiled(answer: Answer, old: bytes, new: bytes) -> Answer:
    assert old in answer.body
    return Answer(answer.status, answer.headers, answer.body.replace(old, new, 1))


# Files


async def test_a_browser_gets_the_page_and_a_client_of_the_api_a_404() -> None:
    async with server() as found:
        for headers in (HTML, {}, {"accept": "*/*"}, {"accept": "text/*"}):
            answer = await found.request("GET", "/", headers=headers)
            assert answer.status == 200
            assert (answer.header("content-type") or "").startswith("text/html")
            assert b'"page/app.js"' in answer.body
        head = await found.request("HEAD", "/", headers=HTML)
        assert (head.status, head.body) == (200, b"")
        refused = await found.request("GET", "/", headers={"accept": "application/json"})
        assert refused.status == 404
        assert "/v1" in refused.error["message"]
        assert (await found.post("/", {})).status == 405


async def test_every_file_is_sent_once() -> None:
    async with server() as found:
        for path in ["/", "/docs", "/page/controls.json", *(f"/page/{name}" for name in NAMES)]:
            answer = await found.get(path)
            tag = answer.header("etag") or ""
            assert answer.status == 200
            assert answer.header("cache-control") == "no-cache"
            assert "default-src 'none'" in (answer.header("content-security-policy") or "")
            assert answer.header("x-content-type-options") == "nosniff"
            for known in (tag, f'"other", W/{tag}', "*"):
                again = await found.request("GET", path, headers={"if-none-match": known})
                assert (again.status, again.body, again.header("etag")) == (304, b"", tag)
            changed = await found.request("GET", path, headers={"if-none-match": '"other"'})
            assert changed.body == answer.body
        for path in ("/page/nothing.js", "/page/", "/page/..%2Ffiles.py", "/page/__init__.py", "/page"):
            assert (await found.get(path)).status == 404


def assets() -> dict[str, str]:
    """The page's own files, without the libraries of others."""
    own = sorted(name for name in NAMES if not name.startswith(f"{VENDOR}/"))
    return {name: ASSETS.joinpath(name).read_text("utf-8") for name in own}


def test_libraries_are_the_ones_that_are_pinned() -> None:
    """`nox -s libraries -- --check` compares them with npm."""
    folder = ASSETS.joinpath(VENDOR)
    lines = folder.joinpath("hashes.txt").read_text("utf-8").splitlines()
    pinned = {name: digest for digest, name in (line.split("  ") for line in lines)}
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    del found["hashes.txt"]
    assert found == pinned
    licences = folder.joinpath("licences.txt").read_text("utf-8")
    for package in json.loads(LIBRARIES.read_text("utf-8")):
        assert f"{package['name']} {package['version']}, {package['licence']}" in licences
        assert package["integrity"].startswith("sha512-")


async def test_diagrams_have_a_frame_with_a_policy_of_its_own() -> None:
    async with server() as found:
        policy = (await found.get("/page/diagram.html")).header("content-security-policy") or ""
        assert "sandbox allow-scripts" in policy
        assert "default-src 'none'" in policy
        assert "unsafe-eval" not in policy
        page = (await found.get("/")).header("content-security-policy") or ""
        assert "unsafe" not in page


def test_no_file_loads_anything_from_elsewhere() -> None:
    texts = {**assets(), "/docs": reference().body.decode()}
    for name, text in texts.items():
        # Names of namespaces are never fetched, and the page links to addresses that a model wrote.
        loaded = re.sub(r"https?:\\/\\/|http://www\.w3\.org/2000/svg", "", text)
        fetched = re.findall(
            r"(?:src|href|url|import|from|fetch)\s*[=(]?\s*[\"'(]\s*(?:https?:)?//[^\"')]*", loaded
        )
        assert fetched == [], name
        if name != "/docs":  # Descriptions of the contract name addresses as text.
            assert "http://" not in loaded, name
            assert "https://" not in loaded, name


def test_no_file_makes_code_or_html_of_a_text() -> None:
    for name, text in assets().items():
        if name.endswith(".js"):
            found = re.findall(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text
            )
            assert found == [], name
    for text in (assets()["index.html"], reference().body.decode()):
        assert re.findall(r"<script(?![^>]* src=)[^>]*>|<style|\son\w+=|\sstyle=|javascript:", text) == []


async def test_with_keys_files_are_open_and_the_rest_is_not() -> None:
    async with server(api_keys=("key",)) as found:
        for path in ("/", "/page/app.js", "/page/controls.json"):
            assert (await found.get(path)).status == 200
        for method, path in (
            ("GET", "/docs"),
            ("GET", "/page/status"),
            ("POST", "/page/judge"),
            ("POST", "/page/validate"),
            ("GET", "/page/nothing"),
        ):
            body: dict[str, Any] | None = {} if method == "POST" else None
            answer = await found.request(method, path, body)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert (await found.request("GET", "/page/status", headers=KEY)).status == 200


async def test_an_operator_can_leave_the_page_out() -> None:
    async with server(page=False) as found:
        for path in ("/", "/docs", "/page/app.js", "/page/status"):
            assert (await found.request("GET", path, headers=HTML)).status == 404
        assert (await found.post("/page/judge", {})).status == 404
        assert (await found.get("/v1/models")).status == 200


# State


async def test_the_state_has_models_and_latest_requests_without_their_texts() -> None:
    async with server() as found:
        sent = await found.post("/v1/chat/completions", CHAT)
        await found.get("/v1/models")
        answer = await found.get("/page/status")
        state = answer.json
        [request] = state["requests"]
        [model] = state["models"]
        assert request["id"] == sent.header("x-request-id")
        assert (request["method"], request["path"], request["status"]) == (
            "POST",
            "/v1/chat/completions",
            200,
        )
        assert request["size"] == len(sent.body)
        assert 0 <= request["first_byte"] <= request["seconds"]
        assert model["names"] == ["test-model"]
        assert model["engine"]["context"] == 2048
        assert "a few words" not in answer.body.decode()


async def test_the_state_has_no_ids_of_stored_objects() -> None:
    async with server() as found:
        await found.post("/v1/responses/resp_secret/cancel", {})
        answer = await found.get("/page/status")
        assert [request["path"] for request in answer.json["requests"]] == ["/v1/responses/{id}/cancel"]
        assert "resp_secret" not in answer.body.decode()


async def test_only_so_many_requests_are_kept() -> None:
    async with server() as found:
        for _ in range(60):
            await found.post("/v1/chat/completions", {})
        requests = (await found.get("/page/status")).json["requests"]
        assert [request["status"] for request in requests] == [400] * 50


# The judge


async def test_the_judge_marks_a_violation_at_its_event() -> None:
    async with server() as found:
        answer = await found.post("/v1/chat/completions", CHAT)
        right = (await found.post("/page/judge", exchange(answer))).json
        assert right["findings"] == []
        assert right["passed"] > 10
        assert len(right["events"]) == len(answer.events)
        assert right["events"][0]["rules"][0] == "CS-02"
        assert "SSE-05" in right["events"][-1]["rules"]
        assert set(right["rules"]) == {rule for event in right["events"] for rule in event["rules"]}
        for rule, (old, new, event) in SPOILED.items():
            wrong = (await found.post("/page/judge", exchange(spoiled(answer, old, new)))).json
            marks = [(each["rule"], each["event"]) for each in wrong["findings"]]
            assert (rule, event) in marks
            assert wrong["rules"][rule]["sentence"]


async def test_a_violation_of_the_whole_stream_is_marked_where_it_appears() -> None:
    async with server() as found:
        answer = await found.post("/v1/chat/completions", CHAT)
        events = answer.body.split(b"\n\n")
        events[3] = events[3].replace(b'"test-model"', b'"another"')
        wrong = Answer(answer.status, answer.headers, b"\n\n".join(events))
        findings = (await found.post("/page/judge", exchange(wrong))).json["findings"]
        assert {(each["rule"], each["pointer"], each["event"]) for each in findings} == {
            ("CS-01", "model", 3)
        }


async def test_a_running_stream_is_judged_by_the_events_that_came_whole() -> None:
    async with server() as found:
        answer = await found.post("/v1/chat/completions", CHAT)
        half = Answer(answer.status, answer.headers, answer.body[: len(answer.body) // 2])
        running = (await found.post("/page/judge", exchange(half, complete=False))).json
        assert running["findings"] == []
        old, new, event = SPOILED["CS-02"]
        wrong = (await found.post("/page/judge", exchange(spoiled(half, old, new), complete=False))).json
        assert {(each["rule"], each["event"]) for each in wrong["findings"]} == {("CS-02", event)}


async def test_an_exchange_out_of_bounds_is_refused() -> None:
    async with server() as found:
        answer = await found.post("/v1/chat/completions", CHAT)
        large = base64.b64encode(b"x" * (MOST_BYTES + 1)).decode()
        for changes, status in (
            ({"frames": [[0, large]]}, 413),
            ({"frames": [[0, ""]] * 20_001}, 400),
            ({"path": "/v1/../x"}, 400),
            ({"status": 99}, 400),
            ({"request": "not base64!"}, 400),
            ({"headers": [["name", "v" * 9_000]]}, 400),
        ):
            refused = await found.post("/page/judge", exchange(answer, **changes))
            assert refused.status == status
            assert refused.error["message"]
        text = {"content-type": "text/plain"}
        assert (await found.post("/page/judge", exchange(answer), headers=text)).status == 415
        for body in (b"{", b"[]", b""):
            assert (await found.post("/page/judge", body)).status == 400


async def test_after_a_slow_exchange_the_next_one_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server() as found:
        answer = await found.post("/v1/chat/completions", CHAT)
        monkeypatch.setattr(judge_module, "_SECONDS", 0.0)
        slow = await found.post("/page/judge", exchange(answer))
        assert slow.status == 422
        monkeypatch.undo()
        assert (await found.post("/page/judge", exchange(answer))).status == 200


async def test_exchanges_wait_for_each_other_up_to_a_bound() -> None:
    async with server() as found:
        answer = await found.post("/v1/chat/completions", CHAT)
        answers = await asyncio.gather(*(found.post("/page/judge", exchange(answer)) for _ in range(9)))
        statuses = sorted(each.status for each in answers)
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 4


async def test_an_answer_is_compared_with_its_schema() -> None:
    schema = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
    async with server() as found:
        for text, pointers in (
            ('{"year": 1815}', []),
            ('{"year": "1815"}', ["/year"]),
            ("{}", [""]),
            ("{", [""]),
            ("[" * 100_000, [""]),
        ):
            answer = await found.post("/page/validate", {"schema": schema, "text": text})
            assert [each["pointer"] for each in answer.json["problems"]] == pointers
        for wrong in ({"type": "nothing"}, {"$ref": "http://elsewhere.example/schema.json"}):
            answer = await found.post("/page/validate", {"schema": wrong, "text": "{}"})
            assert "schema cannot be read" in answer.json["problems"][0]["message"]
        # Judging goes on after it.
        sent = await found.post("/v1/chat/completions", CHAT)
        assert (await found.post("/page/judge", exchange(sent))).json["findings"] == []


# The contract


def test_controls_have_the_ranges_of_the_contract() -> None:
    schemas = contract()["components"]["schemas"]
    found = json.loads(controls().body)
    names = {
        "chat": "CreateChatCompletionRequest",
        "responses": "CreateResponse",
        "messages": "CreateMessageRequest",
    }
    assert set(found) == set(OPERATIONS)
    for api, name in names.items():
        members = schemas[name]["properties"]
        listed = {control["name"]: control for control in found[api]}
        assert listed["temperature"]["minimum"] == members["temperature"]["minimum"]
        assert listed["temperature"]["maximum"] == members["temperature"]["maximum"]
        assert "model" not in listed
        assert all(
            control["kind"] in ("boolean", "integer", "number", "string") for control in listed.values()
        )
    choices = [control["enum"] for control in found["chat"] if "enum" in control]
    assert schemas["ReasoningEffort"]["enum"] in choices


def test_the_reference_has_every_operation_and_schema() -> None:
    text = reference().body.decode()
    for path in contract()["paths"]:
        assert f"<code>{path}</code>" in text
    for name in contract()["components"]["schemas"]:
        assert f'id="{name}"' in text
    assert sorted(set(re.findall(r'href="#([^"]+)"', text)) - set(re.findall(r'id="([^"]+)"', text))) == []
