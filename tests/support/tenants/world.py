"""Serve three keys in this process, and check of each answer that nothing of the other keys is in it.

All that a key sends has a word of its own, and all ids that the server gives it are noted, so an answer with such a
word or id of another key, which the request did not name, has leaked it.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.registry import choose
from plumbline.contract._generated import OPERATIONS
from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.loading.catalog import Catalog, ModelSource
from plumbline.server.loading.served_model import ServedModel
from support.models import TOKENIZER, scripted, scripted_info, served, tiny_engine, token_chunks
from support.servers.asgi import Answer, Exchange, Server, serving

__all__ = ["ADMIN", "PATHS", "Json", "Tenant", "World", "alike", "ids_of", "invented", "tenants", "world"]

Json = dict[str, Any]
Turn = Callable[[Json], Awaitable[list[Json]]]
PATHS = {each.id: each for each in OPERATIONS}
ADMIN = {"authorization": "Bearer root"}
SEATS = {"max_num_seqs": 4, "max_num_waiting": 8}
_ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
_WORD = re.compile(r"[\w-]{6,}")
_VARYING = {"x-request-id", "request-id", "openai-processing-ms", "date"}


class Tenant:
    """A key, and what the server keeps for it."""

    def __init__(self, name: str, models: tuple[str, ...], limits: str = "") -> None:
        self.name = name
        self.models = models
        self.line = f"key-of-{name} name={name} {limits} models={','.join(models)}"
        self.headers = {"authorization": f"Bearer key-of-{name}"}
        self.word = f"secretof{name}"
        self.words = {self.word, f"key-of-{name}"}
        """What no answer for another key may have."""
        self.adopted: set[str] = set()
        """Ids of others' items that it has given to items of its own."""
        self.records: dict[str, list[str]] = defaultdict(list)
        """Ids by the names that paths have for them, the oldest first; items under the id of their conversation."""
        self.prompts: set[tuple[str, int]] = set()
        """The models and topics of its prompts, whose beginning may be cached."""
        self.sealed: list[Json] = []
        self.generating = 0
        """Its requests that counted for its limit of requests."""

    def text(self, topic: int) -> str:
        """Return a text that differs from that of each other topic at once, and is the same for each key."""
        return f"{topic} is the topic of what we all know and like. " * 3 + f"{topic}"

    def own(self, kind: str, number: int) -> str | None:
        """Return the id of one of its records."""
        found = self.records[kind]
        return found[number % len(found)] if found else None

    def forget(self, kind: str, name: str) -> None:
        """Note that a record was deleted; its id stays a secret."""
        self.records[kind].remove(name)
        self.records.pop(name, None)


def tenants() -> tuple[Tenant, ...]:
    """Return three keys with different models and limits."""
    return (
        Tenant("ann", ("plainest", "alphaone", "annsadapter"), "requests=100000"),
        Tenant("bob", ("plainest", "betatwo", "bobsadapter"), "tokens=9000000"),
        Tenant("cyd", ("plainest", "alphaone", "betatwo"), "streams=5 stored=10MiB"),
    )


def _thinking(request: GenerateRequest) -> Iterable[TokenChunk]:
    """Think what the user said, and say it."""
    prompt = TOKENIZER.decode(request.prompt_token_ids)
    said = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0][-40:]
    return token_chunks(request, TOKENIZER.encode_rendered(f"<think>{said}</think>You said: {said}"))


def _catalog() -> Catalog:
    plain = served(
        scripted(_thinking, info=scripted_info(features=frozenset({"adapters"}))), names=("plainest",)
    )
    plain = ServedModel(
        engine=plain.engine,
        renderer=plain.renderer,
        names=plain.names,
        defaults=plain.defaults,
        created=plain.created,
        fingerprint=plain.fingerprint,
        dialect=build_dialect(choose("", tool="hermes", reasoning="qwen3"), TOKENIZER),
    )
    tiny = served(
        tiny_engine(**SEATS, max_seqs_per_client=SEATS["max_num_seqs"] + SEATS["max_num_waiting"] // 2),
        names=("alphaone", "betatwo"),
    )
    models = {"plainest": plain, "alphaone": tiny}
    sources = tuple(ModelSource(model.names, lambda model=model: model) for model in models.values())  # type: ignore[misc]
    return Catalog(sources=sources, default=sources[0], loaded=models)


def invented(name: str) -> str:
    """Return an id of the form of another that no record has."""
    made = uuid.uuid4().hex * 2
    kind, separator, rest = re.split("([_-])", name, maxsplit=1)
    return kind + separator + made[: len(rest)]


def ids_of(value: Any) -> set[str]:
    """Return all ids that are anywhere in a value."""
    if isinstance(value, list):
        return set().union(*map(ids_of, value))
    if isinstance(value, dict):
        own = {each for name, each in value.items() if name.endswith("id") and isinstance(each, str)}
        return own.union(*map(ids_of, value.values()))
    return set()


def alike(first: Answer, name: str, second: Answer, other: str) -> None:
    """Check that two answers differ only in the id that the request named."""

    def seen(answer: Answer, own: str) -> Any:
        headers = sorted(
            (key, value)
            for key, value in answer.headers
            if key not in _VARYING and not key.startswith("x-ratelimit-")
        )
        hidden = re.sub(rb"req_\w+", b"", answer.body.replace(own.encode(), b"?"))
        return answer.status, headers, hidden

    assert seen(first, name) == seen(second, other)


class World:
    """A server, its keys, and what they may see.

    Attributes:
        adapters: the adapters that are loaded.
        asked: how often each operation was requested.
    """

    def __init__(self, server: Server, people: tuple[Tenant, ...], folder: Path) -> None:
        self.server = server
        self.people = people
        self.folder = folder
        self.adapters: set[str] = set()
        self.asked: Counter[str] = Counter()

    def open(
        self,
        who: Tenant | None,
        operation: str,
        body: Any = None,
        query: str = "",
        headers: dict[str, str] | None = None,
        **ids: str,
    ) -> Exchange:
        """Send a request of a key, or of the admin's."""
        self.asked[operation] += 1
        known = PATHS[operation]
        if who is not None and known.method == "POST":
            who.generating += 1  # At most: not all of these count.
        given = {**(ADMIN if who is None else who.headers), **(headers or {})}
        return self.server.open(known.method, known.path.format(**ids) + query, body, headers=given)

    async def ask(
        self, who: Tenant | None, operation: str, body: Any = None, query: str = "", **options: Any
    ) -> Answer:
        """Send a request, and check that the answer has nothing of another key."""
        answer = await self.open(who, operation, body, query, **options).answer()
        assert answer.status < 500, (operation, body, answer.body)
        if who is not None:
            self.check(who, answer, json.dumps([body, query, options]))
        return answer

    async def want(
        self, who: Tenant | None, operation: str, body: Any = None, query: str = "", **options: Any
    ) -> Answer:
        """Send a request that has to succeed."""
        answer = await self.ask(who, operation, body, query, **options)
        assert answer.status == 200, (operation, body, answer.status, answer.body)
        return answer

    def check(self, who: Tenant, answer: Answer, sent: str) -> None:
        """Check an answer for words of others, hidden models, paths, and limits that others have used."""
        said = " ".join(f"{name}: {value}" for name, value in answer.headers)
        self.check_text(who, said + answer.body.decode("utf-8", "replace"), sent)
        left = answer.header("x-ratelimit-remaining-requests")
        assert left is None or int(left) >= 100_000 - who.generating, "others have used its requests"

    def check_text(self, who: Tenant, text: str, sent: str) -> None:
        """Check a text for words of others, hidden models, and paths."""
        words = set(_WORD.findall(text)) - set(_WORD.findall(sent)) - who.adopted
        for other in self.people:
            if other is not who:
                assert not words & other.words, (
                    f"{who.name} sees {words & other.words} of {other.name}: {text[:600]}"
                )
        hidden = {"alphaone", "betatwo", "annsadapter", "bobsadapter"}.difference(who.models)
        found = {name for name in hidden if re.search(rf"\b{name}\b", text) and name not in sent}
        assert not found, f"{who.name} sees the models {found}: {text[:600]}"
        assert str(self.folder) not in text, f"{who.name} sees a path: {text[:600]}"

    @asynccontextmanager
    async def socket(self, who: Tenant) -> AsyncGenerator[Turn, None]:
        """Open a WebSocket of a key; yields a function that sends a turn and returns its events."""
        inbox: asyncio.Queue[Json] = asyncio.Queue()
        outbox: asyncio.Queue[Json] = asyncio.Queue()
        scope: Json = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": "/v1/responses",
            "raw_path": b"/v1/responses",
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"authorization", who.headers["authorization"].encode())],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
            "subprotocols": [],
            "state": {},
        }
        inbox.put_nowait({"type": "websocket.connect"})
        task = asyncio.ensure_future(self.server.app(scope, inbox.get, outbox.put))
        assert (await outbox.get())["type"] == "websocket.accept"

        async def turn(body: Json) -> list[Json]:
            who.generating += 1
            text = json.dumps({"type": "response.create", **body})
            inbox.put_nowait({"type": "websocket.receive", "text": text})
            found: list[Json] = []
            while not found or found[-1]["type"] not in _ENDS:
                async with asyncio.timeout(20):
                    sent = (await outbox.get())["text"]
                self.check_text(who, sent, text)
                found.append(json.loads(sent))
            return found

        try:
            yield turn
        finally:
            inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})
            await task

    def note(self, who: Tenant, value: Any) -> None:
        """Note the ids in an answer as those of a key."""
        who.words |= {name for name in ids_of(value) if _WORD.fullmatch(name)} - {"plainest"}


@asynccontextmanager
async def world(folder: Path, **changes: Any) -> AsyncGenerator[World, None]:
    """Serve three keys with everything that the server can do."""
    adapters = folder / "adapters"
    for name in ("annsadapter", "bobsadapter", "outside/other"):
        (adapters / name).mkdir(parents=True)
    for name in ("annsadapter", "bobsadapter"):
        (adapters / name / "adapter_config.json").write_text("{}", "utf-8")
    people = tenants()
    settings: Json = {
        "store": str(folder / "s.db"),
        "api_keys": tuple(each.line for each in people),
        "admin_api_keys": ("root",),
        "lora_dir": str(adapters),
        "page": True,
        **SEATS,
        **changes,
    }
    async with serving(_catalog(), **settings) as server:
        yield World(server, people, folder)


async def until(condition: Callable[[], Any]) -> Any:
    """Ask again until the answer is true."""
    async with asyncio.timeout(20):
        while not (found := await condition()):
            await asyncio.sleep(0.005)
        return found
