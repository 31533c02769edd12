"""The extender's probe port: bounded connections and threads, and one query at a time."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from hetsched.scheduling.extender import probes
from hetsched.scheduling.extender.probes import MOST_CONNECTIONS, PER_ADDRESS, Probes, ProbeServer
from tests.system.processes import wait_until
from tests.workers.extender.test_connections import TlsServer, called, connected, is_closed, pairs, tls_server

__all__ = ["pairs", "tls_server"]  # fixtures


@pytest.fixture
def server() -> Iterator[ProbeServer]:
    opened = ProbeServer(("127.0.0.1", 0))
    thread = threading.Thread(target=opened.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield opened
    opened.shutdown()
    opened.server_close()
    thread.join()


def connect(server: ProbeServer, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), source_address=(address, 0))


def status_of(server: ProbeServer, path: str) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)) as caller:
        caller.request("GET", path)
        return caller.getresponse().status


def test_flood_of_probes_leaves_both_ports_their_capacity(
    server: ProbeServer, tls_server: TlsServer, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each of 300 silent connections to the probe port kept a thread of the process."""
    monkeypatch.setattr(Probes, "timeout", 600)
    threads = threading.active_count()
    with ExitStack() as opened, closing(connected(tls_server, pairs)) as caller:
        connections = [opened.enter_context(connect(server, f"127.3.{n % 100}.1")) for n in range(300)]
        assert called(caller) == 200
        assert status_of(server, "/healthz") == 200
        wait_until(
            lambda: sum(not is_closed(connection) for connection in connections) <= MOST_CONNECTIONS,
            what="a bounded pool",
        )
        wait_until(lambda: threading.active_count() <= threads + MOST_CONNECTIONS + 1, what="bounded threads")


def test_one_address_has_few_probe_connections(server: ProbeServer) -> None:
    with ExitStack() as opened:
        other = opened.enter_context(connect(server, "127.4.0.2"))
        connections = [opened.enter_context(connect(server, "127.4.0.1")) for _ in range(PER_ADDRESS + 2)]
        wait_until(lambda: is_closed(connections[1]), what="the end of the oldest connections")
        assert [is_closed(connection) for connection in [other, *connections]] == [
            False,
            True,
            True,
            False,
            False,
            False,
            False,
        ]


def test_slow_head_ends_at_the_deadline(server: ProbeServer) -> None:
    """Regression: each byte started the read timeout again, so a slow head had no end."""
    server.connections.seconds = 0.5
    with connect(server, "127.0.0.1") as slow:

        def is_over() -> bool:
            with suppress(OSError):
                slow.send(b"G")
            return is_closed(slow)

        wait_until(is_over, what="the end of a slow head", seconds=8)


def test_readiness_is_queried_once_a_second_by_one_thread(server: ProbeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[bool] = []
    free = threading.Event()

    def answers() -> bool:
        queries.append(True)
        return free.wait(30)

    monkeypatch.setattr(probes, "_database_answers", answers)
    callers = [threading.Thread(target=status_of, args=(server, "/readyz")) for _ in range(PER_ADDRESS)]
    for thread in callers:
        thread.start()
    wait_until(lambda: len(queries) == 1, what="the first query")
    free.set()
    for thread in callers:
        thread.join()
    assert len(queries) == 1


def test_connection_beyond_the_thread_limit_is_closed(server: ProbeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed connections whose threads still wait for the database are bounded too."""
    free = threading.Event()
    monkeypatch.setattr(probes, "_database_answers", lambda: free.wait(30))
    threads = threading.active_count()
    try:
        with ExitStack() as opened:
            for number in range(4 * MOST_CONNECTIONS):
                connection = opened.enter_context(connect(server, f"127.5.{number}.1"))
                with suppress(OSError):
                    connection.sendall(b"GET /readyz HTTP/1.1\r\n\r\n")
            wait_until(lambda: is_closed(connection), what="the end of a connection without a thread")
            assert threading.active_count() <= threads + 2 * MOST_CONNECTIONS
    finally:
        free.set()
    wait_until(lambda: threading.active_count() <= threads, what="the end of the threads")
    assert status_of(server, "/healthz") == 200
