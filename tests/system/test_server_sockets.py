"""Limits and revocation at the sockets of two real web processes.

Frames that are too large or compressed close the socket at no cost, and a token that is revoked through one process is
disconnected in both.
"""

from __future__ import annotations

import base64
import os
import re
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from .plane import Plane, embedded
from .processes import Process, accepts, free_port, wait_until

GROWTH_MIB = 20


class Web:
    """A web process as the product starts it."""

    def __init__(self, plane: Plane) -> None:
        self.port = free_port()
        words = ("-m", "hetsched.project.web_server", "--port", str(self.port))
        self.process: Process = plane.start(f"web-{self.port}", *words)

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.popen.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def raw(self, token: str) -> socket.socket:
        """Open a WebSocket by hand and return it after the handshake."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        lines = (
            "GET /ws/live/ HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Upgrade: websocket", "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}", "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Protocol: bearer.{token}", "Sec-WebSocket-Extensions: permessage-deflate", "", "",
        )  # fmt: skip
        plain.sendall("\r\n".join(lines).encode())
        content = b""
        while b"\r\n\r\n" not in content:
            content += plain.recv(4096)
        head = content.decode("latin-1").lower()
        assert " 101 " in head, head
        assert "sec-websocket-extensions" not in head  # no compression was negotiated
        return plain


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with embedded() as made:
        yield made


@pytest.fixture(scope="module")
def webs(plane: Plane) -> list[Web]:
    made = [Web(plane), Web(plane)]
    for web in made:
        wait_until(lambda: accepts(web.port) or not web.process.running, what="the web server", seconds=180)  # noqa: B023
        assert web.process.running, web.process.said()
    return made


@pytest.fixture(scope="module")
def token(plane: Plane) -> str:
    return token_of_its_own(plane)


def token_of_its_own(plane: Plane) -> str:
    return plane.run("-m", "hetsched.cli", "token", "create", "--role", "viewer").split()[0]


def closing_code(plain: socket.socket) -> int:
    """Read frames until the server closes; 1006 if it disconnects without a close frame."""
    with plain:
        data = b""
        while True:
            while len(data) >= 2 and len(data) >= 2 + (data[1] & 127):
                kind, length = data[0] & 15, data[1] & 127
                if kind == 8:
                    return int(struct.unpack("!H", data[2:4])[0])
                data = data[2 + length :]
            try:
                more = plain.recv(65536)
            except ConnectionError:
                return 1006
            if not more:
                return 1006
            data += more


@pytest.fixture
def web(webs: list[Web], token: str) -> Web:
    """Return a web process that has served a socket before, and has loaded the needed modules."""
    with webs[0].raw(token) as plain:
        plain.sendall(b"\x82\x80\0\0\0\0")  # a binary message, which no client sends
        assert closing_code(plain) == 1003
    return webs[0]


def test_gibibyte_frame_is_rejected_by_its_header(web: Web, token: str) -> None:
    before = web.resident_mib()
    plain = web.raw(token)
    plain.sendall(b"\x81" + bytes([0x80 | 127]) + struct.pack("!Q", 1 << 30) + os.urandom(4))
    assert closing_code(plain) == 1009
    assert web.resident_mib() - before < GROWTH_MIB


def test_compressed_frame_is_rejected(web: Web, token: str) -> None:
    before = web.resident_mib()
    bomb = zlib.compress(b"\0" * (64 << 20), 9)[2:-4][:60_000]
    plain = web.raw(token)
    plain.sendall(b"\xc1" + bytes([0x80 | 126]) + struct.pack("!H", len(bomb)) + b"\0\0\0\0" + bomb)
    assert closing_code(plain) == 1002
    assert web.resident_mib() - before < GROWTH_MIB


def test_revoked_token_is_disconnected_in_every_process(plane: Plane, webs: list[Web], figures: dict[str, Any]) -> None:
    token = token_of_its_own(plane)  # the other tests need their token, in any order
    code = (
        "from hetsched.access.models import Token; from hetsched.access.tokens import revoke_token; "
        f"revoke_token(Token.objects.get(token_key__startswith={token[:10]!r}), actor=None, reason='leaked')"
    )
    sockets = [connect(f"ws://127.0.0.1:{web.port}/ws/live/", subprotocols=[f"bearer.{token}"]) for web in webs]  # type: ignore[list-item]
    for one in sockets:
        one.send('{"action":"subscribe","topics":["policies"]}')
        assert "snapshot" in str(one.recv(timeout=60))
    plane.run("-m", "django", "shell", "-c", code)
    seconds = wait_until(lambda: all(_closed_by(one) == 4401 for one in sockets), what="closed sockets", seconds=25)
    figures["revocation until the sockets of two processes are closed, seconds"] = round(seconds, 1)


def _closed_by(one: Any) -> int | None:
    try:
        one.recv(timeout=0.01)
    except TimeoutError:
        return None
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else 1006
    return None
