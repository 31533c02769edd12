"""Limits of bodies, headers and connections of a real web process, over raw sockets.

Not tested here: the limits of live sockets (`test_server_sockets.py`).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.http.certificates import make_pairs
from tests.system.plane import Plane, embedded
from tests.system.processes import Process, accepts, free_port, python, wait_until

MIB = 1 << 20
UPLOAD = b"POST /api/v1/isa/inspect/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
# One web process for all tests of the same settings: each start costs seconds of processor time.
Settings = dict[str, str]
USUAL = {
    "HETSCHED_BODIES_BYTES_PER_ADDRESS": str(MIB), "HETSCHED_SOCKETS_PER_ADDRESS": "4", "HETSCHED_UNREAD_SECONDS": "60",
}  # fmt: skip
SHORT_TIMEOUTS = {"HETSCHED_BODY_SECONDS": "2", "HETSCHED_HEAD_SECONDS": "2", "HETSCHED_UNREAD_SECONDS": "2"}
FEW_CONNECTIONS_PER_ADDRESS = {
    "HETSCHED_CONNECTIONS_PER_ADDRESS": "20", "HETSCHED_HTTPS": "proxy", "FORWARDED_ALLOW_IPS": "192.0.2.1",
}  # fmt: skip
NAMED_PROXIES = {"HETSCHED_CONNECTIONS_PER_ADDRESS": "20", "FORWARDED_ALLOW_IPS": "127.0.0.0/8"}
FEW_CONNECTIONS = {"HETSCHED_CONNECTIONS": "10", "HETSCHED_HTTPS": "proxy", "FORWARDED_ALLOW_IPS": "127.0.0.1"}
HALF_HEAD = b"GET /livez HTTP/1.1\r\nHost: local"


class Web:
    """One web process with its own settings."""

    def __init__(self, plane: Plane, *options: str, **settings: str) -> None:
        self.port, self.tls = free_port(), "--ssl-certfile" in options
        command = python("-m", "hetsched.project.web_server", "--port", str(self.port), "--grace-seconds", "1")
        log = plane.folder / f"web-{self.port}.log"
        self.process = Process([*command, *options], env=plane.env | settings, log=log, cwd=plane.folder)
        wait_until(lambda: accepts(self.port), what=self.process.said)
        assert self.ask("GET", "/livez")[0] == 200
        time.sleep(0.2)  # until these connections are closed

    def connect(self, sent: bytes = b"") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        made.sendall(sent)
        return made

    def files(self, word: str) -> list[str]:
        """Return the open files whose names contain a word; "(deleted)" are those of stored bodies."""
        found = []
        for descriptor in Path(f"/proc/{self.process.popen.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(os.readlink(descriptor))
        return [name for name in found if word in name]

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        made: http.client.HTTPConnection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        if self.tls:
            unverified = ssl._create_unverified_context()
            made = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=unverified)
        with contextlib.closing(made) as client:
            client.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = client.getresponse()
            return answer.status, answer.read()


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with embedded() as made:
        yield made


@pytest.fixture(scope="module")
def token(plane: Plane) -> str:
    return plane.run("-m", "hetsched.cli", "token", "create", "--role", "submitter").strip()


@pytest.fixture(scope="module")
def started(plane: Plane) -> Iterator[Callable[[Settings], Web]]:
    """Return a function that returns the web process with these settings; the first call starts it."""
    found: dict[int, Web] = {}

    def web_with(settings: Settings) -> Web:
        if id(settings) not in found:
            found[id(settings)] = Web(plane, **settings)
        return found[id(settings)]

    yield web_with
    for one in found.values():
        one.process.stop()


@pytest.fixture
def web(started: Callable[[Settings], Web]) -> Web:
    return started(USUAL)


@pytest.fixture
def hasty(started: Callable[[Settings], Web]) -> Web:
    return started(SHORT_TIMEOUTS)


def status_of(connection: socket.socket) -> int:
    """Read a response and return its status."""
    content = b""
    while b"\r\n\r\n" not in content:
        piece = connection.recv(4096)
        assert piece, f"closed after {content!r}"
        content += piece
    head, _, body = content.partition(b"\r\n\r\n")
    for length in re.findall(rb"(?i)content-length: (\d+)", head):
        while len(body) < int(length):
            body += connection.recv(4096)
    return int(head.split()[1])


def is_open(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    if not readable:
        return True
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


def push(connection: socket.socket, size: int, piece: bytes) -> int:
    """Send a body of this size, or as much as the server reads before it responds; return the number of sent bytes."""
    sent, until = 0, time.monotonic() + 20
    connection.setblocking(False)
    while sent < size and time.monotonic() < until:
        readable, writable, _ = select.select([connection], [connection], [], 1)
        if readable:
            break
        if writable:
            with contextlib.suppress(BlockingIOError):
                sent += connection.send(piece)
    connection.settimeout(20)
    return sent


# --- Bodies ---


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("credential", ["", "Authorization: Bearer hs_" + "0" * 64 + "\r\n"])
def test_anonymous_uploads_are_rejected_immediately(web: Web, framing: str, credential: str) -> None:
    size = 120 * MIB
    head = UPLOAD + credential.encode()
    if framing == "length":
        head, piece = head + f"Content-Length: {size}\r\n\r\n".encode(), b"x" * 65536
    else:
        head, piece = head + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n"
    connections = [web.connect(head) for _ in range(10)]
    for connection in connections:
        began = time.monotonic()
        assert push(connection, size, piece) < 8 * MIB, "the answer comes before the body"
        assert status_of(connection) == 401
        assert time.monotonic() - began < 5
    assert web.files("(deleted)") == []
    for connection in connections:
        wait_until(lambda connection=connection: not is_open(connection) or not connection.recv(65536), what="the end")
        connection.close()


def test_expect_100_is_rejected_without_the_body(web: Web, token: str) -> None:
    expecting = UPLOAD + b"Expect: 100-continue\r\nContent-Length: 200000\r\n"
    with web.connect(expecting + b"\r\n") as stranger:
        assert status_of(stranger) == 401
    with web.connect(expecting + f"Authorization: Bearer {token}\r\n\r\n".encode()) as known:
        assert status_of(known) == 100


@pytest.mark.parametrize("chunked", [False, True])
def test_large_body_with_a_credential_is_read_whole(web: Web, token: str, chunked: bool) -> None:
    program = Path("/bin/ls").read_bytes()
    assert len(program) > 65536
    body = (program[at : at + 70_000] for at in range(0, len(program), 70_000)) if chunked else program
    headers = {"Authorization": f"Bearer {token}", "Content_Type": "application/octet-stream"}
    status, content = web.ask("POST", "/api/v1/isa/inspect/?file=p", body, **headers)
    whole, expected = web.ask("POST", "/api/v1/isa/inspect/?file=p", program, **headers)
    assert (status, json.loads(content)) == (whole, json.loads(expected))
    assert json.loads(content).get("code") != "BodyUnreadable"
    assert web.files("(deleted)") == []


def test_permission_is_checked_before_the_body(plane: Plane, web: Web) -> None:
    viewer = plane.run("-m", "hetsched.cli", "token", "create", "--role", "viewer").strip()
    head = b"POST /api/v1/workloads/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n"
    with web.connect(head + f"Authorization: Bearer {viewer}\r\n\r\n".encode()) as connection:
        assert status_of(connection) == 403
    assert web.files("(deleted)") == []


def test_large_form_without_a_session_is_rejected(web: Web) -> None:
    form = b"POST /login/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    with web.connect(form + b"Content-Length: 100000\r\n\r\n") as connection:
        assert status_of(connection) == 413
    with web.connect(form + b"Content-Length: 60000\r\n\r\n" + b"x" * 60000) as connection:
        assert status_of(connection) == 403, "a small one reaches the check of its CSRF token"


def test_browser_session_sends_large_bodies_with_its_csrf_token(plane: Plane, web: Web) -> None:
    said = json.loads(plane.run("-m", "django", "prepare", "--admin").strip().splitlines()[-1])["admin"]
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)) as client:
        jar: dict[str, str] = {}

        def ask(method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
            cookies = "; ".join(f"{name}={value}" for name, value in jar.items())
            sent = {"Cookie": cookies, "Referer": f"http://127.0.0.1:{web.port}/", **headers}
            client.request(method, path, body, sent)
            answer = client.getresponse()
            for value in answer.headers.get_all("Set-Cookie") or ():
                name, _, rest = value.partition("=")
                jar[name] = rest.partition(";")[0]
            return answer.status, answer.read().decode()

        page = ask("GET", "/login/")[1]
        hidden = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page)[0]
        form = f"csrfmiddlewaretoken={hidden}&username={said['username']}&password={said['password']}"
        assert ask("POST", "/login/", form, **{"Content-Type": "application/x-www-form-urlencoded"})[0] == 302
        manifest = json.dumps({"manifest": "#" * 100_000})
        json_type = {"Content-Type": "application/json"}
        assert "CSRF" in ask("POST", "/api/v1/what-if/", manifest, **json_type)[1]
        status, answer = ask("POST", "/api/v1/what-if/", manifest, **json_type, **{"X-CSRFToken": jar["csrftoken"]})
        assert status in (200, 400, 404), answer
        assert "CSRF" not in answer


def test_missing_body_times_out(hasty: Web, token: str) -> None:
    head = UPLOAD + f"Authorization: Bearer {token}\r\nContent-Length: 1000000\r\n\r\n".encode()
    with hasty.connect(head + b"x" * 100_000) as connection:
        began = time.monotonic()
        assert status_of(connection) == 408
        assert 1 < time.monotonic() - began < 8
        assert hasty.files("(deleted)") == []


def test_bodies_of_an_address_hold_bounded_bytes(web: Web, token: str) -> None:
    head = UPLOAD + f"Authorization: Bearer {token}\r\nContent-Length: 1000000\r\n\r\n".encode()
    first = web.connect(head + b"x" * 900_000)
    time.sleep(1)
    with web.connect(head) as second:
        push(second, 1_000_000, b"x" * 10_000)
        assert status_of(second) == 429
    first.close()
    time.sleep(0.5)
    with web.connect(head + b"x" * 1_000_000) as third:
        assert status_of(third) != 429


# --- Headers and connections ---


def test_heads_have_a_deadline_and_pending_requests_have_none(hasty: Web, token: str) -> None:
    halves = [hasty.connect(HALF_HEAD) for _ in range(50)]
    silent = [hasty.connect() for _ in range(10)]
    second = hasty.connect(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(second) == 200
    idle = hasty.connect(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(idle) == 200
    second.sendall(HALF_HEAD)
    live = hasty.connect(
        b"GET /ws/live/ HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        + f"Sec-WebSocket-Protocol: bearer.{token}\r\n\r\n".encode()
    )
    assert status_of(live) == 101
    time.sleep(4)
    assert [is_open(connection) for connection in (*halves, *silent, second)] == [False] * 61
    assert is_open(idle), "the keep-alive timeout ends it, later"
    assert is_open(live)
    for connection in (*halves, *silent, second, idle, live):
        connection.close()


@pytest.mark.parametrize(("settings", "whole"), [(SHORT_TIMEOUTS, False), (USUAL, True)], ids=["2 s", "60 s"])
def test_client_that_does_not_read_is_disconnected(
    started: Callable[[Settings], Web], settings: Settings, whole: bool
) -> None:
    web = started(settings)
    large = b"GET /static/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle.js HTTP/1.1\r\n"
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", web.port))
        reader.sendall(large + b"Host: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(5)  # twice the limit of 2 s, and its check
        content, reset = b"", False
        reader.settimeout(20)
        try:
            while piece := reader.recv(65536):
                content += piece
        except ConnectionResetError:
            reset = True
        head, _, body = content.partition(b"\r\n\r\n")
        length = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
        assert (len(body) == length and not reset) is whole


def test_connections_per_address_are_limited(started: Callable[[Settings], Web]) -> None:
    web = started(FEW_CONNECTIONS_PER_ADDRESS)
    many = [web.connect() for _ in range(40)]
    wait_until(lambda: sum(map(is_open, many)) == 20, what=lambda: f"{sum(map(is_open, many))} are open", seconds=5)
    many[0].sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(many[0]) == 200
    for connection in many:
        connection.close()
    wait_until(lambda: web.ask("GET", "/livez")[0] == 200, what="room for others")


def test_tls_handshakes_per_address_are_limited(plane: Plane, tmp_path: Path) -> None:
    """Regression: 700 silent connections were open where 20 of an address and 100 of all clients were allowed."""
    make_pairs(tmp_path, hosts=["localhost"], client="x", days=1)
    pair = ("--ssl-certfile", str(tmp_path / "server/tls.crt"), "--ssl-keyfile", str(tmp_path / "server/tls.key"))
    limits = {"HETSCHED_CONNECTIONS_PER_ADDRESS": "20", "HETSCHED_HEAD_SECONDS": "6", "HETSCHED_HTTPS": "on"}
    web = Web(plane, *pair, **limits)

    def is_answered() -> bool:
        with contextlib.suppress(OSError):
            return web.ask("GET", "/livez")[0] == 200
        return False

    try:
        for _ in range(30):  # a handshake that ended is not counted
            assert web.ask("GET", "/livez")[0] == 200
        many = [web.connect() for _ in range(60)]
        wait_until(lambda: sum(map(is_open, many)) == 20, what=lambda: f"{sum(map(is_open, many))} are open", seconds=5)
        for connection in many[:5]:
            connection.close()
        wait_until(is_answered, what="a place of a closed connection", seconds=4)
        wait_until(lambda: not any(map(is_open, many[5:])), what="the deadline of the others")
        assert is_answered()
        for connection in many[5:]:
            connection.close()
    finally:
        web.process.stop()


def test_closing_web_sockets_count_for_their_address(web: Web) -> None:
    asked = (
        f"GET /ws/live/ HTTP/1.1\r\nHost: localhost:{web.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    silent = [web.connect(asked.encode()) for _ in range(20)]  # no client replies to the close frame of the server
    for connection in silent[:8]:
        assert status_of(connection) == 101
    # Unread bytes of an aborted connection are lost.
    wait_until(lambda: sum(is_open(one) for one in silent) == 8, what="the end of all but 8", seconds=8)
    assert web.ask("GET", "/livez")[0] == 200
    wait_until(lambda: web.connect(asked.encode()).recv(12) == b"HTTP/1.1 101", what="a place", seconds=25)
    for connection in silent:
        connection.close()


def test_named_proxy_is_exempt_from_the_address_limit(started: Callable[[Settings], Web]) -> None:
    web = started(NAMED_PROXIES)
    many = [web.connect() for _ in range(40)]
    time.sleep(1)
    assert all(map(is_open, many))
    for connection in many:
        connection.close()


def test_beyond_the_limit_of_all_connections_requests_are_refused(started: Callable[[Settings], Web]) -> None:
    web = started(FEW_CONNECTIONS)
    many = [web.connect() for _ in range(15)]
    time.sleep(0.5)
    assert web.ask("GET", "/livez")[0] == 503
    for connection in many:
        connection.close()
    wait_until(lambda: web.ask("GET", "/livez")[0] == 200, what="room for others")


@pytest.mark.parametrize(("settings", "status"), [(FEW_CONNECTIONS, 200), (FEW_CONNECTIONS_PER_ADDRESS, 301)])
def test_forwarded_scheme_is_trusted_from_a_named_proxy_only(
    started: Callable[[Settings], Web], settings: Settings, status: int
) -> None:
    web = started(settings)
    assert web.ask("GET", "/login/", X_Forwarded_Proto="https")[0] == status
    assert web.ask("GET", "/login/")[0] == 301
