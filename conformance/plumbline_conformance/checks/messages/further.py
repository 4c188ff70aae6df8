"""Check formats of messages, images in them, and the key in the header that clients of Messages send."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Generator, Iterator

from plumbline_conformance.checks.common import accepted, answered, at
from plumbline_conformance.checks.laws import STREAM, WHOLE, both
from plumbline_conformance.checks.messages.fold import message_of, prompt_tokens, text_of
from plumbline_conformance.checks.messages.texts import PATH, message
from plumbline_conformance.checks.request_reader import request_fields
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.suite.schema_validation import fits
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript
from plumbline_conformance.transcript.sse import load_json

Steps = Generator[Request, Exchange, None]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "enum": ["Ada", "Bob"]}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WRONG = "wrong-key-0f3a"


def _square(size: int) -> str:
    """Return a red square as a PNG file, in base64."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff\0\0" * size) * size, 9)
    file = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return base64.b64encode(file).decode()


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _square(64)}}


@scenario("messages/format", "A message in the form of a JSON Schema", needs=("messages",))
def formatted(target: Target) -> Steps:
    wanted = {"format": {"type": "json_schema", "schema": SCHEMA}}
    body = message(target, messages=user("Who are you?"), output_config=wanted, max_tokens=128)
    yield Request(name=WHOLE, path=PATH, json=body)
    yield Request(name=STREAM, path=PATH, json={**body, "stream": True})


@both(
    "messages/format/matching",
    ("Write a text that matches the schema", "MSG-13"),
    ("Stream a text that matches the schema", "MSG-13"),
)
def matching(exchange: Exchange) -> Iterator[Problem]:
    """Check that a whole text is JSON and matches the schema of `output_config` (MSG-13)."""
    config = request_fields(exchange).get("output_config")
    form = config.get("format") if isinstance(config, dict) else None
    schema = form.get("schema") if isinstance(form, dict) else None
    if not isinstance(schema, dict):
        raise NotRequested("the request has no schema")
    if message_of(exchange).get("stop_reason") != "end_turn":
        raise Inconclusive("the answer was cut")
    text = text_of(exchange)
    value = load_json(text.encode())
    if value is None or not fits(schema, value):
        yield Problem(expected="JSON that matches the schema", actual=as_json(text)[:200], pointer="content")


@scenario("messages/image", "A message with an image, and without it", needs=("messages",))
def image(target: Target) -> Steps:
    text = {"type": "text", "text": "What is this?"}
    for name, blocks in (("plain", [text]), ("image", [IMAGE, text])):
        asked = [{"role": "user", "content": blocks}]
        yield Request(name=name, path=PATH, json=message(target, messages=asked))


@check("messages/image/seen", "Let the model see an image, or refuse it", "MSG-14", request="image")
def seen_image(seen: Transcript) -> Iterator[Problem]:
    plain = prompt_tokens(accepted(at(seen, "plain")))
    found = answered(at(seen, "image"))
    if found.status in (400, 422):
        return
    more = prompt_tokens(accepted(found))
    if more <= plain:
        wanted = f"a prompt of more than {plain}, or status 400"
        yield Problem(expected=wanted, actual=str(more), pointer="usage", exchange="image")


@scenario("messages/key", "The key as x-api-key, and a wrong one", needs=("messages", "key"))
def key(target: Target) -> Steps:
    for name, value in (("own", target.api_key or ""), ("wrong", WRONG)):
        # An empty header in place of the one that all other requests have.
        headers = {"x-api-key": value, "authorization": ""}
        yield Request(name=name, path=PATH, json=message(target), headers=headers)


@check("messages/key/taken", "Accept the key as x-api-key", "MSG-11", request="own")
def key_taken(seen: Transcript) -> Iterator[Problem]:
    found = at(seen, "own")
    if found.error is None and found.status in (401, 403):
        shown = f"status {found.status}"
        yield Problem(expected="an answer", actual=shown, pointer="status", exchange="own")
    else:
        accepted(found)


@check("messages/key/refused", "Refuse a wrong x-api-key", "MSG-11", request="wrong")
def key_refused(seen: Transcript) -> Iterator[Problem]:
    found = at(seen, "wrong")
    if found.error is not None or found.status not in (401, 403):
        answered(found)
    if found.status != 401:
        shown = f"status {found.status}"
        yield Problem(expected="status 401", actual=shown, pointer="status", exchange="wrong")
        return
    error = found.json.get("error") if isinstance(found.json, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    if kind != "authentication_error":
        wanted, shown = "authentication_error", as_json(kind)[:200]
        yield Problem(expected=wanted, actual=shown, pointer="error.type", exchange="wrong")
