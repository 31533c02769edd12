"""The guard of outbound calls: hostile addresses are never called, and hostile responses are rejected.

The resolver is faked, and so is the connection where an address is rejected. Real here: servers on loopback that
respond incorrectly.
"""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from hetsched.adapters.http import outbound
from hetsched.adapters.http.outbound import AllowedHosts, OutboundError, call, is_place, reach

from .hostile_addresses import NAMES, SPELLINGS

NAMED = AllowedHosts(NAMES, NAMES)
PUBLIC = AllowedHosts(frozenset({"*"}))
CANARY = b"canary-of-the-inside"

RESOLVED = [
    # an allowed name that resolves to an internal address; or one of all public addresses
    ("metrics.example:9090", NAMED, "169.254.169.254"),
    ("metrics.example:9090", NAMED, "127.0.0.1"),
    ("metrics.example:9090", NAMED, "0.0.0.0"),
    ("metrics.example:9090", NAMED, "0.1.2.3"),
    ("metrics.example:9090", NAMED, "255.255.255.255"),
    ("metrics.example:9090", NAMED, "224.0.0.1"),
    ("metrics.example:9090", NAMED, "::1"),
    ("metrics.example:9090", NAMED, "::"),
    ("metrics.example:9090", NAMED, "::ffff:169.254.169.254"),
    ("metrics.example:9090", NAMED, "::ffff:127.0.0.1"),
    ("metrics.example:9090", NAMED, "::7f00:1"),
    ("metrics.example:9090", NAMED, "2002:7f00:1::"),
    ("metrics.example:9090", NAMED, "64:ff9b::7f00:1"),
    ("metrics.example:9090", NAMED, "64:ff9b:1::a9fe:a9fe"),
    ("metrics.example:9090", NAMED, "fe80::1%eth0"),
    ("metrics.example:9090", NAMED, "fec0::1"),
    ("metrics.example:9090", NAMED, "ff02::1"),
    ("metrics.example:9090", NAMED, "fd00:ec2::254"),
    ("metrics.example:9090", NAMED, "100.100.100.200"),
    ("metrics.example:9090", NAMED, "168.63.129.16"),
    ("registry.test", PUBLIC, "10.0.0.1"),
    ("registry.test", PUBLIC, "192.168.1.1"),
    ("registry.test", PUBLIC, "172.16.0.1"),
    ("registry.test", PUBLIC, "100.64.0.1"),
    ("registry.test", PUBLIC, "fd00::1"),
    ("registry.test", PUBLIC, "::ffff:10.0.0.1"),
    ("localhost", PUBLIC, "127.0.0.1"),
    ("registry.test:9090", PUBLIC, "93.184.216.34"),
]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the addresses that were connected to; none of them responds."""
    seen: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], **_: Any) -> None:
        seen.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    return seen


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Make names resolve to these addresses, one response after the other; return the queried names."""
    asked: list[str] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        found = answers[min(len(asked), len(answers) - 1)]
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


def refusal(url: str, allowed: AllowedHosts, **more: Any) -> str:
    with pytest.raises(OutboundError) as refused:
        call(url, allowed, **more)
    assert CANARY.decode() not in refused.value.message
    assert "secret" not in refused.value.message
    return refused.value.code


def test_corpus_has_the_required_size() -> None:
    assert len(set(SPELLINGS)) + len(set(RESOLVED)) + len(ANSWERS) >= 40


@pytest.mark.parametrize("url", SPELLINGS)
def test_odd_addresses_are_not_called(url: str, called: list[Any]) -> None:
    assert refusal(url, NAMED) in ("AddressRefused", "HostNotAllowed")
    assert called == []


@pytest.mark.parametrize("url", SPELLINGS)
def test_special_addresses_are_not_called_if_all_public_ones_are_allowed(url: str, called: list[Any]) -> None:
    assert refusal(url.replace("http:", "https:"), PUBLIC) in ("AddressRefused", "HostUnreachable")
    assert called == []


@pytest.mark.parametrize(("host", "allowed", "address"), RESOLVED)
def test_names_that_lead_inside_are_not_called(
    monkeypatch: pytest.MonkeyPatch, host: str, allowed: AllowedHosts, address: str, called: list[Any]
) -> None:
    resolving(monkeypatch, [address])
    assert refusal(f"https://{host}/", allowed) == "AddressRefused"
    assert called == []


def test_one_internal_address_among_public_ones_is_rejected(monkeypatch: pytest.MonkeyPatch, called: list[Any]) -> None:
    resolving(monkeypatch, ["93.184.216.34", "127.0.0.1"])
    assert refusal("http://metrics.example:9090/", NAMED) == "AddressRefused"
    assert called == []


def test_host_name_is_resolved_once_per_call(monkeypatch: pytest.MonkeyPatch, called: list[Any]) -> None:
    asked = resolving(monkeypatch, ["93.184.216.34"], ["127.0.0.1"])
    assert refusal("http://metrics.example:9090/", NAMED) == "HostUnreachable"
    assert (asked, called) == (["metrics.example"], [("93.184.216.34", 9090)])


@pytest.mark.parametrize("address", [address for _, allowed, address in RESOLVED if allowed is NAMED])
def test_disallowed_address_of_an_api_server_is_not_called(
    monkeypatch: pytest.MonkeyPatch, address: str, called: list[Any]
) -> None:
    resolving(monkeypatch, [address])
    with pytest.raises(OutboundError) as refused:
        reach("api.example", 6443, 5.0)
    assert (refused.value.code, called) == ("AddressRefused", [])


@pytest.mark.parametrize(("name", "address"), [("api.example", "10.0.0.1"), ("127.0.0.1", "127.0.0.1")])
def test_api_server_may_be_private_or_named_on_loopback(
    monkeypatch: pytest.MonkeyPatch, name: str, address: str, called: list[Any]
) -> None:
    resolving(monkeypatch, [address])
    with pytest.raises(OutboundError) as refused:
        reach(name, 6443, 5.0)
    assert (refused.value.code, called) == ("HostUnreachable", [(address, 6443)])


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://metrics.example:9090/", "10.1.2.3"),
        ("http://metrics.example:9090/", "100.64.0.1"),
        ("http://metrics.example:9090/", "fd00::1"),
        ("http://10.0.0.5:9090/", "10.0.0.5"),
        ("http://[fd00::5]:9090/", "fd00::5"),
        ("http://localhost:9090/", "127.0.0.1"),
    ],
)
def test_only_listed_internal_hosts_are_called(
    monkeypatch: pytest.MonkeyPatch, url: str, address: str, called: list[Any]
) -> None:
    resolving(monkeypatch, [address])
    assert refusal(url, NAMED) == "HostUnreachable"
    assert called == [(address, 9090)]


def test_no_call_is_made_without_allowed_hosts(called: list[Any]) -> None:
    assert refusal("https://93.184.216.34/", AllowedHosts()) == "HostNotAllowed"
    assert called == []


def test_host_allowed_for_tls_is_not_called_over_http(monkeypatch: pytest.MonkeyPatch, called: list[Any]) -> None:
    resolving(monkeypatch, ["93.184.216.34"])
    assert refusal("http://metrics.example/", AllowedHosts(frozenset({"metrics.example"}))) == "AddressRefused"
    assert called == []


def test_unresponsive_resolver_times_out(monkeypatch: pytest.MonkeyPatch, called: list[Any]) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(30) and [])
    assert refusal("http://metrics.example:9090/", NAMED, seconds=0.2) == "HostUnreachable"
    over.set()
    assert called == []


def test_proxy_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with answering(plain(b"fine")) as (url, allowed):
        assert call(url, allowed).body == b"fine"


# -- answers -----------------------------------------------------------------------------------------------------------


def plain(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def _trickle(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(1000):
        connection.sendall(b"x")
        time.sleep(0.02)


def _trickling_head(connection: socket.socket) -> None:
    for number in range(90):
        connection.sendall(f"X-{number}: 1\r\n".encode() if number else b"HTTP/1.1 200 OK\r\n")
        time.sleep(0.02)


def _endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


def _endless_chunks(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")


def _endless_line(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        connection.sendall(b"x" * 65536)


def _silent(connection: socket.socket) -> None:
    connection.recv(1)


Script = bytes | Callable[[socket.socket], None]
BOMB = gzip.compress(b"\0" * (1 << 22))
ANSWERS: dict[str, tuple[Script, str]] = {
    "silence": (_silent, "HostSlow"),
    "a body that trickles": (_trickle, "HostSlow"),
    "a head that trickles": (_trickling_head, "HostSlow"),
    "a body without end": (_endless, "AnswerTooLarge"),
    "chunks without end": (_endless_chunks, "AnswerTooLarge"),
    "a header without end": (_endless_line, "HostUnreachable"),
    "too many headers": (plain(b"", *(f"X-{number}: 1" for number in range(200))), "HostUnreachable"),
    "a body too large": (plain(CANARY * 200), "AnswerTooLarge"),
    "a length that is a lie": (plain(CANARY, length=5000), "HostUnreachable"),
    "a compressed body": (plain(BOMB, "Content-Encoding: gzip"), "AnswerUnreadable"),
    "another compressed body": (plain(b"x", "Content-Encoding: br"), "AnswerUnreadable"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", "HostUnreachable"),
    "nothing": (b"", "HostUnreachable"),
    "a chunk of no size": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "HostUnreachable"),
}


@contextmanager
def answering(script: Script) -> Iterator[tuple[str, AllowedHosts]]:
    """Serve one response to all clients on loopback; the address is allowed."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(2)
                    connection.recv(65536)
                    if isinstance(script, bytes):
                        connection.sendall(script)
                    else:
                        script(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        host = f"127.0.0.1:{server.getsockname()[1]}"
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"http://{host}/api", AllowedHosts(plain=frozenset({host}))
        over.set()
        serving.join()


@pytest.mark.parametrize("name", ANSWERS)
def test_invalid_responses_are_rejected(name: str) -> None:
    script, code = ANSWERS[name]
    with answering(script) as (url, allowed):
        assert refusal(url, allowed, most=2000, seconds=0.3) == code


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent", "500 Oops", "404 No"])
def test_redirects_are_not_followed_and_failures_not_read(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(plain(CANARY, "Location: http://169.254.169.254/", status=status)) as (url, allowed):
        answer = call(url, allowed)
    assert (answer.status, answer.body) == (int(status[:3]), b"")


def test_valid_response_is_accepted() -> None:
    with answering(plain(b'{"up": 1}', "Content-Type: application/json")) as (url, allowed):
        answer = call(url, allowed, method="POST", body=b"{}")
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, "application/json", b'{"up": 1}')


def test_request_has_only_the_host_header(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[bytes] = []
    resolving(monkeypatch, ["10.9.9.9"])

    def connect(address: tuple[str, int], **_: Any) -> socket.socket:
        assert address == ("10.9.9.9", 9090)
        ours, theirs = socket.socketpair()

        def answer() -> None:
            with theirs:
                received.append(theirs.recv(65536))
                theirs.sendall(plain(b"fine"))

        threading.Thread(target=answer, daemon=True).start()
        return ours

    monkeypatch.setattr(socket, "create_connection", connect)
    assert call("http://metrics.example:9090/api?query=up", NAMED).body == b"fine"
    assert received[0].split(b"\r\n")[:2] == [b"GET /api?query=up HTTP/1.1", b"Host: metrics.example:9090"]
    assert b"Cookie" not in received[0]
    assert b"Authorization" not in received[0]


@pytest.mark.parametrize(
    ("text", "good"),
    [("prometheus.monitoring.svc:9090", True), ("10.0.0.5:9090", True), ("[fd00::5]:9090", True), ("host", True),
     ("http://host:9090", False), ("host/path", False), ("user@host", False), ("", False), ("*", False)],
)  # fmt: skip
def test_places_are_written_as_host_and_port(text: str, good: bool) -> None:
    assert is_place(text) is good


def test_ended_call_leaves_no_resources() -> None:
    before = threading.active_count()
    with answering(plain(b"fine")) as (url, allowed):
        call(url, allowed)
    assert threading.active_count() <= before + 1  # a timer may be about to end
    assert outbound.SECONDS == 5.0
