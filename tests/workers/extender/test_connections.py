"""Connections without a listed certificate cannot displace kube-scheduler."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from hetsched.adapters.http.certificates import make_pairs
from hetsched.scheduling.extender import connections
from hetsched.scheduling.extender.connections import (
    KNOWN,
    PER_ADDRESS,
    PER_CLIENT,
    UNVERIFIED,
    VERIFIED,
    Connections,
    Phase,
)
from hetsched.scheduling.extender.tls_server import Certificates, ExtenderResponse, TlsServer
from tests.system.processes import wait_until


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    make_pairs(tmp_path / "pairs", hosts=["127.0.0.1"], client="kube-scheduler", days=1)
    return tmp_path / "pairs"


@pytest.fixture
def tls_server(pairs: Path) -> Iterator[TlsServer]:
    verbs = {"filter": lambda cluster, body: ExtenderResponse(json.dumps(cluster).encode())}
    opened = TlsServer(("127.0.0.1", 0), Certificates(pairs / "server"), {"kube-scheduler": "live"}, verbs, 4096)
    thread = threading.Thread(target=opened.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield opened
    opened.shutdown()
    opened.server_close()
    thread.join()


def connected(tls_server: TlsServer, pairs: Path) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=str(pairs / "server" / "ca.crt"))
    context.load_cert_chain(pairs / "client" / "tls.crt", pairs / "client" / "tls.key")
    return http.client.HTTPSConnection("127.0.0.1", tls_server.server_address[1], context=context, timeout=30)


def called(connection: http.client.HTTPSConnection) -> int:
    connection.request("POST", "/extender/filter", b"{}", {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def silent(tls_server: TlsServer, address: str) -> socket.socket:
    """Connect from one of the loopback addresses and send nothing."""
    return socket.create_connection(("127.0.0.1", tls_server.server_address[1]), source_address=(address, 0))


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def test_silent_connections_leave_kube_scheduler_its_places(tls_server: TlsServer, pairs: Path) -> None:
    """The attack of the security review: 140 silent connections, renewed continuously; 0 of 40 calls got a response."""
    with ExitStack() as opened:
        held = [opened.enter_context(silent(tls_server, f"127.0.{n % 2}.{n // 2 + 1}")) for n in range(140)]
        for n in range(40):
            held.append(opened.enter_context(silent(tls_server, f"127.1.0.{n + 1}")))
            with closing(connected(tls_server, pairs)) as caller:
                assert called(caller) == 200
        wait_until(lambda: sum(not is_closed(connection) for connection in held) <= UNVERIFIED, what="a bounded pool")


def test_open_connection_of_kube_scheduler_survives_a_flood(tls_server: TlsServer, pairs: Path) -> None:
    with closing(connected(tls_server, pairs)) as caller, ExitStack() as opened:
        assert called(caller) == 200
        kept = caller.sock
        for n in range(UNVERIFIED * 2):
            opened.enter_context(silent(tls_server, f"127.2.0.{n + 1}"))
        assert called(caller) == 200
        assert caller.sock is kept


def test_silent_connections_end_at_the_deadline(tls_server: TlsServer) -> None:
    tls_server.connections.unverified.seconds = 0.2
    with silent(tls_server, "127.0.0.1") as slow:
        wait_until(lambda: is_closed(slow), what="the end of a silent connection", seconds=5)


def test_one_address_has_few_unverified_places() -> None:
    pool, opened = Connections(), [socket.socketpair() for _ in range(PER_ADDRESS + 2)]
    with ExitStack() as stack:
        for pair in opened:
            stack.enter_context(pair[0])
            stack.enter_context(pair[1])
        pool.admit(opened[0][0], "10.0.0.2")
        for pair in opened[1:]:
            pool.admit(pair[0], "10.0.0.1")
        assert [is_closed(there) for _, there in opened] == [False, True, False, False, False, False]


def test_address_of_a_verified_caller_has_a_higher_limit() -> None:
    pool, opened = Connections(), [socket.socketpair() for _ in range(UNVERIFIED + 1)]
    with ExitStack() as stack:
        for pair in opened:
            stack.enter_context(pair[0])
            stack.enter_context(pair[1])
        pool.admit(opened[0][0], "10.0.0.1")
        assert pool.verify(opened[0][0], "kube-scheduler")
        for here, _ in opened[1:]:
            pool.admit(here, "10.0.0.1")
        assert not any(is_closed(there) for _, there in opened)


def test_verified_slots_are_bounded_and_released() -> None:
    pool = Connections()
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(VERIFIED + 1)]
        for number, connection in enumerate(opened[:-1]):
            pool.admit(connection, "10.0.0.1")
            assert pool.verify(connection, f"scheduler-{number % 4}")
            pool.enter(connection, Phase.CALL)
        pool.admit(opened[-1], "10.0.0.1")
        assert not pool.verify(opened[-1], "scheduler-4")
        pool.release(opened[0])
        pool.admit(opened[-1], "10.0.0.1")
        assert pool.verify(opened[-1], "scheduler-4")


def test_one_listed_client_has_half_of_the_verified_slots() -> None:
    """Regression: one listed client took all 128 slots, and no other client was served."""
    pool = Connections()
    with ExitStack() as stack:

        def is_verified(client: str) -> bool:
            opened = stack.enter_context(socket.socket())
            pool.admit(opened, "10.0.0.1")
            verified = pool.verify(opened, client)
            pool.enter(opened, Phase.CALL)
            return verified

        assert sum(is_verified("greedy") for _ in range(VERIFIED)) == PER_CLIENT
        assert is_verified("kube-scheduler")


def test_closed_connection_is_not_verified() -> None:
    pool = Connections()
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(PER_ADDRESS + 1)]
        for connection in opened:
            pool.admit(connection, "10.0.0.1")
        assert not pool.verify(opened[0], "kube-scheduler")
        assert pool.verify(opened[1], "kube-scheduler")


def test_known_address_does_not_displace_another_one() -> None:
    pool = Connections()
    with ExitStack() as stack:
        opened = [[stack.enter_context(connection) for connection in socket.socketpair()] for _ in range(KNOWN * 2)]
        for (here, _), address in zip(opened, ("10.0.0.1", "10.0.0.2"), strict=False):
            pool.admit(here, address)
            assert pool.verify(here, "kube-scheduler")
        pool.admit(opened[2][0], "10.0.0.1")
        for here, _ in opened[3:]:
            pool.admit(here, "10.0.0.2")
        assert not is_closed(opened[2][1])


def replaced(clients: Sequence[str], phases: Mapping[int, Sequence[Phase]]) -> list[int]:
    """Return which connections are closed when one connection after the other is verified and enters its phases."""
    pool = Connections()
    with ExitStack() as stack:
        opened = [[stack.enter_context(connection) for connection in socket.socketpair()] for _ in clients]
        for number, ((here, _), client) in enumerate(zip(opened, clients, strict=True)):
            pool.admit(here, "10.0.0.1")
            assert pool.verify(here, client)
            for phase in phases.get(number, ()):
                pool.enter(here, phase)
        return [number for number, (_, there) in enumerate(opened) if is_closed(there)]


def test_new_connection_replaces_the_oldest_unused_one_of_its_client() -> None:
    clients = ("b", *"a" * (PER_CLIENT + 2))
    assert replaced(clients, {1: [Phase.TRANSFER], 2: [Phase.CALL, Phase.IDLE]}) == [1, 3]


def test_oldest_idle_connection_is_replaced_if_all_had_calls() -> None:
    called = {number: [Phase.CALL, Phase.IDLE] for number in range(PER_CLIENT + 1)}
    called[0] = [Phase.CALL, Phase.TRANSFER]
    assert replaced("a" * (PER_CLIENT + 1), called) == [1]


HEAD = b"POST /extender/filter HTTP/1.1\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("begun", [HEAD, HEAD + b"Content-Length: 4000\r\n\r\n"])
def test_slowly_sent_request_ends_at_its_deadline(
    tls_server: TlsServer, pairs: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    """A byte now and then does not extend the deadline; the timeout of the socket never ended such a request."""
    monkeypatch.setattr(connections, "TRANSFER_SECONDS", 0.5)
    with closing(connected(tls_server, pairs)) as caller:
        caller.connect()
        caller.sock.sendall(begun)

        def is_ended() -> bool:
            try:
                caller.sock.sendall(b"x")
            except OSError:
                return True
            return False

        wait_until(is_ended, what="the end of a slow request", seconds=5)


def test_open_verified_connections_keep_capacity_for_calls(tls_server: TlsServer, pairs: Path) -> None:
    """0 of 20 calls were answered while 128 verified connections sent their bodies byte by byte."""
    with ExitStack() as opened:
        for _ in range(VERIFIED):
            held = opened.enter_context(closing(connected(tls_server, pairs)))
            held.connect()
            held.sock.sendall(HEAD)
        for _ in range(3):
            with closing(connected(tls_server, pairs)) as caller:
                assert called(caller) == 200
