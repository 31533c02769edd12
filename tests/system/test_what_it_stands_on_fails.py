"""Its message store and its database fail in every way they have, while clients submit: nothing is lost or doubled.

HETSCHED_TEST_FAULT_SECONDS sets how long each fault lasts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import httpx
import psycopg
import pytest
import redis

from tests.system.storm import RECOVERY_SECONDS, Clients, Storm, storm

pytestmark = [pytest.mark.chaos, pytest.mark.needs("postgres", "redis-server"), pytest.mark.timeout(1800)]
FAULT_SECONDS = float(os.environ.get("HETSCHED_TEST_FAULT_SECONDS", "2"))
PACE = {"HETSCHED_LEASE_SECONDS": "2", "HETSCHED_SWEEP_SECONDS": "1"}
LONGEST_REQUEST_SECONDS = 5.0


@pytest.fixture(scope="module")
def ours() -> Iterator[Storm]:
    with storm(**PACE) as made:
        with made.clients("warm-up") as clients:
            clients.wait_for_more(10)
        made.all_decided(clients)
        yield made


def _recovered(ours: Storm, clients: Clients, figures: dict[str, object], what: str) -> None:
    took = ours.all_decided(clients)
    ended = f"{ours.restarts} processes ended and were started anew; " if ours.restarts else ""
    figures[what] = f"{clients}; {ended}all decided {took:.1f} s after the last was accepted; 0 lost, 0 doubled"
    ours.restarts = 0


def test_a_store_that_goes_away_and_comes_back_empty(ours: Storm, figures: dict[str, object]) -> None:
    with ours.clients("emptied") as clients:
        clients.wait_for_more(10)
        ours.store.cut()
        clients.wait_for_more(10)  # submissions are taken without it
        time.sleep(FAULT_SECONDS)
        with redis.Redis(port=ours.store_port) as store:
            store.flushall()
        ours.store.mend()
        clients.wait_for_more(10)
    _recovered(ours, clients, figures, "message store away, then empty")
    assert set(clients.answers) == {202}, str(clients)


def test_a_store_that_does_not_answer(ours: Storm, figures: dict[str, object]) -> None:
    with ours.clients("silent") as clients:
        clients.wait_for_more(10)
        ours.store.silence()
        clients.wait_for_more(10)
        time.sleep(FAULT_SECONDS)
        ours.store.mend()
        clients.wait_for_more(10)
    _recovered(ours, clients, figures, "message store silent")
    assert set(clients.answers) == {202}, str(clients)
    assert clients.longest_seconds < LONGEST_REQUEST_SECONDS, str(clients)


def test_a_store_that_is_full(ours: Storm, figures: dict[str, object]) -> None:
    with ours.clients("full") as clients, redis.Redis(port=ours.store_port) as store:
        clients.wait_for_more(10)
        store.config_set("maxmemory", "1")
        clients.wait_for_more(10)
        time.sleep(FAULT_SECONDS)
        store.config_set("maxmemory", "0")
        clients.wait_for_more(10)
    _recovered(ours, clients, figures, "message store full")
    assert set(clients.answers) == {202}, str(clients)


def _database(ours: Storm) -> psycopg.Connection[tuple[object, ...]]:
    where = {"host": "127.0.0.1", "port": ours.database_port, "user": "hetsched", "password": "hetsched"}
    return psycopg.connect(**where, dbname="hetsched", autocommit=True)  # type: ignore[arg-type]


_END_ALL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


def test_a_database_that_restarts(ours: Storm, figures: dict[str, object]) -> None:
    with ours.clients("restarted") as clients:
        clients.wait_for_more(10)
        ours.database.cut()
        with _database(ours) as connection:
            connection.execute(_END_ALL)
        time.sleep(FAULT_SECONDS)
        ours.database.mend()
        clients.wait_for_more(10)
    _recovered(ours, clients, figures, "database away")
    assert set(clients.answers) <= {202, 503}, str(clients)


def test_connections_that_are_ended_again_and_again(ours: Storm, figures: dict[str, object]) -> None:
    with ours.clients("ended") as clients, _database(ours) as connection:
        clients.wait_for_more(10)
        for _ in range(5):
            connection.execute(_END_ALL)
            clients.wait_for_more(3)
    _recovered(ours, clients, figures, "connections to the database ended")
    assert set(clients.answers) <= {202, 503}, str(clients)


def test_a_database_that_takes_no_writes(ours: Storm, figures: dict[str, object]) -> None:
    ready = f"http://127.0.0.1:{ours.ports[0]}/readyz"
    with ours.clients("read-only") as clients, _database(ours) as connection:
        clients.wait_for_more(10)
        connection.execute("ALTER DATABASE hetsched SET default_transaction_read_only = on")
        connection.execute(_END_ALL)
        time.sleep(FAULT_SECONDS)
        accepted = len(clients.accepted)
        assert httpx.get(ready).status_code == 503
        time.sleep(FAULT_SECONDS)
        assert len(clients.accepted) == accepted
        connection.execute("SET transaction_read_only = off")
        connection.execute("ALTER DATABASE hetsched RESET default_transaction_read_only")
        connection.execute(_END_ALL)
        clients.wait_for_more(10, seconds=RECOVERY_SECONDS)
    _recovered(ours, clients, figures, "database without writes")
    assert httpx.get(ready).status_code == 200
    assert set(clients.answers) <= {202, 503}, str(clients)
