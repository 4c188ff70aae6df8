"""Check the context of a continuation: that of its history sent whole, and of what changed in between."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import accepted, at, usage_count
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.responses.stored.lifecycle import id_of
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.scenario import Problem, Rejected, Request, Target, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
BRIEF: dict[str, Any] = {"max_output_tokens": 16, "store": True}


@scenario(
    "responses/same-history",
    "A continuation, and the same conversation sent whole",
    needs=("responses", "stored"),
)
def same_history(target: Target) -> Steps:
    made = yield Request(
        name="first", path="/responses", json=create_response(target, "My name is Ada.", **BRIEF)
    )
    name, output = id_of(made), made.json.get("output") if isinstance(made.json, dict) else None
    if name is None or not isinstance(output, list):
        return
    body = create_response(target, "Who am I?", previous_response_id=name, **BRIEF)
    yield Request(name="continued", path="/responses", json=body)
    whole = [*user("My name is Ada."), *output, *user("Who am I?")]
    yield Request(name="whole", path="/responses", json=create_response(target, whole, **BRIEF))


@check(
    "responses/same-history/same-prompt",
    "Show the model the same tokens for a continuation as for its whole history",
    "ST-04",
    request="continued",
)
def same_prompt(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "first"))
    if at(seen, "whole").status in (400, 422):
        raise Rejected("the server refuses items of its own output; another check reports this")
    found = usage_count(at(seen, "continued"), "input_tokens")
    wanted = usage_count(at(seen, "whole"), "input_tokens")
    if found != wanted:
        shown = f"{wanted}, as for the whole history"
        yield Problem(expected=shown, actual=str(found), pointer="usage.input_tokens")


LONG = " ".join(["Be kind."] * 120)
WORDS = 240
"""The words of the long text, each of which is a token at least."""


@scenario(
    "responses/conversation-changes",
    "A conversation whose items change between its responses",
    needs=("responses", "conversations"),
)
def changes(target: Target) -> Steps:
    begun = yield Request(name="created", path="/conversations", json={})
    if (name := id_of(begun)) is None:
        return
    items = f"/conversations/{name}/items"

    def ask(text: str) -> dict[str, Any]:
        return create_response(target, text, conversation=name, **BRIEF)

    yield Request(name="long", path="/responses", json=ask(LONG))
    page = yield Request(name="items", path=f"{items}?limit=100", method="GET")
    if (question := _question(page.json)) is None:
        return
    yield Request(name="deleted", path=f"{items}/{question}", method="DELETE")
    yield Request(name="shorter", path="/responses", json=ask("And now?"))
    added = [{"type": "message", **one} for one in user(LONG)]
    yield Request(name="added", path=items, json={"items": added})
    yield Request(name="longer", path="/responses", json=ask("And now?"))


def _question(page: Any) -> str | None:
    """Return the id of the user's message in a list of items, if it is safe in a path."""
    data = page.get("data") if isinstance(page, dict) else None
    found = [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    names = [item.get("id") for item in found if item.get("role") == "user"]
    name = names[0] if names else None
    return name if isinstance(name, str) and name.isascii() and name.replace("_", "").isalnum() else None


@check(
    "responses/conversation-changes/forgotten",
    "Leave out an item that was deleted before the next response",
    "ST-09",
    request="shorter",
)
def forgotten(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "deleted"))
    before, after = (usage_count(at(seen, name), "input_tokens") for name in ("long", "shorter"))
    if after >= before:
        yield Problem(expected=f"less than {before}", actual=str(after), pointer="usage.input_tokens")


@check("responses/conversation-changes/added", "Return the items that were added", "ST-09", request="added")
def added(seen: Transcript) -> Iterator[Problem]:
    page = accepted(at(seen, "added"))
    found = page.json.get("data") if isinstance(page.json, dict) else None
    wanted = len(page.request_json["items"])
    if not isinstance(found, list) or len(found) != wanted:
        yield Problem(expected=f"a list of {wanted}", actual=as_json(found)[:200], pointer="data")


@check(
    "responses/conversation-changes/learnt",
    "Show the model an item that was added before the next response",
    "ST-09",
    request="longer",
)
def learnt(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "added"))
    before, after = (usage_count(at(seen, name), "input_tokens") for name in ("shorter", "longer"))
    if after < before + WORDS:
        wanted = f"at least {before + WORDS}"
        yield Problem(expected=wanted, actual=str(after), pointer="usage.input_tokens")
