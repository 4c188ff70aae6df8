"""Addresses of PostgreSQL as libpq documents them: each parameter is honoured, or refused by name."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stores.postgres import PostgresServer
from support.stores.store_records import record

from plumbline.server.store.interface import StoreUnavailableError
from plumbline.server.store.open import BadStoreUrlError, open_store
from plumbline.server.store.sql.postgres_address import BadAddressError, PostgresAddress

PASSWORD = "hidden"
HONOURED = {
    "application_name": "chat",
    "channel_binding": "prefer",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    "fallback_application_name": "chat",
    "gssdelegation": "0",
    "gssencmode": "prefer",
    "keepalives": "1",
    "keepalives_count": "3",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "load_balance_hosts": "disable",
    "max_protocol_version": "latest",
    "min_protocol_version": "3.0",
    "options": "-c statement_timeout=60s",
    "port": "5432",
    "prepared_statement_cache_size": "0",
    "replication": "false",
    "requiressl": "0",
    "search_path": "public",
    "ssl": "prefer",
    "ssl_max_protocol_version": "TLSv1.3",
    "ssl_min_protocol_version": "TLSv1.2",
    "sslcertmode": "allow",
    "sslcompression": "0",
    "sslmode": "prefer",
    "sslnegotiation": "postgres",
    "sslsni": "1",
    "target_session_attrs": "read-write",
    "tcp_user_timeout": "10000",
}
REFUSED = {
    "channel_binding": "require",
    "client_encoding": "latin1",
    "connect_timeout": "soon",
    "gssencmode": "require",
    "keepalives": "0",
    "load_balance_hosts": "random",
    "min_protocol_version": "3.2",
    "replication": "database",
    "require_auth": "scram-sha-256",
    "requirepeer": "postgres",
    "sslcertmode": "require",
    "sslcrldir": "crl",
    "sslmode": "sometimes",
    "sslsni": "0",
    "tcp_user_timeout": "x",
}


async def test_each_parameter_is_honoured_or_refused_by_name(postgres_url: str) -> None:
    """The refusal is one line, before anything is stored, and never has the password."""
    for name, value in HONOURED.items():
        store = open_store(f"{postgres_url}&{name}={quote(value)}")
        await store.start()
        await store.save_response(record(f"r-{name}"))
        assert PASSWORD not in store.description
        await store.stop()
    for name, value in [*REFUSED.items(), ("pgbouncer", "true")]:
        with pytest.raises((BadStoreUrlError, StoreUnavailableError)) as refused:
            await open_store(f"{postgres_url}&{name}={quote(value)}").start()
        message = str(refused.value)
        assert name in message, message
        assert PASSWORD not in message
        assert len(message.splitlines()) == 1


async def test_what_an_address_says_holds_for_the_connection(postgres_url: str) -> None:
    connection = await PostgresAddress(f"{postgres_url}&options=-c%20statement_timeout%3D7s").connect()
    assert await connection.fetchval("SHOW statement_timeout") == "7s"
    assert await connection.fetchval("SHOW application_name") == "plumbline"
    await connection.close()
    named = re.sub("^postgresql:", "postgres:", postgres_url)
    connection = await PostgresAddress(
        f"{named}&application_name=a%20b&fallback_application_name=c"
    ).connect()
    assert await connection.fetchval("SHOW application_name") == "a b"
    await connection.close()


@given(
    password=st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1, max_size=12),
    hosts=st.lists(st.sampled_from(["db", "10.0.0.1:5433", "[::1]", "[::1]:1"]), min_size=1, max_size=3),
    scheme=st.sampled_from(["postgres", "postgresql", "postgresql+asyncpg"]),
)
def test_any_password_and_hosts_reach_the_driver(password: str, hosts: list[str], scheme: str) -> None:
    address = PostgresAddress(f"{scheme}://us%2Fer:{quote(password, safe='')}@{','.join(hosts)}/na%20me")
    found, parameters = as_read(address)
    assert (parameters.user, parameters.password, parameters.database) == ("us/er", password, "na me")
    assert [host for host, _ in found] == [
        re.sub(r":\d+$|[\[\]]", "", re.sub(r":\d+$", "", each)) for each in hosts
    ]
    assert password not in address.shown.replace("us%2Fer", "").replace("na%20me", "") or len(password) < 4


def as_read(address: PostgresAddress) -> tuple[Any, Any]:
    """The hosts with their ports, and the other parameters, as asyncpg reads them."""
    from asyncpg import connect_utils

    kinds: dict[str, Any] = dict.fromkeys(
        (
            "host",
            "port",
            "user",
            "password",
            "passfile",
            "database",
            "ssl",
            "service",
            "servicefile",
            "direct_tls",
        ),
    )
    others: dict[str, Any] = dict.fromkeys(
        ("server_settings", "target_session_attrs", "krbsrvname", "gsslib")
    )
    found, parameters = connect_utils._parse_connect_dsn_and_args(dsn=address._dsn, **kinds, **others)
    return found, parameters


@given(given=st.sets(st.sampled_from(["user", "password", "host", "port", "dbname"])), ports=st.booleans())
def test_a_parameter_wins_over_the_same_part_of_the_address(given: set[str], ports: bool) -> None:
    """As in libpq, where the parameters are read last."""
    other = {"user": "o/u", "password": "o@p", "host": "second", "port": "7", "dbname": "o n"}
    query = "&".join(f"{name}={quote(other[name], safe='')}" for name in sorted(given))
    port = ":1" if ports else ""
    found, read = as_read(PostgresAddress(f"postgresql://u:p@first{port}/db" + f"?{query}" * bool(query)))
    assert read.user == (other["user"] if "user" in given else "u")
    assert read.password == (other["password"] if "password" in given else "p")
    assert read.database == (other["dbname"] if "dbname" in given else "db")
    right = 7 if "port" in given else 1 if ports else 5432
    assert [tuple(each) for each in found] == [("second" if "host" in given else "first", right)]


def test_a_socket_in_the_abstract_namespace_is_refused_by_name() -> None:
    with pytest.raises(BadAddressError, match="host"):
        PostgresAddress("postgresql://u:hidden@/db?host=@socket")


@pytest.mark.parametrize(
    "url", ["postgres://u:hidden@h:port/db", "postgres://u:hidden/x@h/db", "postgres://u:hidden@[h/db"]
)
def test_an_address_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(BadAddressError) as refused:
        PostgresAddress(url)
    assert PASSWORD not in str(refused.value)


async def test_a_numeric_address_replaces_the_name(postgres: PostgresServer) -> None:
    address = PostgresAddress("postgres://u@name:1/db?hostaddr=127.0.0.1")
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        await address.connect()
    assert address.shown == "postgresql://u@127.0.0.1:1/db"
    with pytest.raises(BadAddressError, match="hostaddr"):
        PostgresAddress("postgres://u@name:1/db?hostaddr=127.0.0.1&sslmode=verify-full")
