"""Calls that one thread has in flight on several connections, against a server on loopback with prepared responses."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hetsched.adapters.kubernetes import parallel_calls
from hetsched.adapters.kubernetes.api import NOT_PROCESSED, Api, ApiFailure
from hetsched.adapters.kubernetes.parallel_calls import DEPTH, ParallelCalls
from tests.prepared_server import (
    CHUNKED,
    CLOSE,
    CONFLICT,
    END,
    OK,
    SILENT,
    UNTIL_CLOSE,
    PreparedServer,
    prepared_server,
)


@pytest.fixture(params=["plain", "tls"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PreparedServer]:
    with prepared_server(tmp_path if request.param == "tls" else None) as listening:
        yield listening


@pytest.fixture
def api(server: PreparedServer) -> Api:
    return server.client()


@pytest.fixture
def calls(api: Api) -> Iterator[ParallelCalls]:
    made = ParallelCalls(api)
    yield made
    made.close()


class Results:
    """The failure of each finished call, None for a success, in the order in which the calls ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, ApiFailure | None]] = []

    def of(self, path: str) -> Callable[[ApiFailure | None], None]:
        return lambda failure: self.ended.append((path, failure))

    def reasons(self) -> list[str]:
        return [failure.reason if failure else "" for _, failure in self.ended]


def advance_until_idle(calls: ParallelCalls) -> None:
    until = time.monotonic() + 20
    while calls.in_flight:
        assert time.monotonic() < until
        calls.advance(0.05)


def start(calls: ParallelCalls, results: Results, *paths: str) -> list[bool]:
    return [calls.start(path, b"{}", results.of(path)) for path in paths]


def test_calls_use_a_connection_that_another_call_opened(
    server: PreparedServer, api: Api, calls: ParallelCalls
) -> None:
    results = Results()
    assert start(calls, results, "/early") == [False]
    api.send("POST", "/first", b"{}")
    assert start(calls, results, "/a", "/b") == [True, False]  # one connection, which is not idle for the second call
    advance_until_idle(calls)
    assert (server.paths, results.ended) == (["/first", "/a"], [("/a", None)])
    assert server.connections == 1


def test_full_connections_carry_several_calls_in_order(
    server: PreparedServer, api: Api, calls: ParallelCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_calls, "CONNECTIONS", 1)
    api.send("POST", "/first", b"{}")
    server.released.clear()
    paths = [f"/p{number}" for number in range(DEPTH)]
    server.responses = {"/p1": CONFLICT, "/p2": CHUNKED}
    results = Results()
    assert calls.has_room
    assert start(calls, results, *paths) == [True] * DEPTH
    assert not calls.has_room
    calls.advance()
    assert results.ended == []
    server.released.set()
    advance_until_idle(calls)
    assert [path for path, _ in results.ended] == paths
    assert results.reasons() == ["", "Conflict", *[""] * (DEPTH - 2)]
    assert calls.has_room


def open_connection(api: Api, calls: ParallelCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_calls, "CONNECTIONS", 1)
    api.send("POST", "/first", b"{}")


def send_together(server: PreparedServer, calls: ParallelCalls, *paths: str) -> Results:
    """Send all calls before the server responds to the first one, and return their results."""
    server.released.clear()
    results = Results()
    start(calls, results, *paths)
    calls.advance()
    server.released.set()
    advance_until_idle(calls)
    return results


def test_calls_after_an_announced_close_are_not_processed(
    server: PreparedServer, api: Api, calls: ParallelCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_connection(api, calls, monkeypatch)
    server.responses = {"/a": CLOSE}
    results = send_together(server, calls, "/a", "/b", "/c")
    assert results.reasons() == ["", NOT_PROCESSED, NOT_PROCESSED]


def test_calls_on_a_broken_connection_have_unknown_outcomes(
    server: PreparedServer, api: Api, calls: ParallelCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_connection(api, calls, monkeypatch)
    server.responses = {"/b": END}
    results = send_together(server, calls, "/a", "/b", "/c")
    assert [failure.status if failure else 201 for _, failure in results.ended] == [201, 0, 0]
    assert results.reasons()[1:] == ["Unreachable", "Unreachable"]


@pytest.mark.parametrize("answer", [b"SSH-2.0\r\n\r\n", OK + OK, b"HTTP/1.1 201 Created\r\nContent-Length: x\r\n\r\n"])
def test_invalid_responses_close_the_connection(
    server: PreparedServer, api: Api, calls: ParallelCalls, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    open_connection(api, calls, monkeypatch)
    server.responses = {"/a": answer}
    results = Results()
    start(calls, results, "/a")
    advance_until_idle(calls)
    assert results.reasons() == (["Unreachable"] if answer != OK + OK else [""])
    assert start(calls, results, "/b") == [False]


def test_silent_server_ends_the_calls(
    server: PreparedServer, api: Api, calls: ParallelCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_connection(api, calls, monkeypatch)
    monkeypatch.setattr(parallel_calls, "READ_SECONDS", 0.0)
    server.responses = {"/a": SILENT}
    results = Results()
    start(calls, results, "/a")
    advance_until_idle(calls)
    assert results.reasons() == ["Unreachable"]


def test_idle_connection_that_the_server_closed_is_dropped(
    api: Api, calls: ParallelCalls, server: PreparedServer
) -> None:
    api.send("POST", "/first", b"{}")
    results = Results()
    start(calls, results, "/a")
    advance_until_idle(calls)
    next(iter(calls._pipelines)).connection.socket.shutdown(
        socket.SHUT_RD
    )  # the next read returns the end of the stream
    calls.advance(1.0)
    assert start(calls, results, "/b") == [False]


def test_connections_of_a_replaced_certificate_are_dropped(
    api: Api, calls: ParallelCalls, server: PreparedServer
) -> None:
    api.send("POST", "/first", b"{}")
    results = Results()
    start(calls, results, "/a")
    advance_until_idle(calls)
    api._use_certificate(None)
    assert start(calls, results, "/b") == [False]
    api.send("POST", "/second", b"{}")
    assert start(calls, results, "/b") == [True]
    advance_until_idle(calls)
    assert server.connections == 2


def test_write_in_shadow_mode_is_not_started(server: PreparedServer) -> None:
    api = server.client(reads=True)
    api.get("/first")
    with pytest.raises(ApiFailure, match="InShadow"):
        ParallelCalls(api).start("/a", b"{}", lambda failure: None)
    assert server.paths == ["/first"]


def test_calls_are_counted_by_their_status(server: PreparedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[str, int]] = []
    api = server.client(count_call=lambda verb, status: counted.append((verb, status)))
    calls = ParallelCalls(api)
    open_connection(api, calls, monkeypatch)
    server.responses = {"/a": CONFLICT}
    start(calls, Results(), "/a")
    advance_until_idle(calls)
    calls.close()
    assert counted == [("post", 201), ("post", 409)]


def test_call_that_would_wait_for_a_credential_is_not_started(server: PreparedServer, api: Api) -> None:
    class Hook:
        """Hook of a configuration whose program takes a long time."""

        waits = True

        def __call__(self, configuration: object) -> None:
            assert not self.waits

        def may_block(self) -> bool:
            return self.waits

    calls, results = ParallelCalls(api), Results()
    api.send("POST", "/first", b"{}")
    api._configuration.refresh_api_key_hook = hook = Hook()  # type: ignore[assignment]
    assert start(calls, results, "/a") == [False]
    hook.waits = False
    assert start(calls, results, "/a") == [True]
    advance_until_idle(calls)
    calls.close()


def test_endless_response_ends_the_connection(
    server: PreparedServer, api: Api, calls: ParallelCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_connection(api, calls, monkeypatch)
    monkeypatch.setattr(parallel_calls, "LONGEST_RESPONSE", 1 << 16)
    server.responses = {"/a": b"HTTP/1.1 201 Created\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 999999}
    results = Results()
    start(calls, results, "/a")
    advance_until_idle(calls)
    assert [failure and failure.message for _, failure in results.ended] == ["the response is larger than 65536 bytes"]


def test_unannounced_close_leaves_the_outcomes_unknown(
    server: PreparedServer, api: Api, calls: ParallelCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_connection(api, calls, monkeypatch)
    server.responses = {"/a": b"HTTP/1.1 204 No Content\r\n\r\n", "/b": UNTIL_CLOSE}
    results = send_together(server, calls, "/a", "/b", "/c")
    assert results.reasons() == ["", "", "Unreachable"]


def test_large_requests_are_sent_in_parts(
    server: PreparedServer, api: Api, calls: ParallelCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_connection(api, calls, monkeypatch)
    server.released.clear()
    body = b'"' + b"x" * 1_000_000 + b'"'  # 8 MB are more than the buffers of both sockets
    results = Results()
    paths = [f"/p{number}" for number in range(DEPTH)]
    for path in paths:
        assert calls.start(path, body, results.of(path))
        calls.advance()
    assert any(one.unsent for one in calls._pipelines)
    server.released.set()
    advance_until_idle(calls)
    assert (results.reasons(), server.paths[1:], server.connections) == ([""] * DEPTH, paths, 1)


def test_patch_is_sent_with_its_content_type(server: PreparedServer, api: Api, calls: ParallelCalls) -> None:
    results = Results()
    calls.open()
    assert calls.start("/a", b"{}", results.of("/a"), method="PATCH", content="application/merge-patch+json")
    advance_until_idle(calls)
    assert results.reasons() == [""]
    assert server.received == [("PATCH", "/a", "application/merge-patch+json", b"{}")]


def test_no_connection_is_opened_above_the_limit(server: PreparedServer, api: Api) -> None:
    calls, results = ParallelCalls(api, 1), Results()
    assert start(calls, results, "/a") == [False]
    calls.open()
    calls.open()
    assert start(calls, results, "/a", "/b") == [True, True]
    advance_until_idle(calls)
    calls.close()
    assert server.connections == 1


def test_released_connection_carries_a_later_call(server: PreparedServer, api: Api) -> None:
    calls, results = ParallelCalls(api), Results()
    calls.open()
    start(calls, results, "/a")
    advance_until_idle(calls)
    calls.release()
    api.send("POST", "/b", b"{}")
    assert (server.paths, server.connections) == (["/a", "/b"], 1)


def test_release_closes_connections_with_calls(server: PreparedServer, api: Api) -> None:
    calls, results = ParallelCalls(api), Results()
    calls.open()
    server.released.clear()
    start(calls, results, "/a")
    calls.advance()
    calls.release()
    server.released.set()
    assert (calls.in_flight, results.ended, api.wire.take_idle()) == (0, [], None)


def test_response_that_arrived_before_a_pause_is_read(
    server: PreparedServer, api: Api, calls: ParallelCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results()
    calls.open()
    start(calls, results, "/a")
    calls.advance()
    until = time.monotonic() + 20
    while not server.paths and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.2)  # the server sends its response after it has recorded the request
    monkeypatch.setattr(parallel_calls, "READ_SECONDS", 0.0)
    calls.advance(1.0)
    assert results.reasons() == [""]


def test_failed_connection_is_reported(server: PreparedServer, api: Api, calls: ParallelCalls) -> None:
    server.refuse_connections()
    with pytest.raises(ApiFailure, match="no connection"):
        calls.open()
