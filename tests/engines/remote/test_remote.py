"""What is particular to an engine in another process; `tests/engines/contract` has the laws of all engines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import GatedEngine, scripted, scripted_info, until

from plumbline.engines.remote.client import RemoteEngine
from plumbline.engines.remote.host import EngineHost
from plumbline.engines.remote.messages import Chunks, FromHost, Generate, Statistics, ToHost
from plumbline.port.connection import Connection, FrameError
from plumbline.port.engine import (
    EngineClosedError,
    EngineFullError,
    GenerateRequest,
    MediaItem,
    MediaPrompt,
    RefusedRequestError,
    SamplingParams,
    TokenChunk,
    TokenLogprob,
)

from .hosting import chunks_of, hosted, request


async def test_users_with_the_same_request_ids_do_not_meet(tmp_path: Path) -> None:
    engine = scripted()
    expected = await chunks_of(engine, request("same"))
    async with hosted(engine, tmp_path, users=3) as users:
        found = await asyncio.gather(*(chunks_of(user, request("same")) for user in users))
    assert found == [expected] * 3


async def test_images_and_adapters_reach_the_engine_as_they_are(tmp_path: Path) -> None:
    seen: list[GenerateRequest] = []

    def script(wanted: GenerateRequest) -> list[TokenChunk]:
        seen.append(wanted)
        return [TokenChunk(token_ids=(5,))]

    info = scripted_info(modalities={"image": 9}, features=frozenset({"adapters"}))
    engine = scripted(script, info=info)
    prompt = MediaPrompt((5, 9, 6), (MediaItem(media_type="image/png", data=bytes(range(256)) * 9),))
    async with hosted(engine, tmp_path) as (user,):
        assert user.info == info
        assert list(await user.expand(prompt)) == list(await engine.expand(prompt))
        with pytest.raises(RefusedRequestError, match="placeholders"):
            await user.expand(MediaPrompt((5, 6), prompt.items))
        await user.load_adapter("pirate", tmp_path)
        assert engine.adapters == ["pirate"]
        wanted = msgspec.structs.replace(request("a"), media=prompt, adapter="pirate")
        await chunks_of(user, wanted)
        assert (seen[0].media, seen[0].adapter) == (prompt, "pirate")
        await user.unload_adapter("pirate")
        assert engine.adapters == []
    async with hosted(scripted(), tmp_path) as (user,):
        with pytest.raises(RefusedRequestError, match="adapters"):
            await user.load_adapter("pirate", tmp_path)


async def test_users_that_ask_for_the_same_adapter_load_it_once(tmp_path: Path) -> None:
    """Each API server loads the adapters of the command line."""
    engine = scripted(info=scripted_info(features=frozenset({"adapters"})))
    async with hosted(engine, tmp_path, users=2) as users:
        await asyncio.gather(*(user.load_adapter("pirate", tmp_path) for user in users))
        assert engine.adapters == ["pirate"]


async def test_a_user_that_leaves_takes_only_its_own_requests_along(tmp_path: Path) -> None:
    engine = GatedEngine()
    async with hosted(engine, tmp_path, users=2) as (leaving, staying):
        cut = asyncio.create_task(chunks_of(leaving, request("cut")))
        whole = asyncio.create_task(chunks_of(staying, request("whole")))
        await until(lambda: engine.num_running == 2)
        await leaving.stop()
        assert (await cut)[-1].finish_reason == "abort"
        await until(lambda: engine.num_running == 1)
        engine.let()
        assert (await whole)[-1].finish_reason in ("stop", "length")


async def test_the_end_of_the_host_ends_streams_with_an_error(tmp_path: Path) -> None:
    engine = GatedEngine()
    host = EngineHost(engine, tmp_path / "engine.sock")
    await host.start()
    remote = await RemoteEngine.connect(tmp_path / "engine.sock")
    await remote.start()
    lost = asyncio.Event()
    remote.on_lost = lost.set
    await until(lambda: remote.stats().alive)
    reading = asyncio.create_task(chunks_of(remote, request("a")))
    await until(lambda: engine.num_running)

    await host.stop()

    assert (await reading)[-1].finish_reason == "error"
    await asyncio.wait_for(lost.wait(), 5)
    assert not remote.stats().alive
    with pytest.raises(EngineClosedError):
        await anext(remote.generate(request("b")))
    await remote.stop()


async def test_a_host_that_sends_nothing_ends_streams_until_it_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a process that was stopped; `tests/faults` stops one."""
    talks = asyncio.Event()

    async def send_statistics(user: Any) -> None:
        while True:
            await talks.wait()
            user._connection.send(Statistics(engine.stats()))
            await asyncio.sleep(0.02)

    monkeypatch.setattr("plumbline.engines.remote.host._User._send_statistics", send_statistics)
    monkeypatch.setattr("plumbline.engines.remote.link._LATE", 0.1)
    engine = GatedEngine()
    host = EngineHost(engine, tmp_path / "engine.sock")
    await host.start()
    remote = await RemoteEngine.connect(tmp_path / "engine.sock", silent_after=0.5)
    await remote.start()
    try:
        reading = asyncio.ensure_future(chunks_of(remote, request("a")))
        await until(lambda: "has sent nothing" in remote.stats().outage)
        assert not reading.done()  # No probe is 200 by now, and what runs may still go on.
        last = (await reading)[-1]
        assert (last.finish_reason, last.error) == ("error", "The engine's process does not answer.")
        await until(lambda: not engine.num_running)
        assert remote.stats().alive
        assert remote.stats().seconds_since_step > 0.0
        with pytest.raises(EngineClosedError, match="again"):
            await anext(remote.generate(request("b")))
        talks.set()
        await until(lambda: not remote.link.is_silent)
        assert not remote.stats().outage
        engine.let()
        assert (await chunks_of(remote, request("c")))[-1].finish_reason in ("stop", "length")
    finally:
        await remote.stop()
        await host.stop()


async def test_a_reader_that_is_far_behind_holds_the_engine(tmp_path: Path) -> None:
    """Chunks wait in the engine, where they are counted, and not in the sockets between."""

    def endless(_: GenerateRequest) -> Any:
        while True:
            yield TokenChunk(token_ids=(5,))

    engine = GatedEngine(endless)
    engine.let(100_000)
    async with hosted(engine, tmp_path) as (remote,):
        wanted = msgspec.structs.replace(request("slow"), sampling=SamplingParams())
        stream = remote.generate(wanted)
        await anext(stream)
        given, before = 0, -1
        while given != before:
            await asyncio.sleep(0.05)
            given, before = engine.num_given, given
        assert given < 5_000
        for _ in range(given + 1_000):  # It goes on when the reader catches up.
            await anext(stream)
        await stream.aclose()
        await until(lambda: not engine.num_running)


@pytest.mark.parametrize(
    "error", [RefusedRequestError("no", param="top_k"), EngineFullError("full", 7), EngineClosedError("over")]
)
async def test_errors_of_the_engine_arrive_as_they_are(tmp_path: Path, error: Exception) -> None:
    def fail(_: GenerateRequest) -> Any:
        raise error

    engine = scripted(fail)
    async with hosted(engine, tmp_path) as (remote,):
        with pytest.raises(type(error)) as found:
            await anext(remote.generate(request("a")))
        assert found.value.args == error.args
        assert vars(found.value) == vars(error)
        with pytest.raises(RefusedRequestError, match="grammars"):
            await remote.check_grammar("start: /a/")


async def test_what_is_no_frame_ends_the_connection(tmp_path: Path) -> None:
    engine = scripted()
    async with hosted(engine, tmp_path) as (remote,):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "engine.sock")
        writer.write(b"\x00\x00\x00\x03abc")
        assert await asyncio.wait_for(reader.read(), 5) is not None  # To its end.
        writer.write_eof()
        assert (await chunks_of(remote, request("a")))[-1].finish_reason is not None
        writer.close()


class _Pipe:
    """A connection to itself."""

    def __init__(self, kind: object, cuts: list[int]) -> None:
        self.reader = asyncio.StreamReader()
        self.connection: Connection[Any] = Connection(self.reader, self, kind)  # type: ignore[arg-type]
        self._cuts = cuts
        self._written = b""

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self._written += data

    def arrive(self) -> None:
        """Let the bytes arrive in pieces."""
        at = 0
        for size in self._cuts:
            self.reader.feed_data(self._written[at : at + size])
            at += size
        self.reader.feed_data(self._written[at:])
        self.reader.feed_eof()


_tokens = st.lists(st.integers(0, 200_000), max_size=5).map(tuple)
_chunk = st.builds(
    TokenChunk,
    token_ids=_tokens,
    logprobs=st.none() | st.just((TokenLogprob(3, -1.5, ((3, -1.5), (4, float("-inf")))),)),
    finish_reason=st.sampled_from([None, "stop", "length", "abort", "error"]),
    num_cached_tokens=st.integers(0, 10**6),
    error=st.none() | st.text(max_size=20),
)
_sampling = st.builds(
    SamplingParams,
    logit_bias=st.dictionaries(st.integers(0, 100), st.floats(-100, 100), max_size=3),
    allowed_token_ids=st.none() | st.frozensets(st.integers(0, 100), max_size=4),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    bad_words=st.lists(_tokens, max_size=2).map(tuple),
    banned_strings=st.lists(st.text(max_size=5), max_size=2).map(tuple),
    grammar=st.none() | st.text(max_size=30),
)
_requests = st.builds(
    Generate,
    stream=st.integers(1, 2**40),
    request=st.builds(
        GenerateRequest,
        request_id=st.text(max_size=10),
        prompt_token_ids=st.lists(st.integers(0, 200_000), max_size=20),
        sampling=_sampling,
    ),
)


@given(
    st.one_of(
        st.tuples(
            st.just(FromHost),
            st.lists(
                st.builds(Chunks, items=st.lists(st.tuples(st.integers(0, 2**40), _chunk), max_size=3)),
                max_size=4,
            ),
        ),
        st.tuples(st.just(ToHost), st.lists(_requests, max_size=3)),
    ),
    st.lists(st.integers(1, 40), max_size=12),
)
def test_messages_arrive_as_they_were_sent_however_their_bytes_are_cut(
    sent: tuple[Any, list[Any]], cuts: list[int]
) -> None:
    async def scenario() -> None:
        kind, messages = sent
        pipe = _Pipe(kind, cuts)
        for message in messages:
            pipe.connection.send(message)
        pipe.arrive()
        found: list[Any] = []
        while part := await pipe.connection.receive():
            found += part
        assert found == messages

    asyncio.run(scenario())


@given(st.binary(min_size=4, max_size=60))
def test_any_bytes_are_messages_or_an_error(data: bytes) -> None:
    async def scenario() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        connection: Connection[ToHost] = Connection(reader, None, ToHost)  # type: ignore[arg-type]
        try:
            while await connection.receive():
                pass
        except FrameError:
            pass

    asyncio.run(scenario())
