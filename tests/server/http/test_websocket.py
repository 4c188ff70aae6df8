"""Responses over a WebSocket (WS-01 to WS-09), with a client that others wrote.

- A turn has the events of a stream; turns follow each other, also when they are sent at once.
- A turn that is not stored can be continued once on its own connection, and on no other.
- Turns of different lanes take place at once, each lane in its order, and each event names its lane.
- Errors are events, and the connection goes on. A client that leaves stops its turn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection as socket_of
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from openai import OpenAI
from openai.types.beta.beta_response_steer_failed_event import BetaResponseSteerFailedEvent
from support.judges import fold_response
from support.models import hold_steps, served, tiny_engine
from support.servers.asgi import as_catalog
from support.servers.live import Live, live
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from plumbline.contract.wire.errors import ApiError
from plumbline.contract.wire.large_bodies import LARGE_BODIES, LargeBodies
from plumbline.engines.native.engine import NativeEngine
from plumbline.server.app import create_app
from plumbline.server.limits.draining import DRAINING
from plumbline.server.limits.keys import KEYS
from plumbline.server.limits.rates import RATES
from plumbline.server.settings import Settings
from plumbline.server.websocket import _Connection

BODY = {"model": "test-model", "input": "hi", "max_output_tokens": 16, "temperature": 0}
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


@contextmanager
def connected(
    settings: Settings | None = None, engine: NativeEngine | None = None
) -> Iterator[tuple[Live, ClientConnection]]:
    with (
        live(lambda: served(engine or tiny_engine()), settings or Settings()) as server,
        connect(f"ws://127.0.0.1:{server.port}/v1/responses") as socket,
    ):
        yield server, socket


def send(socket: ClientConnection, **fields: Any) -> None:
    socket.send(json.dumps({"type": "response.create", **BODY, **fields}))


def turn(socket: ClientConnection) -> list[dict[str, Any]]:
    """Read the events of one turn."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] not in ENDS:
        found.append(json.loads(socket.recv(timeout=20)))
    return found


def converse(socket: ClientConnection, **fields: Any) -> list[dict[str, Any]]:
    send(socket, **fields)
    return turn(socket)


def error(socket: ClientConnection) -> tuple[int, str]:
    (event,) = turn(socket)
    assert event["type"] == "error"
    assert set(event["error"]) == {"message", "type", "param", "code"}
    return event["status"], event["error"]["code"]


def test_a_turn_has_the_events_of_a_stream(tmp_path: Path) -> None:
    """WS-02, WS-03, WS-04, RS-19."""
    with connected(Settings(store=str(tmp_path / "s.db"))) as (server, socket):
        for _ in range(2):
            send(socket, stream=True)
        first, second = (fold_response(turn(socket)) for _ in range(2))
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none")

        assert first["output"][0]["content"] == second["output"][0]["content"]
        assert client.responses.retrieve(first["id"]).output_text == first["output"][0]["content"][0]["text"]


def test_a_turn_that_is_not_stored_is_continued_on_its_connection(tmp_path: Path) -> None:
    """WS-05."""
    with connected(Settings(store=str(tmp_path / "s.db"))) as (server, socket):
        send(socket, store=False)
        first = turn(socket)[-1]["response"]
        send(socket, store=False, input="more", previous_response_id=first["id"])
        second = turn(socket)[-1]["response"]
        with connect(f"ws://127.0.0.1:{server.port}/v1/responses") as other:
            send(other, previous_response_id=second["id"])
            assert error(other) == (400, "previous_response_not_found")

        assert second["previous_response_id"] == first["id"]
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def test_an_error_names_the_field_as_the_client_spelled_it() -> None:
    with connected() as (_, socket):
        (event,) = converse(socket, allowed_tokens=[5, 10**6])

    assert event["error"]["param"] == "allowed_tokens[1]"


LONG = {"max_output_tokens": 400, "ignore_eos": True}


def lane_events(socket: ClientConnection, ends: int) -> list[dict[str, Any]]:
    """Read the events of all lanes until this many turns have ended."""
    found: list[dict[str, Any]] = []
    while sum(event["type"] in ENDS for event in found) < ends:
        found.append(json.loads(socket.recv(timeout=20)))
    return found


def test_a_turn_without_an_answer_can_be_continued(tmp_path: Path) -> None:
    """WS-11: Codex prepares its connection by one."""
    with connected(Settings(store=str(tmp_path / "s.db"))) as (_, socket):
        for kept in (False, True):
            prepared = converse(socket, generate=False, input="remember this", store=kept)[-1]["response"]
            assert (prepared["status"], prepared["output"]) == ("completed", [])
            usage = prepared["usage"]
            assert usage["output_tokens"] == 0
            after = converse(socket, previous_response_id=prepared["id"], store=kept)[-1]["response"]
            assert after["output"]
            assert after["usage"]["input_tokens"] > usage["input_tokens"]
        socket.send(json.dumps({"type": "response.create", **BODY, "generate": "no"}))
        assert error(socket)[0] == 400


def test_steering_is_refused_with_its_input_and_the_response_goes_on() -> None:
    """WS-12."""
    with connected() as (_, socket):
        send(socket, ignore_eos=True, max_output_tokens=200)
        events = [json.loads(socket.recv(timeout=20))]
        steer = {"input": "Stop.", "previous_response_id": events[0]["response"]["id"]}
        socket.send(json.dumps({"type": "response.steer", **steer}))
        while len({event["type"] for event in events} & {"response.steer.failed", *ENDS}) < 2:
            events.append(json.loads(socket.recv(timeout=20)))
        (failed,) = [event for event in events if event["type"] == "response.steer.failed"]
        (last,) = [event for event in events if event["type"] in ENDS]
        assert BetaResponseSteerFailedEvent.model_validate(failed, strict=True)
        assert failed["error"]["code"] == "steering_not_supported"
        assert failed["steer"] == steer
        assert last["type"] in ("response.completed", "response.incomplete")


def test_lanes_run_at_once_and_each_in_its_order() -> None:
    """WS-10: a short turn does not wait for a long one of another lane, and each lane has the events of streams."""
    engine = tiny_engine()
    with connected(engine=engine) as (_, socket):
        let = hold_steps(engine)
        send(socket, stream_id="long", input="one", **LONG)
        events = [json.loads(socket.recv(timeout=20))]
        for lane, text in (("a", "x"), ("long", "two"), (None, "y"), ("a", "z")):
            send(socket, input=text, **({} if lane is None else {"stream_id": lane}))
        while {event.get("stream_id") for event in events} != {"long", "a", None}:
            events.append(json.loads(socket.recv(timeout=20)))
        let.set()
        events += lane_events(socket, 5)

    lanes = {
        lane: [event for event in events if event.get("stream_id") == lane] for lane in ("long", "a", None)
    }
    assert [event["type"] in ENDS for event in events if event.get("stream_id") != "long"].count(True) == 3
    first_end = next(event for event in events if event["type"] in ENDS)
    assert first_end.get("stream_id") != "long"
    for lane, turns in (("long", 2), ("a", 2), (None, 1)):
        ends = [number for number, event in enumerate(lanes[lane]) if event["type"] in ENDS]
        assert len(ends) == turns
        begins = [0, *(end + 1 for end in ends)]
        for begin, end in zip(begins, ends, strict=False):
            own = lanes[lane][begin : end + 1]
            numbers = [event["sequence_number"] for event in own]
            assert numbers == list(range(numbers[0], numbers[0] + len(own)))
            assert len({event["response"]["id"] for event in own if "response" in event}) == 1


def test_a_lane_continues_a_turn_of_another() -> None:
    """WS-10: `previous_response_id` decides what is continued, and the lane only the order."""
    with connected() as (_, socket):
        first = converse(socket, stream_id="a")[-1]["response"]
        second = converse(socket, stream_id="b", previous_response_id=first["id"])[-1]
        third = converse(socket, stream_id="a", previous_response_id=first["id"])[-1]
        send(socket, stream_id="b", previous_response_id=first["id"])
        last = turn(socket)[-1]

    assert (
        second["response"]["previous_response_id"] == third["response"]["previous_response_id"] == first["id"]
    )
    assert (last["error"]["code"], last["stream_id"]) == ("previous_response_not_found", "b")


@pytest.mark.parametrize("lane", ["", "a b", "é", "a" * 257, 5, ["a"]])
def test_a_wrong_lane_is_refused_by_name(lane: Any) -> None:
    """WS-07, WS-10."""
    with connected() as (_, socket):
        refused = converse(socket, stream_id=lane)[-1]
        assert (refused["status"], refused["error"]["param"]) == (400, "stream_id")
        assert "stream_id" not in refused
        assert converse(socket, stream_id="a" * 256)[-1]["stream_id"] == "a" * 256


def test_the_lanes_of_a_connection_are_bounded() -> None:
    """WS-10: one lane too many is refused, and those that run go on."""
    engine = tiny_engine()
    with connected(engine=engine) as (_, socket):
        let = hold_steps(engine)
        for number in range(17):
            send(socket, stream_id=f"lane-{number}", ignore_eos=True)
        events = lane_events(socket, 1)
        let.set()
        events += lane_events(socket, 16)

    refused = [event for event in events if event["type"] == "error"]
    assert [(event["stream_id"], event["error"]["code"]) for event in refused] == [
        ("lane-16", "websocket_stream_limit_reached")
    ]


ORPHAN = {"type": "function_call_output", "call_id": "no", "output": ""}


@pytest.mark.parametrize("fields", [{"temperature": 9}, {"input": [ORPHAN]}])
def test_a_continuation_that_failed_cannot_be_tried_again(fields: dict[str, Any]) -> None:
    """WS-06, WS-09; without a store, too. A request that cannot be read continues nothing yet."""
    with connected() as (_, socket):
        send(socket)
        first = turn(socket)[-1]["response"]
        send(socket, previous_response_id=first["id"], **fields)
        assert error(socket)[0] == 400
        send(socket, previous_response_id=first["id"])
        last = turn(socket)[-1]

        if "temperature" in fields:
            assert last["type"] != "error"
        else:
            assert last["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"type": "session.update"}', '{"type": "response.create"}', "\U0001f4a5"]
)
def test_errors_are_events_and_the_connection_goes_on(text: str) -> None:
    """WS-07."""
    with connected() as (_, socket):
        socket.send(text)
        assert error(socket)[0] == 400
        send(socket)
        assert turn(socket)[-1]["type"] in ("response.completed", "response.incomplete")


def test_a_server_that_stops_finishes_a_turn_and_refuses_the_next() -> None:
    engine = tiny_engine()
    with connected(engine=engine) as (server, socket):
        let = hold_steps(engine)
        send(socket, ignore_eos=True)
        socket.recv(timeout=20)
        send(socket)
        server.stop()
        while server.server._draining.refusal is None:  # type: ignore[attr-defined]
            time.sleep(0.001)
        let.set()
        assert turn(socket)[-1]["type"] == "response.incomplete"
        assert error(socket) == (503, "engine_unavailable")
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=20)


async def test_a_key_that_is_taken_away_has_no_further_turn() -> None:
    app = create_app(as_catalog(served(tiny_engine())), Settings(api_keys=("a", "b")))
    app_state = {
        KEYS: app.access.keys,
        RATES: app.access.rates,
        DRAINING: app.draining,
        LARGE_BODIES: LargeBodies(),
    }
    socket = SimpleNamespace(
        app=SimpleNamespace(state=app_state),
        headers={"authorization": "Bearer a"},
        client=None,
        scope={"state": {}},
    )
    connection: Any = _Connection(socket, None)  # type: ignore[arg-type]
    connection._check(connection._call())
    app.access.use(Settings(api_keys=("b",)))
    with pytest.raises(ApiError, match="API key"):
        connection._check(connection._call())


def test_a_client_that_leaves_stops_its_turn() -> None:
    """HTTP-11."""
    with connected() as (server, socket):
        send(socket, max_output_tokens=400, ignore_eos=True)
        socket.recv(timeout=20)
        socket.close()
        deadline = time.monotonic() + 20
        while "vllm:num_requests_running{" in (text := httpx2.get(f"{server.url}/metrics").text):
            running = next(
                line for line in text.splitlines() if line.startswith("vllm:num_requests_running{")
            )
            if running.endswith(" 0.0"):
                break
            assert time.monotonic() < deadline, running
            time.sleep(0.02)


def test_a_connection_outlives_the_time_for_headers() -> None:
    """The handshake has come whole; no timer of HTTP may end the WebSocket later."""
    with connected(Settings(header_timeout=0.3)) as (_, socket):
        for _ in range(2):
            send(socket)
            assert turn(socket)[-1]["type"] in ENDS[:2]
            with pytest.raises(TimeoutError):
                socket.recv(timeout=0.5)


HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def raw_answer(sent: bytes) -> bytes:
    """Return all that the server answers until it closes the connection."""
    answer = b""
    with (
        live(lambda: served(tiny_engine()), Settings(header_timeout=0.3)) as server,
        socket_of(("127.0.0.1", server.port), timeout=10) as connection,
    ):
        connection.sendall(sent)
        while piece := connection.recv(65536):
            answer += piece
    return answer


def test_a_handshake_that_does_not_come_whole_is_closed() -> None:
    assert raw_answer(HANDSHAKE).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "more",
    [
        b"content-length: 2\r\n",
        b"content-length: 2\r\n\r\n{}",
        b"transfer-encoding: chunked\r\n",
        b"x-a: " + b"a" * 9000 + b"\r\n",
    ],
    ids=["a body that does not come", "a body", "chunks", "a long header"],
)
def test_a_handshake_that_cannot_be_read_is_refused(more: bytes) -> None:
    """Otherwise it would hold a connection for ever: no limit of time applies to WebSockets."""
    answer = raw_answer(HANDSHAKE + more + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


def test_a_message_above_the_limit_closes_the_connection() -> None:
    with connected(Settings(max_body_bytes=10_000)) as (_, socket), pytest.raises(ConnectionClosed) as closed:
        converse(socket, input="x" * 20_000)

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_the_official_client_takes_turns(tmp_path: Path) -> None:
    with live(lambda: served(tiny_engine()), Settings(store=str(tmp_path / "s.db"))) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
        with client.responses.connect() as connection:
            seen = []
            for text in ("one", "two"):
                connection.response.create(**{**BODY, "input": text})  # type: ignore[arg-type]
                for event in connection:
                    if event.type in ENDS:
                        seen.append(event.type)
                        break

    assert set(seen) <= {"response.completed", "response.incomplete"}
    assert len(seen) == 2


def test_the_official_client_reads_lanes() -> None:
    """WS-10: its types know the lane of every event."""
    with live(lambda: served(tiny_engine()), Settings()) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
        with client.responses.connect() as connection:
            for lane in ("a", "b"):
                connection.response.create(**{**BODY, "stream_id": lane})  # type: ignore[arg-type]
            ended: list[Any] = []
            for event in connection:
                assert event.stream_id in ("a", "b")
                ended += [event.stream_id] if event.type in ENDS else []
                if len(ended) == 2:
                    break

    assert sorted(ended) == ["a", "b"]
