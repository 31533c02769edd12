"""HTTP/1.1 client for one API server: short calls on persistent connections.

A general-purpose client takes several times longer per call than the transfer itself, which would slow down binding. A
connection carries one request and its response at a time; only `parallel_calls` sends several. An idle connection is
checked before reuse, because the server may have closed it. A response that is not plain HTTP/1.1 closes the
connection. This module never retries: only the caller knows whether a second attempt is safe.
Source: RFC 9112.
"""

from __future__ import annotations

import select
import socket
import ssl
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec

from hetsched.adapters.http.outbound import OutboundError, reach
from hetsched.contracts.message import Message, verbatim

_LONGEST_HEAD = 1 << 16
_KEPT = 64
_BODYLESS = frozenset({204, 304})
READ_BYTES = 1 << 16

Connect = Callable[[str, int, float], socket.socket]


class WireError(Exception):
    """No complete response arrived; the outcome of a write is unknown."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = verbatim(message)


class WireResponse(msgspec.Struct, frozen=True):
    """A response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    data: bytes


Reader = Generator[None, bytes, WireResponse]


class Wire:
    """Connections to one server, for calls from several threads; `connect` opens a connection to (name, port, seconds).

    By default, `connect` applies the egress filter.
    """

    def __init__(self, configuration: Any, connect: Connect = reach) -> None:
        self._connect = connect
        url = urlsplit(configuration.host)
        self._name = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._prefix = url.path.rstrip("/")
        host = f"[{self._name}]" if ":" in self._name else self._name
        self._host = f"{host}:{self._port}"
        self._tls = _tls(configuration) if url.scheme == "https" else None
        self._server_name = getattr(configuration, "tls_server_name", None) or self._name
        self._idle: deque[WireConnection] = deque()
        weakref.finalize(self, _close_all, self._idle)

    def call(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        connect_seconds: float,
        read_seconds: float,
    ) -> WireResponse:
        """Make one call. Raises: WireError."""
        connection = self.take_idle() or self.open(connect_seconds)
        try:
            answer = connection.call(method, self.request(method, path, headers, body), read_seconds)
        except (OSError, ValueError) as error:
            connection.close()
            raise WireError(str(error) or type(error).__name__) from None
        except BaseException:
            connection.close()
            raise
        self.put_idle(connection)
        return answer

    def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """Return the bytes of a request. Raises: ValueError."""
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) - 1:
            raise ValueError("the path or a request header contains a line break")
        return f"{head}\r\n\r\n".encode("latin-1") + body

    def take_idle(self) -> WireConnection | None:
        """Return an open connection that carries no call, or None. It then belongs to the caller."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread has taken the last one
                break
            if connection.is_open():
                return connection
            connection.close()
        return None

    def put_idle(self, connection: WireConnection) -> None:
        """Keep a connection that carries no call for later calls, or close it if it cannot be reused."""
        if connection.reusable and len(self._idle) < _KEPT:
            self._idle.append(connection)
        else:
            connection.close()

    def open(self, seconds: float) -> WireConnection:
        """Open a connection, which belongs to the caller. Raises: WireError."""
        try:
            plain = self._connect(self._name, self._port, seconds)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                wrapped = self._tls.wrap_socket(plain, server_hostname=self._server_name) if self._tls else plain
            except BaseException:
                plain.close()
                raise
        except (OSError, OutboundError) as error:
            raise WireError(Message("no connection: {text}", text=str(error))) from None
        return WireConnection(wrapped)


def _close_all(idle: deque[WireConnection]) -> None:
    while idle:
        idle.pop().close()


class WireConnection:
    """One connection. `reusable` is True after a complete response if the server keeps the connection open.

    `rest` contains received bytes that no response has used yet.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.reusable = False
        self.rest = b""

    def close(self) -> None:
        with suppress(OSError):
            self.socket.close()

    def is_open(self) -> bool:
        """Return whether an idle connection can be reused; pending data or EOF means that it cannot."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return not poll.poll(0)

    def call(self, method: str, request: bytes, read_seconds: float) -> WireResponse:
        """Make one call. Raises: OSError, ValueError."""
        self.reusable = False
        self.socket.settimeout(read_seconds)
        self.socket.sendall(request)
        reader = self.read(method)
        try:
            next(reader)
            while True:
                reader.send(self.socket.recv(READ_BYTES))
        except StopIteration as end:
            answer: WireResponse = end.value
        self.reusable = self.reusable and not self.rest
        return answer

    def read(self, method: str) -> Reader:
        """Read one response. The generator yields to receive more bytes, which are empty at the end of the stream.

        Raises: ValueError.
        """
        status = 100
        while 100 <= status < 200:
            status, found = yield from self._head()
        data, ends = yield from self._body(method, status, found)
        self.reusable = not ends and "close" not in found.get("connection", "").lower()
        return WireResponse(status, found, data)

    def _head(self) -> Generator[None, bytes, tuple[int, dict[str, str]]]:
        while (end := self.rest.find(b"\r\n\r\n")) < 0:
            if len(self.rest) > _LONGEST_HEAD:
                raise ValueError(f"the response header is larger than {_LONGEST_HEAD} bytes")
            self.rest += yield from _more()
        first, *lines = self.rest[:end].decode("latin-1").split("\r\n")
        self.rest = self.rest[end + 4 :]
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
            raise ValueError("the response is not HTTP/1.x")
        pairs = (line.partition(":") for line in lines)
        return int(status[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}

    def _body(self, method: str, status: int, headers: Mapping[str, str]) -> Generator[None, bytes, tuple[bytes, bool]]:
        """Return the body, and whether the server marks the end of the body by closing the connection."""
        if method == "HEAD" or status in _BODYLESS:
            return b"", False
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return (yield from self._chunks()), False
        length = headers.get("content-length")
        if length is not None:
            if not length.isdecimal():
                raise ValueError("the Content-Length of the response is not a number")
            return (yield from self._exactly(int(length))), False
        parts = [self.rest]
        self.rest = b""
        while part := (yield):
            parts.append(part)
        return b"".join(parts), True

    def _chunks(self) -> Generator[None, bytes, bytes]:
        parts: list[bytes] = []
        while True:
            line = yield from self._line()
            size = int(line.partition(b";")[0], 16)
            if size == 0:
                break
            parts.append((yield from self._exactly(size)))
            if (yield from self._exactly(2)) != b"\r\n":
                raise ValueError("a chunk of the response does not end with CRLF")
        while (yield from self._line()):
            pass  # trailers
        return b"".join(parts)

    def _line(self) -> Generator[None, bytes, bytes]:
        while (end := self.rest.find(b"\r\n")) < 0:
            if len(self.rest) > _LONGEST_HEAD:
                raise ValueError(f"a line of the response is longer than {_LONGEST_HEAD} bytes")
            self.rest += yield from _more()
        line, self.rest = self.rest[:end], self.rest[end + 2 :]
        return line

    def _exactly(self, size: int) -> Generator[None, bytes, bytes]:
        parts, missing = [self.rest], size - len(self.rest)
        while missing > 0:
            part = yield from _more()
            parts.append(part)
            missing -= len(part)
        whole = b"".join(parts) if len(parts) > 1 else parts[0]
        self.rest = whole[size:]
        return whole[:size]


def _more() -> Generator[None, bytes, bytes]:
    part = yield
    if not part:
        raise ValueError("the server closed the connection before the response was complete")
    return part


def _tls(configuration: Any) -> ssl.SSLContext:
    """Return the TLS context for the certificates in a configuration of the official client."""
    data = getattr(configuration, "ca_cert_data", None)
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None, cadata=data or None)
    if not configuration.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    return context
